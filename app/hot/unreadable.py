"""Batches whose records cannot be decoded, although the bytes are as the producer sent them. They are skipped and logged once.

Tests: ``tests/hot/test_produced_records.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from app.core.errors import clause
from app.core.log_events import Event
from app.core.units import Offset

TOLD_MAX: Final = 1024
"""Number of remembered batches. If there are more, the oldest may be logged again."""


class UnreadableBatch(NamedTuple):
    """A stored batch with a correct checksum and damaged records."""

    base_offset: Offset
    end_offset: Offset
    why: str


class UnreadableBatches:
    """Logs one line for each batch that a lookup by time skipped. Belongs to the event loop."""

    def __init__(self, log_line: Callable[[str], None]) -> None:
        self._log_line = log_line
        self._told: dict[tuple[str, Offset], None] = {}

    def note(self, place: str, batch: UnreadableBatch) -> None:
        """``place`` is the topic and the partition."""
        key = place, batch.base_offset
        if key in self._told:
            return
        if len(self._told) >= TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._told[key] = None
        self._log_line(
            Event.BATCH_UNREADABLE.line(
                f"a record batch of {place} cannot be read by any consumer, and lookups by time skip it: {clause(batch.why)}. To "
                f"get past it, move consumers to offset {batch.end_offset} (firn group reset), or delete the records before that "
                f"offset (firn topic delete-records)"
            )
        )
