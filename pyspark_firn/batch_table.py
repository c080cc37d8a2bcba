"""The table of a chunk's batches that kernels and their callers share: one row of int64 for each batch."""

from __future__ import annotations

from typing import Final

BATCH_POSITION: Final = 0
BATCH_BYTES: Final = 1
BATCH_BASE_OFFSET: Final = 2
BATCH_LAST_DELTA: Final = 3
BATCH_ATTRIBUTES: Final = 4
BATCH_BASE_TIMESTAMP: Final = 5
BATCH_MAX_TIMESTAMP: Final = 6
BATCH_PRODUCER_ID: Final = 7
BATCH_RECORDS: Final = 8
BATCH_EPOCH: Final = 9
BATCH_BODY_START: Final = 10
BATCH_BODY_END: Final = 11
"""Where its records lie: in the chunk, or in the decompressed bytes."""
BATCH_FIELDS: Final = 12

UNSOUND: Final = -1
"""A kernel returns this in place of a count or an index."""
