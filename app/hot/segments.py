"""One segment of a log: a file of batches, its indexes, and walks over its batches.

``<base offset as 20 digits>.log`` contains record batches; the first begins at the base offset or later. All other files with
the same number can be rebuilt from it.

Tests: ``tests/hot/test_append.py``, ``tests/hot/test_recovery.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from app.configs.numbers import LONG_MAX
from app.core.errors import CorruptionError
from app.core.limits import KIB, MIB
from app.core.units import NO_OFFSET, NO_TIMESTAMP, Offset, TimestampMs
from app.hot.descriptors import FileHandle
from app.hot.indexes import AbortedTransaction, SegmentIndex
from app.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC_V2, BatchHeader, check_stored_batch, parse_header

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
"""Indexes keep offsets as int32 above the base offset."""

VERIFY_WINDOW_BYTES: Final = 4 * MIB
HEADER_WINDOW_BYTES: Final = 64 * KIB
"""Bytes read at once by a walk that needs only headers. It skips the rest of large batches."""


def file_name(offset: Offset, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


class Segment:
    """State of one segment. A plain record that its log updates."""

    __slots__ = (
        "aborted",
        "aborted_written",
        "base_offset",
        "bytes_since_index_entry",
        "deleted",
        "end_offset",
        "first_append_ms",
        "handle",
        "holds",
        "index",
        "index_written",
        "last_append_ms",
        "max_timestamp",
        "max_timestamp_offset",
        "replacing",
        "roll_after_now_ms",
        "roll_after_timestamp",
        "rolling_timestamp",
        "size_bytes",
        "synced_bytes",
        "times_written",
    )

    def __init__(self, base_offset: Offset, handle: FileHandle) -> None:
        self.base_offset = base_offset
        self.end_offset: int = base_offset
        """One past the last offset of the segment."""
        self.handle = handle
        self.size_bytes = 0
        self.max_timestamp: int = NO_TIMESTAMP
        self.max_timestamp_offset: int = NO_OFFSET
        """Last offset of the first batch with the greatest timestamp."""
        self.rolling_timestamp: int = NO_TIMESTAMP
        """Greatest timestamp of the first append. ``segment.ms`` counts from it."""
        self.first_append_ms: int = NO_TIMESTAMP
        """Arrival time of the first record, by the broker's clock; -1 while the segment is empty."""
        self.last_append_ms: int = NO_TIMESTAMP
        """Arrival time of the newest record, by the broker's clock; after a crash the file's modification time; -1 while empty."""
        self.roll_after_timestamp: int = LONG_MAX
        self.roll_after_now_ms: int = LONG_MAX
        self.index: SegmentIndex | None = None
        """None if the index is not loaded. The active segment's index is loaded after the first append."""
        self.bytes_since_index_entry = 0
        self.index_written = 0
        """Number of entries in the file of the offset index, and in the file of the time index:"""
        self.times_written = 0
        self.aborted: list[AbortedTransaction] | None = None
        """None if not loaded."""
        self.aborted_written = 0
        self.synced_bytes = 0
        self.holds: tuple[SegmentHold, ...] = ()
        """Copies and compactions under way. Meanwhile the file is not deleted. A truncation of the log ends them."""
        self.deleted = False
        self.replacing = False
        """Whether compaction has a replacement ready. Then no new hold is allowed."""

    def path(self, suffix: str) -> str:
        log_path = self.handle.path
        return log_path[: -len(LOG_SUFFIX)] + suffix

    def load_index_entries(self, index: SegmentIndex) -> None:
        """Use an index whose entries are all in the files."""
        self.index = index
        self.index_written = len(index.offsets)
        self.times_written = len(index.times)


class SegmentHold:
    """Keeps a segment's file from being deleted until ``release``, or until the log is cut below the segment's end."""

    __slots__ = ("_on_end", "ended", "segment")

    def __init__(self, segment: Segment, on_end: Callable[[], None] | None = None) -> None:
        """``on_end`` is called synchronously when the log ends the hold. The caller then no longer needs to release it."""
        self.segment = segment
        self._on_end = on_end
        self.ended = False
        """Whether the log ended the hold. Bytes read from the file may not be used any more."""
        segment.holds += (self,)

    def release(self) -> None:
        """Release the hold. A second call does nothing."""
        self.segment.holds = tuple(hold for hold in self.segment.holds if hold is not self)

    def end(self) -> None:
        """Release the hold on behalf of the log, and tell its owner."""
        if self in self.segment.holds:
            self.release()
            self.ended = True
            if self._on_end is not None:
                self._on_end()


@dataclass(frozen=True, slots=True)
class SegmentView:
    """The present public state of a segment."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    max_timestamp: TimestampMs
    rolling_timestamp: TimestampMs
    """Greatest timestamp of its first append; -1 if it is empty or was not read yet."""
    path: str
    active: bool
    first_append_ms: TimestampMs
    """Arrival time of the first record, by the broker's clock; after a crash the time of recovery; -1 if empty."""
    last_append_ms: TimestampMs
    """Arrival time of the newest record, by the broker's clock; after a crash the file's modification time; -1 if empty."""


class Readable(Protocol):
    """The operations of a file that a walk needs."""

    def pread(self, length: int, position: int) -> bytes: ...


def walk(file: Readable, start: int, end: int, *, verify: bool) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch in ``[start, end)`` of a segment, read in large windows.

    With ``verify``, which checks the batches, the bytes are the whole batch. They are also the whole batch for control batches.
    For other batches they may end anywhere after the header. The bytes are valid until the next step.

    Raises: CorruptionError at the first batch that is not sound, or that does not end by ``end``.
    """
    window_bytes = VERIFY_WINDOW_BYTES if verify else HEADER_WINDOW_BYTES
    window = memoryview(b"")
    window_start = start
    position = start
    while position < end:
        left = window_start + len(window) - position
        if left < HEADER_BYTES:
            window = memoryview(file.pread(min(window_bytes, end - position), position))
            window_start = position
            if len(window) < HEADER_BYTES:
                raise CorruptionError(f"{end - position} bytes at position {position} are no whole batch.")
            left = len(window)
        header = parse_header(window, position - window_start)
        size = header.batch_length + LENGTH_PREFIX_BYTES
        if size < HEADER_BYTES or header.magic != MAGIC_V2 or position + size > end:
            raise CorruptionError(f"No whole record batch at position {position}.")
        if size > left and (verify or header.is_control):
            window = memoryview(file.pread(min(max(window_bytes, size), end - position), position))
            window_start = position
            if len(window) < size:
                raise CorruptionError(f"The record batch at position {position} is cut short.")
        view = window[position - window_start : position - window_start + size]
        if verify:
            header = check_stored_batch(view)
        yield position, header, view
        position += size


def index_batch(
    segment: Segment, index: SegmentIndex, position: int, header: BatchHeader, index_interval_bytes: int
) -> None:
    """Add one batch to the segment's indexes and greatest timestamp, exactly as an append does."""
    last_offset = header.base_offset + header.last_offset_delta
    if header.max_timestamp > segment.max_timestamp and header.record_count:
        segment.max_timestamp = header.max_timestamp
        segment.max_timestamp_offset = last_offset
    if segment.bytes_since_index_entry > index_interval_bytes:
        index.offsets.append(last_offset - segment.base_offset)
        index.positions.append(position)
        index.add_time(segment.max_timestamp, segment.max_timestamp_offset - segment.base_offset)
        segment.bytes_since_index_entry = 0
    segment.bytes_since_index_entry += header.batch_length + LENGTH_PREFIX_BYTES


def build_index(segment: Segment, file: Readable, index_interval_bytes: int) -> SegmentIndex:
    """Build the indexes of a complete segment from its batches. The segment itself is not changed.

    Raises: CorruptionError.
    """
    scratch = Segment(segment.base_offset, segment.handle)
    index = SegmentIndex()
    for position, header, _ in walk(file, 0, segment.size_bytes, verify=False):
        index_batch(scratch, index, position, header, index_interval_bytes)
    finish_times(scratch, index)
    return index


def finish_times(segment: Segment, index: SegmentIndex) -> None:
    """Store the greatest timestamp of a complete segment, so that opening it needs no scan."""
    if segment.max_timestamp >= 0:
        index.add_time(segment.max_timestamp, segment.max_timestamp_offset - segment.base_offset)


class RolledSegment(NamedTuple):
    """A segment that is not active, as compaction chooses it."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    """-1 if the records have no timestamps."""
    first_timestamp: int
    """Greatest timestamp of the first batch; -1 if it is not known."""


class CleanedSegment(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A written and synced segment whose file names still end in ``.cleaned``. Fields as in ``Segment``."""

    base_offset: int
    size_bytes: int
    max_timestamp: int
    max_timestamp_offset: int
    rolling_timestamp: int
    bytes_since_index_entry: int
    has_aborted: bool
    unchanged: bool
    """Whether compaction changed nothing: every batch stayed, in one segment. Then the new files were removed again."""
    bytes_read: int
    records_read: int
    records_kept: int
