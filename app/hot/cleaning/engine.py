"""The interface of compaction's inner loops. There are two implementations: ``compiled``, and the readable ``plain``.

An engine holds the map from keys to their newest offsets and works on a window: a run of whole batches in memory.

Tests: ``tests/hot/test_cleaning_engines.py``, ``tests/hot/test_cleaner.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from app.hot.indexes import SegmentIndex

RECORDS_DROPPED: Final = 1
"""No record of the batch stays: its transaction was aborted, or it is a marker that is no longer needed."""
EMPTIED_KEPT: Final = 2
"""The header stays even if no record does."""
TRANSACTION_GONE: Final = 4
"""A marker whose transaction has no batch left. It gets a delete horizon, after which it is removed too."""


SLOT_BYTES: Final = 16
"""Bytes of a slot of the map: 96 bits of a key's hash, and an offset."""


class Stop(IntEnum):
    """Why an inner loop returned."""

    DONE = 0
    FULL = 1
    """The map is full."""
    COMPRESSED = 2
    """The next batch must be decompressed first."""
    NO_ROOM = 3
    """The next batch does not fit into the output."""
    DAMAGED = 4
    """The next batch is damaged."""


class Scanned(NamedTuple):
    """The batches of a window."""

    batches: int
    size_bytes: int
    """Their bytes of the window. The rest is the beginning of another batch."""
    marked: Sequence[int]
    """Numbers of the batches that belong to transactions or are control batches."""
    next_offset: int
    """End of the last batch."""


class SegmentSum(NamedTuple):
    """The indexes of a written segment; fields as in ``Segment``."""

    entries: SegmentIndex
    max_timestamp: int
    max_timestamp_offset: int
    bytes_since_index_entry: int


class Engine(Protocol):
    """The inner loops. Methods that read records raise CorruptionError if records are damaged."""

    @property
    def keys(self) -> int:
        """Number of keys in the map."""
        ...

    @property
    def latest_offset(self) -> int:
        """The map knows the newest record of every key up to this offset; -1 before anything is indexed."""
        ...

    @property
    def records_seen(self) -> int:
        """Number of records that ``filter`` has read since ``new_map``, and number of records that stayed:"""
        ...

    @property
    def records_kept(self) -> int: ...

    def new_map(self, keys_max: int, first_offset: int, hash_key: bytes, load_factor: float, output_bytes: int) -> None:
        """Begin with an empty map for up to ``keys_max`` keys, which may fill ``load_factor`` of its slots. The offsets for
        ``index`` begin at ``first_offset``.

        ``hash_key`` is 16 random bytes. At most ``output_bytes`` are written at once, except for a larger batch.
        """
        ...

    def scan(self, window: bytearray, length: int, start_offset: int, end_offset: int) -> Scanned:
        """Find and check the whole batches in ``window[:length]``. ``index`` and ``filter`` then process these batches.

        Their offsets must rise within ``[start_offset, end_offset)``, because a checksum does not cover a batch's base offset.

        Raises: CorruptionError.
        """
        ...

    def position(self, number: int) -> int:
        """Position of a scanned batch, by number."""
        ...

    def index(self, skipped: bytearray, start_offset: int) -> bool:
        """Put the keys of the scanned batches into the map, except those of ``skipped`` batches (one byte each) and of records
        below ``start_offset``. False if the map became full: ``latest_offset`` says how far it got."""
        ...

    def begin_segment(self, base_offset: int, index_interval_bytes: int) -> None:
        """Begin a new segment for the output of ``filter``."""
        ...

    def filter(
        self,
        actions: bytearray,
        producer_ends: Sequence[int],
        now_ms: int,
        new_horizon_ms: int,
        write: Callable[[memoryview], None],
    ) -> None:
        """Pass the remaining parts of the scanned batches to ``write``, in pieces of whole batches that are valid during the call.

        ``actions`` has the flags above for each batch. ``producer_ends`` are the rising last offsets of batches whose headers
        are kept for their producers. ``new_horizon_ms`` is the delete horizon of tombstones that have none yet (KIP-534).
        """
        ...

    def end_segment(self) -> SegmentSum:
        """The indexes of the batches that were written since ``begin_segment``."""
        ...
