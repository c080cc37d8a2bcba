"""The log of one partition on the local disk.

All methods that change state are synchronous and belong to the event loop. There is no await between a check and the write that
relies on it, so no lock is needed. Work that may wait for the disk (syncs, cold reads, searches by time) is asynchronous and runs
in the pool.

This is the public face. ``log_offsets`` has the offsets, their order and the parts of a log; ``appending`` the appends;
``truncating`` the removal of records; ``acceptance`` decides which work a log accepts.

Tests: ``tests/hot/test_append.py``, ``tests/hot/test_durability.py``, ``tests/hot/test_reads.py``, ``tests/hot/test_replicas.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from app.configs import Durability, TopicConfig
from app.core.errors import ConflictError, ErrorCode, FirnError, RequestRejected, StorageUnavailable
from app.core.units import LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId
from app.hot.acceptance import LogWork
from app.hot.appending import AppendedLog, AppendResult, PreparationNeeded
from app.hot.checkpoints import EpochStart
from app.hot.directory import LogDirectory
from app.hot.indexes import AbortedTransaction
from app.hot.journal import Journal, JournaledEnd
from app.hot.producers import ProducerStates, encode_snapshot
from app.hot.reads import LocalRead
from app.hot.recovery import LoadedLog
from app.hot.segment_holds import LogCleaning
from app.hot.segments import CleanedSegment, RolledSegment, Segment, SegmentHold, SegmentView
from app.hot.state_file import LogState, ProducerState
from app.hot.truncating import TruncatedLog

__all__ = ["AppendResult", "PartitionLog", "PreparationNeeded"]


class PartitionLog(AppendedLog, TruncatedLog):
    """The local log of one partition that this broker leads or follows."""

    __slots__ = ()

    def __init__(
        self,
        directory: LogDirectory,
        path: str,
        topic: str,
        partition: PartitionIndex,
        topic_id: TopicId,
        config: TopicConfig,
        loaded: LoadedLog,
        *,
        new: bool = False,
        has_files: bool = True,
    ) -> None:
        """``new``: the name of the partition's directory may not be durable yet. ``has_files=False``: the first append makes the
        directory and the files."""
        super().__init__(directory, path, topic, partition, topic_id, config, loaded, new=new, has_files=has_files)
        self._set_limits(config)
        if self._epochs.latest > 0:
            self.leader_epoch = self._epochs.latest
        self._high_watermark = self._end_offset
        if not self._memory:
            durable_end = max(self._durability.synced_end, self._durability.recovery_point)
            self._high_watermark = max(durable_end, self._segments[0].base_offset)
        self._producers.decide_below(self._high_watermark)

    # --- settings and leadership ------------------------------------------------------------------------------------

    def update_config(self, config: TopicConfig) -> None:
        """Apply changed settings of the topic. Another cleanup policy ends a compaction under way."""
        if self._cleaning is not None and config.cleanup_policy != self.config.cleanup_policy:
            self._cleaning.end()
        self._follow(config)
        self._writer.update_config(config)

    def _follow(self, config: TopicConfig) -> None:
        self.config = config
        self._memory = config.firn_durability is Durability.MEMORY
        self._set_limits(config)
        self._set_terms()
        if self._commits_at_append:
            self.commit(self._end_offset)
        elif self._memory and self.on_stored is not None:
            self.on_stored()  # records that waited for a sync are stored now

    def forget_short_ways(self) -> None:
        """Have each producer served the general way next time: knowledge from earlier appends ends."""
        self._set_terms()

    def end_waits(self, error: FirnError) -> None:
        """Give ``error`` to the waiters of the journal, and have all other waiters look again. Nothing else changes."""
        if self._acceptance.journaled is not None:
            self._acceptance.journaled.end_waits(error)
        self._notify_all()

    def commit_alone(self, alone: bool) -> None:
        """Let the high watermark follow the stored end, or (False) rise by ``commit`` alone."""
        if alone != self._commits_alone:
            self._commits_alone = alone
            self._set_terms()
        if alone:
            self._assumes_committed = False  # it is so: this replica decides alone
            self.commit(self.stored_end_offset)

    def trust_high_watermark(self, offset: int) -> None:
        """Take ``offset``, bounded by the records on this disk, for the high watermark of a log that was just opened.

        It may be lower than what opening assumed: the log has other replicas, so records stored here need not be committed
        (ADR 0024, A4). After the first call the high watermark only rises.
        """
        assumed, lowers = self._high_watermark, self._assumes_committed
        self._assumes_committed = False
        offset = min(max(offset, self.local_log_start_offset), self._end_offset)
        if lowers and offset < assumed:
            self._high_watermark = offset
            self._producers.doubt(self._log_start_offset, assumed)
        else:
            self.commit(offset)

    def become_leader(self, epoch: LeaderEpoch) -> None:
        """Write records of ``epoch`` from now on. The epoch begins at the log end, even if no record follows (KIP-101)."""
        self.leader_epoch = epoch
        self._acceptance.lead()
        self._epochs.assign(epoch, Offset(self._end_offset))
        self._noted_epoch = epoch

    def begin_journal(self, journal: Journal) -> None:
        """From now on, until ``end_journal`` or ``resign``, records count as stored when ``journal`` has them (ADR 0037, J5).

        Everything below the log end counts as stored already, and is committed (J29).
        """
        self._acceptance.begin_journal(JournaledEnd(journal, self._end_offset))
        self._set_terms()
        self.commit(self._end_offset)

    def leave_journal(self, error: FirnError) -> None:
        """From now on records count as stored by the topic's other durability. Everything is stored by both (J41); should anybody
        still wait, it gets ``error``."""
        journaled = self._acceptance.journaled
        if journaled is not None:
            journaled.fail(error)
            self._acceptance.leave_journal()
            self._set_terms()
            if self._commits_alone:
                self.commit(self.stored_end_offset)

    def end_journal(self, error: FirnError) -> None:
        """The journal will no longer report how far it has stored the records. Appends and waiters get ``error``."""
        if self._acceptance.journaled is not None:
            self._acceptance.journaled.fail(error)
            self._acceptance.resign()

    def note_journaled(self, offset_end: int) -> None:
        """The journal has stored all records below ``offset_end`` that were appended in this leadership."""
        journaled = self._acceptance.journaled
        if journaled is not None and offset_end > journaled.end:
            if self._commits_alone:
                self.commit(offset_end)
            journaled.reached(offset_end)
            if not self._commits_alone and self.on_stored is not None:
                self.on_stored()

    def resign(self) -> None:
        """Refuse appends of a leader until ``become_leader``. All waiters are called, because their records may never come."""
        journaled = self._acceptance.journaled
        if journaled is not None:
            journaled.fail(RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self!r} is led by another broker."))
            self._acceptance.leave_journal()
            self._set_terms()
        self._acceptance.resign()
        self._forget_empty_epochs()
        self._notify_all()

    # --- syncs by the clock -----------------------------------------------------------------------------------------

    def settle_if_idle(self, now_ms: int, idle_ms: int) -> bool:
        """Have the active segment synced soon if its last append is ``idle_ms`` old, so that its file can be closed.

        Returns: whether a sync was asked for.
        """
        segment = self._writer.segment
        if not segment.handle.pinned or now_ms - segment.last_append_ms < idle_ms or self.offline_error is not None:
            return False
        self._durability.request_checkpoint()
        return True

    def maybe_flush_by_time(self, now_ms: int) -> None:
        """Request a sync if ``flush.ms`` has passed since the first unsynced append."""
        self._durability.request_if_old(self._end_offset, now_ms, self.config.flush_ms)

    def unsynced_segments(self) -> list[Segment]:
        """Segments with bytes that no sync has covered, oldest first."""
        return self._files.unsynced()

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> LocalRead:
        """Like ``plan_read``, but an index or header that is not in memory is read at once: a few KiB of blocking I/O."""
        return self._reader.now(
            lambda: self.plan_read(offset, max_bytes, end_offset=end_offset, min_one_batch=min_one_batch)
        )

    async def read_when_ready(
        self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True
    ) -> LocalRead:
        """Like ``plan_read``, but a missing index or header is read in the pool."""
        return await self._reader.when_ready(
            lambda: self.plan_read(offset, max_bytes, end_offset=end_offset, min_one_batch=min_one_batch)
        )

    def plan_read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> LocalRead:
        """The place of the batches from ``offset`` on: whole batches below ``end_offset``, at most ``max_bytes``, of one segment.

        ``end_offset`` is the high watermark or the last stable offset. With ``min_one_batch`` the first batch comes even if it is
        larger (KIP-74). A read at or past ``end_offset`` is empty.

        Raises: RequestRejected OFFSET_OUT_OF_RANGE below the log start or past the log end, OFFSET_MOVED_TO_TIERED_STORAGE
        below the local log start; PageMiss if an index or a header has to be read from the disk first (``read_when_ready``);
        CorruptionError; StorageUnavailable.
        """
        if self._acceptance.refusal is not None:
            self._acceptance.check(LogWork.ACCESS)
        if offset >= end_offset or offset > self._end_offset:
            if offset > self._end_offset:
                raise self._out_of_range(offset)
            return LocalRead(
                self._writer.segment.handle, 0, 0, Offset(offset), Offset(offset), self._directory.pool, True
            )
        if offset < self._segments[0].base_offset or offset < self._log_start_offset:
            if offset < self._log_start_offset:
                raise self._out_of_range(offset)
            raise RequestRejected(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                f"Offset {offset} is below the local log start offset {self.local_log_start_offset}.",
            )
        return self._reader.plan(offset, max_bytes, end_offset, min_one_batch)

    # --- searches ---------------------------------------------------------------------------------------------------

    async def offset_for_timestamp(self, timestamp: int) -> tuple[TimestampMs, Offset] | None:
        """Timestamp and offset of the first record on this disk that is at least as new as ``timestamp``.

        Exact to the record, and not below the log start. None if there is none; it may still be at or past the high watermark,
        or an earlier one on the tier.

        Raises: CorruptionError, StorageUnavailable.
        """
        self._acceptance.check(LogWork.ACCESS)
        return await self._reader.offset_for_timestamp(timestamp, self._log_start_offset)

    async def max_timestamp_offset(self) -> tuple[TimestampMs, Offset] | None:
        """Timestamp and offset of the first record with the greatest timestamp on this disk; None if there is none."""
        self._acceptance.check(LogWork.ACCESS)
        return await self._reader.max_timestamp_offset(self._log_start_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that overlap ``[start_offset, end_offset)``, in order of their markers. A reader at
        read_committed must filter them.

        Raises: PageMiss if a transaction index is not in memory: have it fetched and ask again. CorruptionError.
        """
        return self._reader.aborted_transactions(start_offset, end_offset)

    async def aborted_transactions_when_ready(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """As ``aborted_transactions``; transaction indexes that are not in memory are read in the pool.

        Raises: CorruptionError, StorageUnavailable.
        """
        return await self._reader.aborted_transactions_when_ready(start_offset, end_offset)

    def producer_snapshot(self, at_offset: int) -> bytes:
        """The producer state as of ``at_offset`` (the log end, or a segment's base), in Kafka's ``.snapshot`` format.

        Read from its file or from memory; if it is at neither place, rebuilt from the log, which may take long.

        Raises: CorruptionError, StorageUnavailable.
        """
        if at_offset == self._end_offset:
            return encode_snapshot(self._producers.rows())
        return self._snapshots.encoded_at(at_offset)

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that were silent for ``producer.id.expiration.ms``. Returns: how many."""
        return self._producers.expire(TimestampMs(now_ms), expiration_ms)

    # --- copies and compactions -------------------------------------------------------------------------------------

    def hold(self, segment: SegmentView | Segment | int, on_end: Callable[[], None] | None = None) -> SegmentHold:
        """Keep a segment's file from being deleted until the hold is released.

        A truncation below the segment's end ends the hold, and calls ``on_end`` synchronously; the file may change from then on.
        Raises: ConflictError if the segment is gone.
        """
        return self._files.hold(segment if isinstance(segment, int) else segment.base_offset, on_end)

    @property
    def held(self) -> bool:
        """Whether a segment is being copied or compacted."""
        return self._files.held

    @property
    def cleaning(self) -> bool:
        """Whether a compaction is under way, which reads and writes files of this directory by name."""
        return self._cleaning is not None

    def begin_cleaning(self, on_end: Callable[[], None]) -> LogCleaning:
        """Keep other compactions away until ``finish_cleaning``. Nothing is held yet.

        ``on_end`` is called synchronously when records are cut away, the cleanup policy changes, or the log is closed. The work
        must leave the log alone then. Raises: ConflictError if a compaction is under way or the log is closed.
        """
        if self._cleaning is not None or self.offline_error is not None:
            raise ConflictError(f"{self.topic}-{self.partition} is being compacted already, or closed.")
        self._cleaning = LogCleaning(on_end)
        return self._cleaning

    def finish_cleaning(self, cleaning: LogCleaning) -> None:
        """Release the result of ``begin_cleaning``. No other process uses files of this log for it any more."""
        assert cleaning is self._cleaning, self
        cleaning.release()
        self._cleaning = None

    def rolled_segments(self) -> list[RolledSegment]:
        """All segments except the active one, as candidates for compaction."""
        return self._files.rolled()

    def keep_for_replacement(self, holds: Sequence[SegmentHold]) -> None:
        """From now on only these holds may hold their segments, as they will be replaced.

        Raises: ConflictError if there is another hold already; StorageUnavailable.
        """
        self._acceptance.check(LogWork.ACCESS)
        self._files.keep_for_replacement(holds)

    async def quiet(self) -> None:
        """Wait until no sync will write index files of a rolled segment."""
        await self._durability.wait_indexes_written()

    def replace_segments(self, holds: Sequence[SegmentHold], cleaned: CleanedSegment) -> None:
        """Put a segment that compaction committed in the place of the neighbouring, rolled ones that are held.

        Readers at work finish with the old files. The holds are released; the caller syncs the directory afterwards.

        Raises: StorageUnavailable; the directory is offline then, and the next start completes it.
        """
        self._acceptance.check(LogWork.ACCESS)  # a topic made again under the same name has the same paths
        self._files.replace(holds, cleaned)

    # --- restoring --------------------------------------------------------------------------------------------------

    def restore_producers(self, known: ProducerStates) -> None:
        """Add the producers of ``known`` (as of the log end) that this log lacks: a log that was restored from segments
        and batches knows only the last batch of those that it got from a snapshot (J28)."""
        entries = self._producers.entries
        for producer_id, theirs in known.entries.items():
            mine = entries.get(producer_id)
            if mine is None:
                entries[producer_id] = theirs
            elif mine.epoch == theirs.epoch and mine.last_sequence == theirs.last_sequence:
                mine.batches = max(mine.batches, theirs.batches, key=len)

    def restore_leader_epochs(self, entries: Iterable[EpochStart]) -> None:
        """Use the manifest's leader epochs below the local log start, and keep the local ones above it."""
        local_start = self._segments[0].base_offset
        older = [entry for entry in entries if entry.start_offset < local_start]
        newest = older[-1].epoch if older else -1
        own = [entry for entry in self._epochs.entries() if entry.start_offset >= local_start and entry.epoch > newest]
        self._epochs.replace([*older, *own])
        self._noted_epoch = self._epochs.latest
        self._durability.write_epochs()

    def restore_lineage(self, entries: Iterable[EpochStart]) -> None:
        """Use these leader epochs below the log end: batches that leave offsets out do not say where each epoch began.

        Raises: StorageUnavailable.
        """
        self._epochs.replace([entry for entry in entries if entry.start_offset < self._end_offset])
        self._noted_epoch = self._epochs.latest
        self._durability.write_epochs()

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> LogState:
        """Sync all records and close the files. Returns: the state that opens the log again without reading its files.

        Raises: StorageUnavailable.
        """
        await self._durability.flush_indexes()
        state = self.state()
        self.refuse(StorageUnavailable(f"The log of {self.topic}-{self.partition} is closed."))
        self._close_files()
        return state

    def abandon(self) -> None:
        """Close the files without syncing: the partition is deleted, or the directory is offline."""
        self.refuse(StorageUnavailable(f"The log of {self.topic}-{self.partition} is closed."))
        self._close_files()

    def _close_files(self) -> None:
        self._directory.logs.pop(self, None)
        self._directory.syncer.cancel(self)
        self._files.close()

    def state(self) -> LogState:
        """A copy of the state in memory, for the state file of a clean stop."""
        return LogState(
            self._log_start_offset,
            # An epoch without a record is not in the checkpoint either: it is written with the first.
            [(epoch, start) for epoch, start in self._epochs.entries() if start < self._end_offset],
            self._files.states(),
            [
                ProducerState(
                    producer_id,
                    entry.epoch,
                    entry.last_sequence,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    entry.transaction_first_offset,
                    entry.batches,
                )
                for producer_id, entry in self._producers.entries.items()
            ],
        )
