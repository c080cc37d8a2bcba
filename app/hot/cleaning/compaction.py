"""One round of compaction over one log: two passes over its files. Blocks; runs on a pool thread or in the cleaner process.

1. ``index``: put keys of the dirty part into a map from key to newest offset, until the map is full.
2. ``write``, for each group of segments from the start of the log on: write one new segment without the records that have a newer
   record in the map.

Some records and batches stay although they are not the newest (Kafka's rules):

- all records above the end of the map,
- tombstones, and markers of transactions without other records, until their delete horizon (KIP-534),
- the last batch of each producer, without records, so that sequences continue (KAFKA-5793),
- the last batch of each written segment, without records, so that the segment itself shows its end.

Batches keep their offsets, epochs and producer fields. Before use, every batch is checked against its CRC.

Tests: ``tests/hot/test_cleaner.py``, ``tests/hot/test_cleaning_model.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from mmap import PAGESIZE
from typing import Final

from crc32c import crc32c

from app.core.errors import ConflictError, CorruptionError, clause
from app.core.limits import KIB, MIB, REQUEST_BYTES_MAX
from app.core.units import Offset
from app.hot.cleaning.engine import EMPTIED_KEPT, RECORDS_DROPPED, SLOT_BYTES, TRANSACTION_GONE, Engine, Scanned
from app.hot.cleaning.job import CleaningJob, Indexed, SegmentFile
from app.hot.cleaning.transactions import CleanedTransactions
from app.hot.indexes import AbortedTransaction, SegmentIndex, encode_aborted
from app.hot.segments import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    CleanedSegment,
    file_name,
)
from app.hot.swapping import CLEANED_SUFFIX
from app.machine.files import File, FileSystem, unlink_quietly, write_whole
from app.records.batch import HEADER_BYTES, BatchHeader, parse_header
from app.records.control import EndTransactionMarker, parse_marker

WINDOW_BYTES_MIN: Final = 64 * KIB
"""Minimum bytes read and written at once, even if ``log.cleaner.io.buffer.size`` is smaller. A larger batch takes more."""
WRITE_BACK_BYTES: Final = 2 * MIB
"""Bytes sent to the disk at a time, while earlier bytes are still on their way. A commit of the file system's journal waits for
these bytes, and a write to any file then waits for the commit."""
PIECE_BYTES: Final = 64 * KIB
"""Bytes written in one call. The kernel finishes a call before another thread gets the core. New pages can make the call long:
up to 1.8 ms for 256 KiB on a virtual machine that gets its memory from its host on demand."""
KEYS_MIN: Final = 1024


class Compaction:
    """One round. Only ``abandon`` may be called from another thread."""

    def __init__(self, job: CleaningJob, fs: FileSystem, engine: Engine, throttle: Callable[[int], None]) -> None:
        """``throttle`` gets the number of bytes read and written, and waits if there were too many."""
        self._job = job
        self._fs = fs
        self._engine = engine
        self._throttle = throttle
        self._abandoned = False
        self._aborted = [AbortedTransaction._make(entry) for entry in job.aborted]
        self._transactions = CleanedTransactions(self._aborted)
        self._bytes_read = 0
        self._window_bytes = max(WINDOW_BYTES_MIN, job.buffer_bytes_max // 2)

    def abandon(self) -> None:
        """Make the running pass end soon with ConflictError. May be called from any thread."""
        self._abandoned = True

    # --- first pass -------------------------------------------------------------------------------------------------

    def index(self) -> Indexed:
        """Fill the map. Raises: CorruptionError, OSError, ConflictError."""
        job, engine = self._job, self._engine
        room = max(KEYS_MIN, int(job.map_bytes_max * job.map_load_factor) // SLOT_BYTES)
        engine.new_map(
            min(room, max(KEYS_MIN, job.dirty_end - job.dirty_start)),
            job.dirty_start,
            job.hash_key,
            job.map_load_factor,
            self._window_bytes,
        )
        # Of those whose markers come before the first segment that is shown, the end would never be seen.
        first = job.segments[0].base_offset
        transactions = CleanedTransactions(entry for entry in self._aborted if entry.last_offset >= first)
        self._bytes_read = 0
        for segment in job.segments:
            for window, scanned, _ in self._windows(segment):
                skipped = bytearray(scanned.batches)
                for number in scanned.marked:
                    header = parse_header(window, engine.position(number))
                    if header.is_control:
                        transactions.outlived(header, _marker(window, engine.position(number), header))
                        skipped[number] = 1
                    else:
                        skipped[number] = transactions.is_aborted(header)
                if not engine.index(skipped, job.dirty_start):
                    return Indexed(engine.latest_offset + 1, engine.keys, self._bytes_read)
        return Indexed(job.dirty_end, engine.keys, self._bytes_read)

    # --- second pass ------------------------------------------------------------------------------------------------

    def write(self, group: Sequence[SegmentFile]) -> CleanedSegment:
        """Write the next group as one segment, durably, under names that end in ``.cleaned``.

        Groups come in order, from the oldest segment of the log on.

        Raises: CorruptionError, OSError, ConflictError; then no file is left.
        """
        base_offset = group[0].base_offset
        try:
            return self._write(base_offset, group)
        except BaseException:
            for suffix in SEGMENT_SUFFIXES:
                unlink_quietly(self._fs, self._path(base_offset, suffix, CLEANED_SUFFIX))
            raise

    def _write(self, base_offset: int, group: Sequence[SegmentFile]) -> CleanedSegment:
        job, engine = self._job, self._engine
        seen, kept = engine.records_seen, engine.records_kept
        self._bytes_read = 0
        self._transactions.retained.clear()
        for suffix in SEGMENT_SUFFIXES:
            unlink_quietly(self._fs, self._path(base_offset, suffix, CLEANED_SUFFIX))
        output = _Output(self._fs, self._path(base_offset, LOG_SUFFIX, CLEANED_SUFFIX), self._throttle)
        read_crc = 0
        try:
            engine.begin_segment(base_offset, job.index_interval_bytes)
            for segment in group:
                for window, scanned, last in self._windows(segment):
                    actions = self._decide(window, scanned)
                    if last and segment is group[-1]:
                        actions[scanned.batches - 1] |= EMPTIED_KEPT
                    engine.filter(
                        actions, job.producer_ends, job.now_ms, job.now_ms + job.delete_retention_ms, output.write
                    )
                    read_crc = crc32c(memoryview(window)[: scanned.size_bytes], read_crc)
            total = engine.end_segment()
            retained = sorted(self._transactions.retained, key=lambda entry: entry.last_offset)
            unchanged = len(group) == 1 and output.size_bytes == group[0].size_bytes and output.crc == read_crc
            if not unchanged:
                index = total.entries
                if total.max_timestamp >= 0:
                    index.add_time(total.max_timestamp, total.max_timestamp_offset - base_offset)
                self._make_durable(base_offset, output.file, index, retained)
        finally:
            output.file.close()
        if unchanged:
            unlink_quietly(self._fs, self._path(base_offset, LOG_SUFFIX, CLEANED_SUFFIX))
        return CleanedSegment(
            base_offset=base_offset,
            size_bytes=output.size_bytes,
            max_timestamp=total.max_timestamp,
            max_timestamp_offset=total.max_timestamp_offset,
            rolling_timestamp=output.rolling_timestamp,
            bytes_since_index_entry=total.bytes_since_index_entry,
            has_aborted=bool(retained),
            unchanged=unchanged,
            bytes_read=self._bytes_read,
            records_read=engine.records_seen - seen,
            records_kept=engine.records_kept - kept,
        )

    def _decide(self, window: bytearray, scanned: Scanned) -> bytearray:
        """The fate of the batches of a window, as far as it does not depend on their records."""
        actions = bytearray(scanned.batches)
        for number in scanned.marked:
            position = self._engine.position(number)
            header = parse_header(window, position)
            if not header.is_control:
                if self._transactions.is_aborted(header):
                    actions[number] = RECORDS_DROPPED
                continue
            action = 0
            if self._transactions.outlived(header, _marker(window, position, header)):
                action = TRANSACTION_GONE
                if header.has_delete_horizon and header.base_timestamp <= self._job.now_ms:
                    action |= RECORDS_DROPPED
            # Without a data batch the producer's epoch is known from its marker alone.
            if self._job.producer_epochs.get(header.producer_id) == header.producer_epoch:
                action |= EMPTIED_KEPT
            actions[number] = action
        return actions

    def _make_durable(
        self, base_offset: int, log: File, index: SegmentIndex, aborted: list[AbortedTransaction]
    ) -> None:
        """Write the side files of a segment, and sync all of its files.

        The disk has all of them before the first is synced. So the first sync waits for a journal commit that also covers the other
        files.
        """
        data = {INDEX_SUFFIX: index.encode_offsets(), TIME_INDEX_SUFFIX: index.encode_times()}
        if aborted:
            data[TRANSACTION_INDEX_SUFFIX] = b"".join(map(encode_aborted, aborted))
        files = [log]
        try:
            for suffix, content in data.items():
                files.append(self._fs.open(self._path(base_offset, suffix, CLEANED_SUFFIX), create=True))
                write_whole(files[-1], content, 0)
            for file in files:
                file.start_write_back(0, 0)
            for file in files:
                file.finish_write_back(0, 0)
            for file in files:
                file.fdatasync()
        finally:
            for file in files[1:]:
                file.close()

    # --- files ------------------------------------------------------------------------------------------------------

    def _path(self, base_offset: int, suffix: str, more: str = "") -> str:
        return f"{self._job.directory}/{file_name(Offset(base_offset), suffix)}{more}"

    def _windows(self, segment: SegmentFile) -> Iterator[tuple[bytearray, Scanned, bool]]:
        """The scanned batches of a segment, window by window, and whether a window is the last.

        Raises: CorruptionError, OSError, ConflictError.
        """
        path = self._path(segment.base_offset, LOG_SUFFIX)
        file = self._fs.open(path, read_only=True)
        window = bytearray(self._window_bytes)
        position, filled, next_offset = 0, 0, segment.base_offset
        try:
            while position < segment.size_bytes:
                if self._abandoned:
                    raise ConflictError(f"The compaction of {self._job.directory} was told to stop.")
                wanted = min(len(window), segment.size_bytes - position)
                if filled < wanted:
                    got = file.pread_into(memoryview(window)[filled:wanted], position + filled)
                    self._bytes_read += got
                    self._throttle(got)
                    filled += got
                    if filled < wanted:
                        raise CorruptionError(f"{path} ends at {position + filled}, before {segment.size_bytes}.")
                try:
                    scanned = self._engine.scan(window, filled, next_offset, segment.end_offset)
                except CorruptionError as error:
                    raise CorruptionError(f"{path}, from position {position} on: {clause(error)}.") from None
                if scanned.batches == 0:
                    window = self._grown(window, filled, path, position)
                    continue
                yield window, scanned, position + scanned.size_bytes == segment.size_bytes
                next_offset = scanned.next_offset
                position += scanned.size_bytes
                filled -= scanned.size_bytes
                window[:filled] = window[scanned.size_bytes : scanned.size_bytes + filled]
        finally:
            file.close()

    @staticmethod
    def _grown(window: bytearray, filled: int, path: str, position: int) -> bytearray:
        """A larger window for the batch at its start, which does not fit."""
        size = parse_header(window).size_bytes if filled >= HEADER_BYTES else 0
        if not len(window) < size <= REQUEST_BYTES_MAX:
            raise CorruptionError(f"{path} has no whole record batch at position {position}.")
        larger = bytearray(size)
        larger[:filled] = memoryview(window)[:filled]
        return larger


class _Output:
    """The ``.log.cleaned`` file while it is written."""

    def __init__(self, fs: FileSystem, path: str, throttle: Callable[[int], None]) -> None:
        self.file: File = fs.open(path, create=True)
        self._throttle = throttle
        self._taken_bytes = 0
        """Bytes of the file that the disk has."""
        self._sent_bytes = 0
        self.crc = 0
        """CRC-32C of all written bytes."""
        self.size_bytes = 0
        self.rolling_timestamp = -1

    def write(self, piece: memoryview) -> None:
        for start in range(0, len(piece), PIECE_BYTES):
            write_whole(self.file, piece[start : start + PIECE_BYTES], self.size_bytes + start)
        if self.size_bytes == 0:
            self.rolling_timestamp = parse_header(piece).max_timestamp
        self.size_bytes += len(piece)
        self.crc = crc32c(piece, self.crc)
        self._throttle(len(piece))
        if self.size_bytes - self._sent_bytes >= WRITE_BACK_BYTES:
            self._write_back()

    def _write_back(self) -> None:
        """Send written bytes to the disk, after it has taken the bytes that were sent before."""
        if self._sent_bytes:
            self.file.finish_write_back(self._taken_bytes, self._sent_bytes - self._taken_bytes)
        self._taken_bytes = self._sent_bytes
        # The page that is written to next would go twice.
        self._sent_bytes = self.size_bytes // PAGESIZE * PAGESIZE
        self.file.start_write_back(self._taken_bytes, self._sent_bytes - self._taken_bytes)


def _marker(window: bytearray, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    if header.record_count == 0:
        return None
    return parse_marker(memoryview(window)[position : position + header.size_bytes])
