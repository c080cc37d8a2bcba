"""Removal of records from one log: at its start by retention, and at its end by a truncation.

A truncation notes durably that recovery must not trust the records from the cut on. Then it drops them, and reads the rest of the
log from the files again.

Tests: ``tests/hot/test_replicas.py``, ``tests/hot/test_model.py``, ``tests/hot/test_cleaning_ended.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from app.core.errors import ConflictError, CorruptionError
from app.core.units import Offset, TimestampMs
from app.hot.acceptance import LogWork
from app.hot.checkpoints import EpochStart
from app.hot.epochs import LeaderEpochs
from app.hot.log_offsets import LogOffsets
from app.hot.missing import without_ended
from app.hot.producers import ProducerStates, parse_snapshot
from app.hot.recovery import FOR_EVER, LoadedLog, create_file, load_log, new_segment
from app.hot.segments import TRANSACTION_INDEX_SUFFIX, Segment, SegmentView
from app.machine.files import storage_error


class TruncatedLog(LogOffsets):
    """A log, as far as records are removed from it."""

    __slots__ = ()

    # --- at its start -----------------------------------------------------------------------------------------------

    def delete_local_before(self, offset: int) -> list[SegmentView]:
        """Delete rolled segments that end at or before ``offset`` from this disk, oldest first, up to the first held segment.

        The log start offset stays. Readers at work finish. The caller has made sure that the records are on the tier or no
        longer wanted (INV-4). Returns the dropped segments; the bytes are freed in the background.

        Raises: StorageFull (nothing was dropped), StorageUnavailable, also once the log is closed.
        """
        self._acceptance.check(LogWork.ACCESS)  # a topic made again under the same name has the same paths
        count = 0
        for segment in self._segments[:-1]:
            if segment.end_offset > offset or segment.holds:
                break
            count += 1
        if count == 0:
            return []
        first = self._bases[count]
        dropped = self._files.views(count)
        try:
            self._snapshots.write_pending(first)
            self._files.discard_oldest(count)
            self.lost = self._reader.lost = without_ended(self.lost, first)
            self._snapshots.delete_below(first)
        except OSError as error:
            raise storage_error(error, f"Cannot delete segments of {self.topic}-{self.partition}") from error
        return dropped

    def advance_log_start(self, offset: int) -> None:
        """Raise the log start offset (DeleteRecords, retention); local segments that end at or below it go.

        Lower offsets change nothing. The caller has made the new start durable first.

        Raises: RequestRejected OFFSET_OUT_OF_RANGE past the high watermark; StorageUnavailable, also once the log is closed.
        """
        self._acceptance.check(LogWork.ACCESS)
        if offset > self._high_watermark:
            raise self._out_of_range(offset)
        if offset <= self._log_start_offset:
            return
        self._log_start_offset = Offset(offset)
        self.start_is_assumed = False
        self._epochs.truncate_from_start(Offset(offset))
        if self._epochs.dirty:
            self._durability.write_epochs()
        self.delete_local_before(offset)
        self._notify()

    def restore_log_start(self, offset: int) -> None:
        """Set the log start offset to the manifest's, even if it is lower. Raises: RequestRejected past the log end."""
        if offset > self._end_offset:
            raise self._out_of_range(offset)
        self.start_is_assumed = False
        if offset >= self._log_start_offset:
            self._high_watermark = max(self._high_watermark, offset)
            self.advance_log_start(offset)
        else:
            self._log_start_offset = Offset(offset)

    # --- at its end -------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, given_up: bool = False) -> bool:
        """Delete all records at or past ``offset``, in whole batches. Blocks. For followers and recovery, not for a leader.

        Reads at work finish. A planned read that has not begun raises StorageUnavailable; its reader plans again. Returns: False if
        there was nothing to drop.

        Raises: CorruptionError below the high watermark, unless the log commits alone or the records are ``given_up``: they were
        acknowledged, and the partition has to go offline (ADR 0024, A3); ConflictError while a sync or a swap is under way;
        StorageUnavailable. Compactions, and copies of the records cut away, have ended in each case but the first.
        """
        if self._acceptance.guarded:
            self._check(LogWork.ACCESS)
        if offset >= self._end_offset:
            return False
        # Where segment files are missing, the log ends before them.
        offset = next((one.start for one in self.lost if one.start <= offset <= one.end), offset)
        if offset < self._high_watermark and not (self._commits_alone or given_up):
            raise CorruptionError(
                f"{self.topic}-{self.partition} is to be cut back to {offset}, but all below {self._high_watermark} is committed."
            )
        self._end_work_above(offset)
        undecided = self._producers.undecided
        if offset < self._segments[0].base_offset:
            epochs = self._epochs.entries()
            self.truncate_fully_and_start_at(offset, epochs, log_start_offset=min(offset, self._log_start_offset))
            return True
        try:
            # The cut is at a batch's edge at or below the offset; the segment's base is surely no higher.
            self._lower_recovery_point(self._bases[max(0, bisect_right(self._bases, offset) - 1)])
            newest = self._segments[-1]
            while len(self._segments) > 1 and self._segments[-1].base_offset >= offset:
                self._files.discard_newest()
            segment = self._segments[-1]
            if segment.end_offset > offset:
                self._truncate_segment(segment, offset, is_last=segment is newest)
            self._snapshots.delete_above(segment.end_offset)
            self._epochs.truncate_from_end(Offset(segment.end_offset))
            self._durability.write_epochs()
            # A dropped segment that came back after a loss of power could seem to continue later appends.
            self._directory.fs.fsync_dir(self.path)
            self._reload()
        except OSError as error:
            failure = storage_error(error, f"Cannot truncate {self.path}")
            self._directory.go_offline(str(failure))
            raise failure from error
        self._high_watermark = min(self._high_watermark, self._end_offset)
        self._producers.leave_undecided(undecided, self._end_offset)
        self._producers.decide_below(self._high_watermark)
        self._notify_all()
        return True

    def truncate_fully_and_start_at(
        self,
        offset: int,
        leader_epochs: Iterable[EpochStart] = (),
        producer_snapshot: bytes | None = None,
        *,
        log_start_offset: int | None = None,
    ) -> None:
        """Delete all local records and continue, empty, at ``offset``: local files contradict the manifest, or the replica is new.

        ``leader_epochs`` is the lineage below ``offset``; ``producer_snapshot`` the producer state as of it (Kafka's format);
        ``log_start_offset`` the log's start, if that is on the tier. Blocks for a few small files.

        Raises: ConflictError while a sync or a swap is under way; CorruptionError (snapshot), StorageUnavailable.
        """
        if self._acceptance.guarded:
            self._check(LogWork.ACCESS)
        rows = parse_snapshot(producer_snapshot) if producer_snapshot is not None else []
        self._end_work_above(-1)
        fs = self._directory.fs
        if not self.has_files:
            self._create_files()
        try:
            self._lower_recovery_point(0)
            for segment in self._segments:
                self._files.discard(segment)
            self._snapshots.delete_above(-1)
            segment = new_segment(self._directory.descriptors, self.path, Offset(offset))
            create_file(fs, segment.handle.path)
            producers = ProducerStates()
            producers.load_rows(rows)
            if rows:
                self._snapshots.write(offset, rows)
            epochs = LeaderEpochs(entry for entry in leader_epochs if entry.start_offset < offset)
            self._adopt_anew(
                LoadedLog(
                    segments=[segment],
                    epochs=epochs,
                    producers=producers,
                    log_start_offset=Offset(offset if log_start_offset is None else log_start_offset),
                    recovery_point=Offset(offset),
                )
            )
            self.start_is_assumed = False
            self._durability.write_epochs()
            fs.fsync_dir(self.path)
        except OSError as error:
            failure = storage_error(error, f"Cannot empty {self.path}")
            self._directory.go_offline(str(failure))
            raise failure from error
        self._high_watermark = offset
        self._notify_all()

    def _end_work_above(self, offset: int) -> None:
        """End every compaction, and all copies of segments with records at or above ``offset``.

        Raises: ConflictError while a sync or a swap is under way; no other compaction begins a swap before it is over.
        """
        if self._cleaning is not None:
            self._cleaning.end()
        if self.busy:
            raise ConflictError(f"{self.topic}-{self.partition} is being synced; try again.")
        self._files.end_holds_above(offset)

    def _lower_recovery_point(self, offset: int) -> None:
        """Durably note that recovery must not trust records from ``offset`` on. Called before records are dropped."""
        if self.cleaned_end_offset is not None:
            self.cleaned_end_offset = min(self.cleaned_end_offset, Offset(offset))
        self._durability.lower_recovery_point(offset)

    def _truncate_segment(self, segment: Segment, offset: int, *, is_last: bool) -> None:
        position, end_offset = 0, int(segment.base_offset)
        if offset > segment.base_offset and segment.size_bytes:
            position, end_offset = self._reader.now(lambda: self._reader.batch_at(segment, offset, is_last=is_last))
        file = self._directory.descriptors.open(segment.handle)
        file.truncate(position)
        file.fdatasync()
        index = self._reader.now(lambda: self._reader.index_of(segment))
        index.truncate(end_offset - segment.base_offset, position)
        segment.size_bytes = position
        segment.end_offset = end_offset
        # The loader reads it all again; the index files spare it a walk over the whole segment.
        self._files.write_indexes(segment, index)
        aborted = [entry for entry in self._reader.aborted_of(segment) if entry.last_offset < end_offset]
        if aborted or self._directory.fs.exists(segment.path(TRANSACTION_INDEX_SUFFIX)):
            self._files.write_aborted(segment, aborted)

    def _reload(self) -> None:
        """Read everything from the files again, as after a clean stop."""
        synced_bytes = {segment.base_offset: segment.synced_bytes for segment in self._segments}
        last_append_ms = {segment.base_offset: segment.last_append_ms for segment in self._segments}
        recovery_point, first_append_ms = self._durability.recovery_point, self._segments[-1].first_append_ms
        for segment in self._segments:
            index = segment.index
            if index is not None and segment.size_bytes and segment.index_written < len(index.offsets):
                self._files.write_indexes(segment, index)
            if segment.aborted and segment.aborted_written < len(segment.aborted):
                self._files.write_aborted(segment, segment.aborted)
        self._files.close()
        loaded = load_log(
            self._directory.fs,
            self._directory.descriptors,
            self.path,
            config=self.config,
            recovery_point=FOR_EVER,
            log_start_offset=self._log_start_offset,
            now_ms=TimestampMs(first_append_ms),
            cleaned=self.cleaned_end_offset is not None,
        )
        for segment in loaded.segments:
            segment.synced_bytes = min(segment.size_bytes, synced_bytes.get(segment.base_offset, 0))
            if segment.size_bytes:
                segment.last_append_ms = last_append_ms.get(segment.base_offset, segment.last_append_ms)
        loaded.recovery_point = Offset(min(recovery_point, loaded.end_offset))
        before = self._segments
        self._adopt_anew(loaded)
        self._files.keep_holds(before)
        self.request_checkpoint()
