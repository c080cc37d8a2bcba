"""Searches in the segments of one log that do not wait for the disk: ranges for a fetch, records by time.

A plan reads a few headers and index entries, from memory or from the page cache. If bytes are in neither place, the plan raises a
``PageMiss`` that contains the work to fetch them. The caller runs this work in the pool and plans again. Only the event loop
changes the log, so a plan always sees one consistent state.

Tests: ``tests/hot/test_reads.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, NoReturn, TypeVar

from app.core.errors import CorruptionError
from app.core.limits import KIB
from app.core.units import Offset, TimestampMs
from app.hot.directory import LogDirectory
from app.hot.indexes import AbortedTransaction, SegmentIndex
from app.hot.missing import LostRange
from app.hot.reads import WARM_TAIL_BYTES, LocalRead, PageMiss
from app.hot.recovery import read_aborted, read_index
from app.hot.segments import TRANSACTION_INDEX_SUFFIX, Segment, build_index, walk
from app.hot.unreadable import UnreadableBatch
from app.machine.files import FileSystem, storage_error
from app.records.batch import HEADER_BYTES, MAGIC_V2, BatchHeader, check_stored_batch, parse_header
from app.records.validation import PassedBatches, first_at_or_after, greatest_at_or_after, timestamps_of

T = TypeVar("T")

CURSORS_MAX: Final = 128
"""Remembered end positions of a partition's readers. Other readers search through the index."""

LOOK_BACK_BYTES: Final = 64 * KIB
"""A lookup by time starts so many bytes before its place, or a batch: headers may claim too low timestamps (``may_be_newer``)."""

_WINDOW_BYTES: Final = 4 * KIB
"""Bytes read at once in the search for the bounds of a range."""


class LogReader:
    """Reads the segments of one log. The log owns the reader, and changes the given lists in place."""

    __slots__ = (
        "_bases",
        "_cursors",
        "_directory",
        "_index_interval_bytes",
        "_may_have_holes",
        "_place",
        "_request_checkpoint",
        "_segments",
        "_window",
        "lost",
    )

    def __init__(
        self,
        directory: LogDirectory,
        place: str,
        segments: list[Segment],
        bases: list[int],
        index_interval_bytes: int,
        request_checkpoint: Callable[[], None],
        lost: Sequence[LostRange] = (),
        may_have_holes: bool = False,
    ) -> None:
        """``place`` is the topic and the partition; ``bases`` are the segments' base offsets; ``request_checkpoint`` is called when
        an index was rebuilt; ``may_have_holes``: the log is compacted, so segments may end before the next one begins."""
        self._directory = directory
        self._place = place
        self._segments = segments
        self._bases = bases
        self._index_interval_bytes = index_interval_bytes
        self._request_checkpoint = request_checkpoint
        self.lost = lost
        """Offsets whose segment files are missing. The log changes them."""
        self._may_have_holes = may_have_holes
        self._cursors: dict[int, tuple[Segment, int]] = {}
        self._window: tuple[Segment, int, bytes | bytearray] | None = None

    # --- plans ------------------------------------------------------------------------------------------------------

    async def when_ready(self, plan: Callable[[], T]) -> T:
        """The plan's result. Missing bytes are read in the pool. Raises: as the plan."""
        while True:
            try:
                return plan()
            except PageMiss as miss:
                await miss.fetch(self._directory.pool)

    def now(self, plan: Callable[[], T]) -> T:
        """The plan's result. Missing bytes are read at once, which blocks. Raises: as the plan."""
        while True:
            try:
                return plan()
            except PageMiss as miss:
                miss.fetch_now()

    def plan(self, offset: int, max_bytes: int, end_offset: int, min_one_batch: bool) -> LocalRead:
        """As ``PartitionLog.plan_read``, for an offset that is on this disk and below ``end_offset``."""
        cursor = self._cursors.get(offset)
        start_offset = offset
        if cursor is not None and not cursor[0].deleted and cursor[1] < cursor[0].size_bytes:
            segment, position = cursor
        else:
            segment, position, start_offset = self._find(offset)
        if end_offset >= segment.end_offset:
            bound, bound_offset = segment.size_bytes, segment.end_offset
        else:
            bound, bound_offset = self._bound(segment, end_offset)
        is_full = bound - position > max_bytes
        if is_full:
            bound, bound_offset = self._whole_batches(segment, position, max_bytes, min_one_batch, bound, bound_offset)
        if bound <= position:
            return LocalRead(
                segment.handle, position, 0, Offset(start_offset), Offset(start_offset), self._directory.pool, True
            )
        self.remember(bound_offset, segment, bound)
        return LocalRead(
            segment.handle,
            position,
            bound - position,
            Offset(start_offset),
            Offset(bound_offset),
            self._directory.pool,
            segment is self._segments[-1] and segment.size_bytes - position <= WARM_TAIL_BYTES,
            is_full,
        )

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        cursors = self._cursors
        cursors[offset] = (segment, position)
        if len(cursors) > CURSORS_MAX:
            del cursors[next(iter(cursors))]

    def _find(self, offset: int) -> tuple[Segment, int, int]:
        """Segment, position and base offset of the batch that contains ``offset``, or of the next batch. ``offset`` is in the log.

        Raises: PageMiss; CorruptionError if the log has lost its last batches (compaction always keeps them), or this offset.
        """
        for lost in self.lost:
            if lost.start <= offset < lost.end:
                # No reader may skip it, or none would notice the loss.
                raise CorruptionError(
                    f"Offsets {lost} of {self._place} are lost on this disk: segment files are missing or damaged."
                )
        number = bisect_right(self._bases, offset) - 1
        segment = self._segments[number]
        wanted = offset
        while True:
            # Compacted segments may end before the next one begins.
            while offset >= segment.end_offset or segment.size_bytes == 0:
                number += 1
                if number == len(self._segments):
                    raise CorruptionError(
                        f"The log that ends in {segment.handle.path} has no record batch from {wanted} on."
                    )
                segment = self._segments[number]
                offset = max(offset, segment.base_offset)
            if offset == segment.base_offset:
                return segment, 0, self._header_at(segment, 0).base_offset
            position, base_offset = self.batch_at(segment, offset, is_last=number == len(self._segments) - 1)
            if position < segment.size_bytes:
                return segment, position, base_offset
            offset = segment.end_offset

    def batch_at(self, segment: Segment, offset: int, *, is_last: bool) -> tuple[int, int]:
        """Position and base offset of the first batch that ends past ``offset``, which is below the segment's end.

        ``is_last``: no segment was behind this one. In a hole at the end of another segment of a compacted log, they are the size
        of the segment and the end of its last batch. Raises: PageMiss, CorruptionError.
        """
        index = self.index_of(segment)
        slot = bisect_right(index.offsets, offset - segment.base_offset) - 1
        position = index.positions[slot] if slot >= 0 else 0
        header = self._indexed_header(segment, index, slot) if slot >= 0 else self._header_at(segment, 0)
        while header.end_offset <= offset:
            position += header.size_bytes
            if position == segment.size_bytes and self._may_have_holes and not is_last:
                return position, header.end_offset
            header = self._header_at(segment, position)
        return position, header.base_offset

    def _bound(self, segment: Segment, end_offset: int) -> tuple[int, int]:
        """Position and offset of the end of the batches that are wholly below ``end_offset``."""
        cursor = self._cursors.get(end_offset)
        if cursor is not None and cursor[0] is segment:
            return cursor[1], end_offset
        position, base_offset = self.batch_at(segment, end_offset, is_last=segment is self._segments[-1])
        if base_offset == end_offset:
            self.remember(end_offset, segment, position)
        return position, base_offset

    def _whole_batches(
        self, segment: Segment, position: int, max_bytes: int, min_one_batch: bool, bound: int, bound_offset: int
    ) -> tuple[int, int]:
        """The end of the batches from ``position`` on that fit into ``max_bytes``; at least one batch if ``min_one_batch``."""
        index = self.index_of(segment)
        limit = position + max(max_bytes, 0)
        slot = index.slot_at_most(limit)
        if slot >= 0 and index.positions[slot] > position:
            at = index.positions[slot]
            header = self._indexed_header(segment, index, slot)
        else:
            at = position
            header = self._header_at(segment, at)
        while at < bound and at + header.size_bytes <= limit:
            at += header.size_bytes
            if at >= bound:
                return bound, bound_offset
            header = self._header_at(segment, at)
        if at == position and min_one_batch:
            return at + header.size_bytes, header.end_offset
        return at, header.base_offset

    def _indexed_header(self, segment: Segment, index: SegmentIndex, slot: int) -> BatchHeader:
        """The header that an index entry points to. Raises: PageMiss, also in order to rebuild an index that does not match."""
        try:
            header = self._header_at(segment, index.positions[slot])
        except CorruptionError:
            self._rebuild_index(segment)
        if header.base_offset + header.last_offset_delta != segment.base_offset + index.offsets[slot]:
            self._rebuild_index(segment)
        return header

    def _header_at(self, segment: Segment, position: int) -> BatchHeader:
        """The header at ``position``. Raises: PageMiss; CorruptionError if no whole batch is there."""
        window = self._window
        if window is None or window[0] is not segment or not 0 <= position - window[1] <= len(window[2]) - HEADER_BYTES:
            window = self._window = self._read_window(segment, position)
        header = parse_header(window[2], position - window[1])
        if header.magic != MAGIC_V2 or not HEADER_BYTES <= header.size_bytes <= segment.size_bytes - position:
            raise CorruptionError(f"{segment.handle.path} has no record batch at position {position}.")
        return header

    def _read_window(self, segment: Segment, position: int) -> tuple[Segment, int, bytes | bytearray]:
        length = min(_WINDOW_BYTES, segment.size_bytes - position)
        if length < HEADER_BYTES:
            raise CorruptionError(f"{segment.handle.path} has no record batch at position {position}.")
        handle = segment.handle
        file = handle.file if handle.file is not None else self._directory.descriptors.open(handle)
        handle.touched = True
        buffer = bytearray(length)
        try:
            got = file.preadv_nowait(memoryview(buffer), position)
            if got is None and not file.can_tell_misses and segment.size_bytes - position <= WARM_TAIL_BYTES:
                got = file.pread_into(memoryview(buffer), position)
        except OSError as error:
            raise storage_error(error, f"Cannot read {handle.path}") from error
        if got is not None and got >= HEADER_BYTES:
            return segment, position, buffer[:got]
        fs, path = self._directory.fs, handle.path

        def work() -> object:
            return _read_range(fs, path, position, length)

        def accept(data: object) -> None:
            assert isinstance(data, bytes)
            if len(data) < HEADER_BYTES:
                raise CorruptionError(f"{path} ends at {position + len(data)}, before {position + length}.")
            self._window = (segment, position, data)

        raise PageMiss(segment, work, accept)

    # --- indexes ----------------------------------------------------------------------------------------------------

    def index_of(self, segment: Segment) -> SegmentIndex:
        """The segment's index. Raises: PageMiss if it is not loaded, CorruptionError instead once the segment has left the log."""
        index = segment.index
        if index is None:
            self._miss_index(segment)
        if segment is not self._segments[-1] and segment.index_written:
            self._directory.indexes.used(segment)
        return index

    def _miss_index(self, segment: Segment) -> NoReturn:
        if segment.deleted:
            raise CorruptionError(f"{segment.handle.path} has left the log.")
        fs, interval_bytes, size_bytes = self._directory.fs, self._index_interval_bytes, segment.size_bytes

        def work() -> object:
            return _load_or_build_index(fs, segment, size_bytes, interval_bytes)

        def accept(loaded: object) -> None:
            assert isinstance(loaded, _LoadedIndex)
            if segment.index is None:
                self._take_index(segment, loaded)

        raise PageMiss(segment, work, accept)

    def load_index_now(self, segment: Segment) -> SegmentIndex:
        try:
            loaded = _load_or_build_index(self._directory.fs, segment, segment.size_bytes, self._index_interval_bytes)
        except OSError as error:
            raise storage_error(error, f"Cannot read the indexes of {segment.handle.path}") from error
        self._take_index(segment, loaded)
        return loaded.entries

    def _take_index(self, segment: Segment, loaded: _LoadedIndex) -> None:
        if loaded.from_files:
            segment.load_index_entries(loaded.entries)
            if segment is not self._segments[-1]:
                self._directory.indexes.used(segment)
        else:
            segment.index = loaded.entries
            segment.index_written = segment.times_written = 0
            self._request_checkpoint()

    def _rebuild_index(self, segment: Segment) -> NoReturn:
        """Rebuild an index that does not match its segment from the batches. Raises: PageMiss."""
        fs, interval_bytes = self._directory.fs, self._index_interval_bytes
        self._directory.metrics.problems.value += 1

        def work() -> object:
            # Blocks the loop for an active segment, so that no entry of an append in between is lost; this is rare damage.
            return _build_index(fs, segment, interval_bytes)

        def accept(index: object) -> None:
            assert isinstance(index, SegmentIndex)
            self._directory.indexes.forget(segment)
            segment.index = index
            segment.index_written = segment.times_written = 0
            self._request_checkpoint()

        miss = PageMiss(segment, work, accept)
        if segment is self._segments[-1]:
            miss.fetch_now()
            miss = PageMiss(segment, lambda: None, lambda _: None)
        raise miss

    def aborted_of(self, segment: Segment) -> list[AbortedTransaction]:
        """The segment's aborted transactions. Reads the index at once if necessary. Raises: CorruptionError, StorageUnavailable."""
        if segment.aborted is None:
            try:
                _take_aborted(segment, read_aborted(self._directory.fs, segment))
            except OSError as error:
                raise storage_error(error, f"Cannot read {segment.path(TRANSACTION_INDEX_SUFFIX)}") from error
        assert segment.aborted is not None
        return segment.aborted

    def _aborted_or_miss(self, segment: Segment) -> list[AbortedTransaction]:
        """Like ``aborted_of``. Raises: PageMiss if the index is not loaded."""
        if segment.aborted is None:
            fs = self._directory.fs
            raise PageMiss(segment, lambda: read_aborted(fs, segment), lambda found: _take_aborted(segment, found))
        return segment.aborted

    async def search(
        self, segment: Segment, timestamp: int, log_start_offset: int
    ) -> tuple[TimestampMs, Offset] | None:
        """The first record of a segment that is at least as new as ``timestamp``, and not below the log start."""

        def in_batch(batch: bytes) -> tuple[TimestampMs, Offset] | None:
            return first_at_or_after(batch, timestamp, log_start_offset)

        start = await self._start_of_search(segment, timestamp)
        return await self._search_batches(segment, start, timestamp, log_start_offset, in_batch)

    async def _start_of_search(self, segment: Segment, timestamp: int) -> int:
        """Position of a batch at or before which all records are older than ``timestamp``, as far as headers are right."""
        index = await self.when_ready(lambda: self.index_of(segment))
        return index.position_back(index.position_before(index.offset_before_time(timestamp)), LOOK_BACK_BYTES)

    async def _search_batches(
        self,
        segment: Segment,
        start: int,
        timestamp: int,
        log_start_offset: int,
        in_batch: Callable[[bytes], tuple[TimestampMs, Offset] | None],
    ) -> tuple[TimestampMs, Offset] | None:
        fs, path, size = self._directory.fs, segment.handle.path, segment.size_bytes
        passed: list[UnreadableBatch] = []
        try:
            found = await self._directory.pool.run(
                lambda: _find_record(fs, path, start, size, timestamp, log_start_offset, in_batch, passed)
            )
        except FileNotFoundError:
            # Deleted by retention meanwhile: its records are no longer on this disk.
            return None
        except OSError as error:
            raise storage_error(error, f"Cannot read {path}") from error
        for batch in passed:
            self._directory.unreadable.note(self._place, batch)
        return found

    async def max_timestamp_offset(self, log_start_offset: int) -> tuple[TimestampMs, Offset] | None:
        """See ``PartitionLog.max_timestamp_offset``. If no record has the timestamp of the headers, the whole segment is read."""
        best: tuple[TimestampMs, Offset] | None = None
        for segment in sorted(self._segments, key=lambda one: (-one.max_timestamp, one.base_offset)):
            claimed = segment.max_timestamp
            if claimed < 0 or (best is not None and claimed <= best[0]):
                break
            if segment.end_offset <= log_start_offset or segment.deleted:
                continue
            try:
                found = await self._claimed(segment, claimed, log_start_offset)
                if found is None:
                    found = await self._greatest(segment, -1 if best is None else best[0], log_start_offset)
            except CorruptionError:
                if not segment.handle.deleted:
                    raise
                found = None
            if segment.handle.deleted:
                # Compacted meanwhile: by its name another file may have been read.
                return await self.max_timestamp_offset(log_start_offset)
            best = found if found is not None else best
        return best

    async def _claimed(
        self, segment: Segment, claimed: int, log_start_offset: int
    ) -> tuple[TimestampMs, Offset] | None:
        """A record with the greatest timestamp of a segment, which its headers say is ``claimed``; None if it is less."""

        def in_batch(batch: bytes) -> tuple[TimestampMs, Offset] | None:
            return greatest_at_or_after(batch, claimed, log_start_offset)

        start = await self._start_of_search(segment, claimed)
        return await self._search_batches(segment, start, claimed, log_start_offset, in_batch)

    async def _greatest(self, segment: Segment, above: int, log_start_offset: int) -> tuple[TimestampMs, Offset] | None:
        """The first record with the greatest timestamp of a segment, if that is greater than ``above``."""
        best: list[tuple[TimestampMs, Offset]] = []

        def in_batch(batch: bytes) -> None:
            for found in timestamps_of(batch, log_start_offset):
                if found[0] > (best[0][0] if best else above):
                    best[:] = [found]

        await self._search_batches(segment, 0, above + 1, log_start_offset, in_batch)
        return best[0] if best else None

    async def offset_for_timestamp(self, timestamp: int, log_start_offset: int) -> tuple[TimestampMs, Offset] | None:
        """As ``PartitionLog.offset_for_timestamp``."""
        segments = list(self._segments)
        following = [*segments[1:], None]
        for segment, after in zip(segments, following, strict=True):
            if segment.end_offset <= log_start_offset or segment.deleted or segment.size_bytes == 0:
                continue
            # The last batches of a segment may be newer than their headers say, if those of the next one are.
            if (
                segment.max_timestamp < timestamp
                and after is not None
                and after.max_timestamp < timestamp
                and after.size_bytes
            ):
                continue
            try:
                found = await self.search(segment, timestamp, log_start_offset)
            except CorruptionError:
                if not segment.handle.deleted:
                    raise
                found = None
            if segment.handle.deleted:
                # Compacted meanwhile: by its name another file may have been read.
                return await self.offset_for_timestamp(timestamp, log_start_offset)
            if found is not None:
                return found
        return None

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """As ``PartitionLog.aborted_transactions``."""
        found: list[AbortedTransaction] = []
        for segment in self._segments[max(0, bisect_right(self._bases, start_offset) - 1) :]:
            for entry in self._aborted_or_miss(segment):
                if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return found
        return found

    async def aborted_transactions_when_ready(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """As ``PartitionLog.aborted_transactions_when_ready``."""
        return await self.when_ready(lambda: self.aborted_transactions(start_offset, end_offset))


def _take_aborted(segment: Segment, found: object) -> None:
    """Keep the transaction index that was read, unless it was read meanwhile and may have new entries."""
    assert isinstance(found, list)
    if segment.aborted is None:
        segment.aborted = found
        segment.aborted_written = len(found)


class _LoadedIndex(NamedTuple):
    entries: SegmentIndex
    from_files: bool


def _load_or_build_index(fs: FileSystem, segment: Segment, size_bytes: int, interval_bytes: int) -> _LoadedIndex:
    """Raises: OSError, CorruptionError."""
    if size_bytes == 0:
        return _LoadedIndex(SegmentIndex(), False)
    try:
        return _LoadedIndex(read_index(fs, segment), True)
    except (FileNotFoundError, CorruptionError):
        return _LoadedIndex(_build_index(fs, segment, interval_bytes), False)


def _build_index(fs: FileSystem, segment: Segment, interval_bytes: int) -> SegmentIndex:
    file = fs.open(segment.handle.path, read_only=True)
    try:
        return build_index(segment, file, interval_bytes)
    finally:
        file.close()


def _read_range(fs: FileSystem, path: str, position: int, length: int) -> bytes:
    file = fs.open(path, read_only=True)
    try:
        return file.pread(length, position)
    finally:
        file.close()


def _find_record(
    fs: FileSystem,
    path: str,
    start: int,
    size: int,
    timestamp: int,
    log_start_offset: int,
    in_batch: Callable[[bytes], tuple[TimestampMs, Offset] | None],
    passed: list[UnreadableBatch],
) -> tuple[TimestampMs, Offset] | None:
    """The first result of ``in_batch`` for the batches from position ``start`` on. Only batches are read whose header has a
    time of at least ``timestamp`` and that reach the log start, or that are ``PassedBatches``.

    Batches with a right checksum whose records cannot be decoded are put into ``passed``. Raises: CorruptionError, OSError.
    """
    file = fs.open(path, read_only=True)

    def look_into(batches: list[tuple[int, BatchHeader]]) -> tuple[TimestampMs, Offset] | None:
        for position, header in batches:
            batch = file.pread(header.size_bytes, position)
            try:
                found = in_batch(batch)
            except CorruptionError as error:
                check_stored_batch(memoryview(batch))  # raises if the disk has changed it
                passed.append(UnreadableBatch(header.base_offset, header.end_offset, str(error)))
                continue
            if found is not None:
                return found
        return None

    doubtful = PassedBatches()
    try:
        for position, header, _ in walk(file, start, size, verify=False):
            if header.end_offset <= log_start_offset:
                continue
            if header.max_timestamp < timestamp:
                doubtful.note(position, header)
                continue
            found = look_into([*doubtful.take(), (position, header)])
            if found is not None:
                return found
        return look_into(doubtful.take())
    finally:
        file.close()
