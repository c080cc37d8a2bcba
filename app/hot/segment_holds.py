"""Work that reads a log's segments by name: uploads and compactions. While it holds a segment, the segment's file is not deleted.

Such work may take long, and must never keep a log from being cut. So the log ends the work: a truncation ends each hold above the
cut and every compaction, in the same turn of the event loop. Bytes read after that are of no use.

Tests: ``tests/hot/test_cleaning_ended.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from app.hot.segments import SegmentHold


class LogCleaning:
    """The compaction of one log, or other work that needs all its segments, from the choice of the log to the end of the work.

    The log ends it when records are cut away, when the cleanup policy changes, or when the log is closed. Its owner checks
    ``ended`` in the same turn of the event loop in which it changes the log.
    """

    __slots__ = ("_holds", "_on_end", "ended", "swapping")

    def __init__(self, on_end: Callable[[], None]) -> None:
        """``on_end`` is called synchronously, once, when the log ends the work."""
        self._on_end = on_end
        self._holds: list[SegmentHold] = []
        self.ended = False
        self.swapping = False
        """Whether files are being replaced. This takes two syncs of the directory, and is completed even if the work was ended."""

    def add(self, hold: SegmentHold) -> SegmentHold:
        """Release ``hold`` when the work ends."""
        self._holds.append(hold)
        return hold

    def end(self) -> None:
        """End the work at once. Segments that are being replaced stay held until they are."""
        if self.ended:
            return
        self.ended = True
        for hold in self._holds:
            if not hold.segment.replacing:
                hold.end()
        self._on_end()

    def release(self) -> None:
        """Release all holds."""
        for hold in self._holds:
            hold.release()
        self._holds.clear()
