"""One segment of a log: a file of batches, its indexes, and how to walk it.

``<base offset as 20 digits>.log`` holds record batches one after the other, the first at the base offset or later. Everything
else that bears the same number can be rebuilt from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from app.configs.numbers import LONG_MAX
from app.errors import CorruptionError
from app.hot.descriptors import FileHandle
from app.hot.indexes import AbortedTransaction, SegmentIndex
from app.limits import KIB, MIB
from app.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC_V2, BatchHeader, check_stored_batch, parse_header
from app.units import NO_OFFSET, NO_TIMESTAMP, Offset, TimestampMs

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
"""Read at once by a walk that needs only the headers: large batches are stepped over."""


def file_name(offset: Offset, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


class Segment:
    """State of one segment. A plain record: the log that owns it keeps it true."""

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
        """One past the last offset in it."""
        self.handle = handle
        self.size_bytes = 0
        self.max_timestamp: int = NO_TIMESTAMP
        self.max_timestamp_offset: int = NO_OFFSET
        """Last offset of the first batch that has the greatest timestamp."""
        self.rolling_timestamp: int = NO_TIMESTAMP
        """Greatest timestamp of the first append: ``segment.ms`` counts from it."""
        self.first_append_ms: int = NO_TIMESTAMP
        """When its first record came, by our clock; -1 while it is empty."""
        self.last_append_ms: int = NO_TIMESTAMP
        """When its newest record came, by our clock; after a crash the file's modification time; -1 while it is empty."""
        self.roll_after_timestamp: int = LONG_MAX
        self.roll_after_now_ms: int = LONG_MAX
        self.index: SegmentIndex | None = None
        """None if it is not loaded; the active segment's always is once something was appended."""
        self.bytes_since_index_entry = 0
        self.index_written = 0
        """Entries of the offset index that are in the file, and of the time index:"""
        self.times_written = 0
        self.aborted: list[AbortedTransaction] | None = None
        """None if not loaded."""
        self.aborted_written = 0
        self.synced_bytes = 0
        self.holds = 0
        """Copies outstanding; while there are any the file is neither unlinked nor truncated."""
        self.deleted = False
        self.replacing = False
        """Compaction has another file for it ready: nobody may hold it any more."""

    def path(self, suffix: str) -> str:
        log_path = self.handle.path
        return log_path[: -len(LOG_SUFFIX)] + suffix

    def load_index_entries(self, index: SegmentIndex) -> None:
        """Take an index whose entries are all in the files."""
        self.index = index
        self.index_written = len(index.offsets)
        self.times_written = len(index.times)


@dataclass(frozen=True, slots=True)
class SegmentView:
    """What others may know of a segment, as of now."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    max_timestamp: TimestampMs
    rolling_timestamp: TimestampMs
    """Greatest timestamp of its first append; -1 if it is empty or was not read yet."""
    path: str
    active: bool
    first_append_ms: TimestampMs
    """When its first record came, by the broker's clock; after a crash, when it was found; -1 if it is empty."""
    last_append_ms: TimestampMs
    """When its newest record came, by the broker's clock; after a crash the file's modification time; -1 if it is empty."""


class Readable(Protocol):
    """As much of a file as a walk needs."""

    def pread(self, length: int, position: int) -> bytes: ...


def walk(file: Readable, start: int, end: int, *, verify: bool) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch in ``[start, end)`` of a segment, read in large windows.

    The bytes are those of the whole batch with ``verify``, which checks them, and of every control batch; of other batches they
    may be cut short anywhere after the header. They are valid until the next step.

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
                raise CorruptionError(f"{end - position} bytes at position {position} are no whole batch")
            left = len(window)
        header = parse_header(window, position - window_start)
        size = header.batch_length + LENGTH_PREFIX_BYTES
        if size < HEADER_BYTES or header.magic != MAGIC_V2 or position + size > end:
            raise CorruptionError(f"no whole record batch at position {position}")
        if size > left and (verify or header.is_control):
            window = memoryview(file.pread(min(max(window_bytes, size), end - position), position))
            window_start = position
            if len(window) < size:
                raise CorruptionError(f"the record batch at position {position} is cut short")
        view = window[position - window_start : position - window_start + size]
        if verify:
            header = check_stored_batch(view)
        yield position, header, view
        position += size


def index_batch(
    segment: Segment, index: SegmentIndex, position: int, header: BatchHeader, index_interval_bytes: int
) -> None:
    """Account for one batch in the segment's indexes and greatest timestamp, exactly as an append does."""
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
    """The indexes of a complete segment, from its batches alone. The segment itself is not changed.

    Raises: CorruptionError.
    """
    scratch = Segment(segment.base_offset, segment.handle)
    index = SegmentIndex()
    for position, header, _ in walk(file, 0, segment.size_bytes, verify=False):
        index_batch(scratch, index, position, header, index_interval_bytes)
    finish_times(scratch, index)
    return index


def finish_times(segment: Segment, index: SegmentIndex) -> None:
    """Note the greatest timestamp of a segment that is complete, so that whoever opens it need not scan it."""
    if segment.max_timestamp >= 0:
        index.add_time(segment.max_timestamp, segment.max_timestamp_offset - segment.base_offset)


class RolledSegment(NamedTuple):
    """A segment that is not active, as far as the choice goes."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    """-1 if its records have none."""
    first_timestamp: int
    """Greatest timestamp of its first batch; -1 if it is not known."""


class CleanedSegment(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A segment that was written and synced, its files still ending in ``.cleaned``. Fields as in ``Segment``."""

    base_offset: int
    size_bytes: int
    max_timestamp: int
    max_timestamp_offset: int
    rolling_timestamp: int
    bytes_since_index_entry: int
    has_aborted: bool
    unchanged: bool
    """Every batch is as it was, in one segment: the files were removed again."""
    bytes_read: int
    records_read: int
    records_kept: int
