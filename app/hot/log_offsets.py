"""The offsets and the parts of one log, the callbacks that wait for its offsets, and the question whether it accepts work.

Offsets, from left to right:

    log start ≤ local log start ≤ recovery point ≤ synced end ≤ log end
    log start ≤ last stable offset ≤ high watermark ≤ log end

- log start: the first readable record. Records below the local log start are only in the object store.
- recovery point: all records below it survive a loss of power, with their indexes and their producer state.
- synced end: all records below it survive a loss of power.

The stored end is the synced end with ``firn.durability=disk``, and the log end with ``memory``. While this broker is alone in sync,
the high watermark follows the stored end (``commit_alone``); else only ``commit`` raises it. As in Kafka, the log has the value,
because appends and readers need it, and the partition (``app.replication``) has the rule.

Tests: ``tests/hot/test_append.py``, ``tests/hot/test_replicas.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from app.configs import Durability, TopicConfig
from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.units import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from app.hot.acceptance import Acceptance, LogWork
from app.hot.checkpoints import EpochStart
from app.hot.directory import LogDirectory
from app.hot.durability import LogDurability
from app.hot.producers import ProducerStates
from app.hot.reader import LogReader
from app.hot.recovery import LoadedLog, create_log_files
from app.hot.segment_holds import LogCleaning
from app.hot.segment_list import SegmentList
from app.hot.segment_writer import SegmentWriter
from app.hot.segments import SegmentView
from app.hot.snapshots import ProducerSnapshots
from app.hot.syncing import SyncPlan
from app.machine.files import File, storage_error


class LogOffsets:
    """The state and the queries that appends, truncations and the public face of one log share."""

    __slots__ = (
        "__weakref__",
        "_acceptance",
        "_active_from_bytes",
        "_appended_before",
        "_assumes_committed",
        "_bases",
        "_cleaning",
        "_commits_alone",
        "_commits_at_append",
        "_directory",
        "_durability",
        "_end_from",
        "_end_offset",
        "_epochs",
        "_files",
        "_high_watermark",
        "_log_start_offset",
        "_memory",
        "_noted_epoch",
        "_producers",
        "_reader",
        "_segments",
        "_snapshots",
        "_tail_waiters",
        "_tells_of_appends",
        "_waiters",
        "_writer",
        "appends_decide",
        "cleaned_end_offset",
        "config",
        "leader_epoch",
        "lost",
        "on_stored",
        "partition",
        "path",
        "sent_bytes",
        "sent_records",
        "start_is_assumed",
        "terms",
        "topic",
        "topic_id",
        "truncations",
        "unsure_from",
    )

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
        self._directory = directory
        self.path = path
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self._acceptance = Acceptance(topic, partition)
        self._waiters: dict[Callable[[], None], None] = {}
        self._tail_waiters: dict[Callable[[], None], None] = {}
        self.on_stored: Callable[[], None] | None = None
        """Called synchronously when this log has stored more, perhaps from within an append, unless the log commits alone. It may
        call ``commit``, and must neither raise nor change the log otherwise."""
        self.appends_decide = True
        """Whether ``on_stored`` is called by each append. The owner may set it to False while others move the high watermark."""
        self.truncations = 0
        """How often records were cut away at the end. The same log end after another truncation may be another history (A1)."""
        self._durability = LogDurability(self, directory, new=new, has_files=has_files)
        self._high_watermark: int = 0
        self._commits_alone = True
        self._assumes_committed = True
        """Whether the high watermark is still the assumption of opening: the end of the records stored here."""
        self.leader_epoch = LeaderEpoch(0)
        self.config = config
        self.cleaned_end_offset: Offset | None = None
        """Compaction has processed all records below it (Kafka's first dirty offset); None if the log was never compacted."""
        self._cleaning: LogCleaning | None = None
        self.sent_bytes = 0
        """Bytes of batches that were sent to consumers from both tiers, since the log was opened. The sender adds to it."""
        self.sent_records = 0
        self._appended_before = (0, 0)
        """Bytes and records that were appended before the start of the next two counters."""
        self.start_is_assumed = loaded.start_is_assumed
        """Whether the log may begin in the tier, below the first local segment, which was taken for its start."""
        self.unsure_from = loaded.unsure_from
        """From this offset on a compacted log may lack records lost with power, as its recovery found; None if it is sure."""
        self._adopt(loaded)
        self._count_appends_from_here()
        self._memory = config.firn_durability is Durability.MEMORY
        self._set_terms()

    @property
    def lacks_from(self) -> Offset | None:
        """The first offset at which records may be missing amid the log, for a loss of files or of power; None if it is whole."""
        starts = [one.start for one in self.lost[:1]]
        if self.unsure_from is not None:
            starts.append(Offset(max(self.unsure_from, self._log_start_offset)))
        return min(starts, default=None)

    def _adopt(self, loaded: LoadedLog) -> None:
        self._files = SegmentList(self._directory, self.path, loaded.segments)
        self._segments = self._files.segments
        self._bases = self._files.bases
        self._writer = SegmentWriter(self._directory, self.path, self._files, self.config)
        self._epochs = loaded.epochs
        self._producers = loaded.producers
        self.lost = loaded.lost
        """Offsets whose segment files are missing between others, oldest first. Reads of them raise CorruptionError."""
        self._log_start_offset = loaded.log_start_offset
        self._end_offset: int = loaded.end_offset
        self._snapshots = ProducerSnapshots(self._directory.fs, self.path, self._producers, self._segments)
        self._durability.adopt(self._files, self._epochs, self._snapshots, loaded.recovery_point)
        self._reader = LogReader(
            self._directory,
            f"{self.topic}-{self.partition}",
            self._segments,
            self._bases,
            self.config.index_interval_bytes,
            self._durability.request_checkpoint,
            self.lost,
            loaded.may_have_holes,
        )
        self._noted_epoch: int = self._epochs.latest

    def _adopt_anew(self, loaded: LoadedLog) -> None:
        """The log continues with other files."""
        self._appended_before = self.appended
        self._adopt(loaded)
        self._count_appends_from_here()
        self.truncations += 1

    def _count_appends_from_here(self) -> None:
        self._active_from_bytes = self._writer.segment.size_bytes
        self._end_from = self._end_offset

    def _set_terms(self) -> None:
        self._commits_at_append = self._commits_alone and self._memory and not self.journaled
        self._tells_of_appends = not self._commits_alone or self.journaled
        self.terms = object()
        """Another object whenever an append may mean something else than before. Knowledge from earlier appends ends then."""

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self._log_start_offset}, {self._end_offset})>"

    # --- its properties ---------------------------------------------------------------------------------------------

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def log_start_offset(self) -> Offset:
        return self._log_start_offset

    @property
    def local_log_start_offset(self) -> Offset:
        """The first offset that can be read from this disk."""
        return Offset(max(self._segments[0].base_offset, self._log_start_offset))

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self._end_offset)

    @property
    def high_watermark(self) -> Offset:
        return Offset(self._high_watermark)

    @property
    def last_stable_offset(self) -> Offset:
        """The first offset of the oldest undecided transaction below the high watermark, or else the high watermark."""
        if self._producers.has_transactions:
            unstable = self._producers.first_unstable_offset
            if unstable is not None and unstable < self._high_watermark:
                # Where it began may have been deleted (DeleteRecords).
                return Offset(max(unstable, self._log_start_offset))
        return Offset(self._high_watermark)

    @property
    def recovery_point(self) -> Offset:
        return Offset(self._durability.recovery_point)

    @property
    def stored_end_offset(self) -> Offset:
        """Records below it are stored under the topic's durability: here, or in the journal."""
        journaled = self._acceptance.journaled
        if journaled is not None:
            return Offset(journaled.end)
        return Offset(self._end_offset if self._memory else self._durability.synced_end)

    @property
    def synced_end_offset(self) -> Offset:
        """Records below it have survived an fdatasync."""
        return Offset(self._durability.synced_end)

    @property
    def appended(self) -> tuple[int, int]:
        """Bytes and records that were appended since the log was opened. They are computed here, so appends do not count them."""
        bytes_before, records_before = self._appended_before
        bytes_since = self._writer.segment.size_bytes - self._active_from_bytes
        return bytes_before + bytes_since, records_before + self._end_offset - self._end_from

    @property
    def size_bytes(self) -> int:
        """Bytes of batches on this disk."""
        return self._files.size_bytes

    @property
    def producers(self) -> ProducerStates:
        """The state of producers. Read only."""
        return self._producers

    @property
    def has_files(self) -> bool:
        """Whether the log has files. A new log has none until its first append."""
        return self._durability.has_files

    @property
    def syncing(self) -> bool:
        """Whether a sync is under way. It uses paths and handles, so it continues even if the log is abandoned."""
        return self._durability.syncing

    @property
    def busy(self) -> bool:
        """Whether a sync or a swap of segments is under way, which a truncation must wait for. Both end without other processes."""
        return self._durability.syncing or (self._cleaning is not None and self._cleaning.swapping)

    @property
    def offline_error(self) -> FirnError | None:
        """Why the log refuses all operations; None if it does not."""
        return self._acceptance.refusal

    @property
    def sealed(self) -> bool:
        """Whether all appends are refused."""
        return self._acceptance.sealed is not None

    @property
    def journaled(self) -> bool:
        """Whether records count as stored when a journal has them."""
        return self._acceptance.journaled is not None

    def leader_epochs(self) -> tuple[EpochStart, ...]:
        return self._epochs.entries()

    def epoch_end_offset(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The end of ``epoch`` (OffsetForLeaderEpoch); (-1, -1) if this log does not know the epoch."""
        return self._epochs.end_offset_of(epoch, Offset(self._end_offset))

    def epoch_of(self, offset: Offset) -> LeaderEpoch:
        """The leader epoch of the record at ``offset``; -1 if it is not known."""
        return self._epochs.epoch_of(offset)

    def segments(self) -> Sequence[SegmentView]:
        """The segments on this disk, oldest first; the last is the active one."""
        return self._files.views()

    def _out_of_range(self, offset: int) -> RequestRejected:
        return RequestRejected(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} of {self.topic}-{self.partition} is not in [{self._log_start_offset}, {self._end_offset}].",
        )

    # --- whether it accepts work ------------------------------------------------------------------------------------

    def refuse(self, error: FirnError) -> None:
        """Raise ``error`` from every operation from now on, also to all current waiters."""
        self._acceptance.refuse(error)
        if self._cleaning is not None:
            self._cleaning.end()
        self._durability.refuse(error)
        self._notify_all()

    def seal(self, error: FirnError) -> None:
        """Raise ``error`` from every append from now on, for all callers. Reads, syncs, copies and closing still work."""
        self._acceptance.seal(error)

    def pause(self, error: FirnError) -> None:
        """Raise ``error`` from every append until ``go_on``, or until another leadership begins. Reads, syncs, copies and rolls
        still work."""
        self._acceptance.pause(error)

    def pause_transactions(self, error: FirnError) -> None:
        """Raise ``error`` from every append that begins a transaction until ``go_on``, or until another leadership begins. Those
        that are open go on and end."""
        self._acceptance.settle(error)

    def go_on(self) -> None:
        """Append again."""
        self._acceptance.go_on()

    def _check(self, work: LogWork, size_bytes: int = 0) -> None:
        """Everything that must be asked and done before ``work`` on a guarded log; an append has ``size_bytes``.

        Raises: as ``Acceptance.check``; StorageUnavailable if a failed write cannot be cut off; as ``Journal.admit``.
        """
        acceptance = self._acceptance
        if acceptance.torn:
            acceptance.check(LogWork.ACCESS)
            self._writer.mend()
            acceptance.mend()
        acceptance.check(work)
        if acceptance.journaled is not None and work is not LogWork.ACCESS:
            acceptance.journaled.journal.admit(size_bytes)

    # --- leader epochs ----------------------------------------------------------------------------------------------

    def _note_epoch(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        # Not written here: recovery finds the epochs of all records from the recovery point on in the batches themselves, and the
        # sync that moves it writes the checkpoint first. A thousand partitions whose epochs rise at a start would cost a second.
        self._epochs.assign(epoch, start_offset)
        self._noted_epoch = epoch

    def _forget_empty_epochs(self) -> None:
        """Forget epochs that no record has: the next record may be of an earlier one, and would count as theirs (as in Kafka)."""
        self._epochs.truncate_from_end(Offset(self._end_offset))
        self._noted_epoch = self._epochs.latest

    # --- high watermark and the callbacks that wait for it ----------------------------------------------------------

    def add_waiter(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time the high watermark moves, or the log is closed or refuses, until it is removed.

        It is called synchronously, perhaps from within an append, and must neither raise nor change the log.
        """
        self._waiters[callback] = None

    def remove_waiter(self, callback: Callable[[], None]) -> None:
        """Remove a callback. A callback that is not registered is no error."""
        self._waiters.pop(callback, None)

    def add_tail_waiter(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time the end of a log that does not commit alone moves, or any log is closed, refuses or resigns,
        until it is removed.

        It is called synchronously, perhaps from within an append, and must neither raise nor change the log.
        """
        self._tail_waiters[callback] = None

    def remove_tail_waiter(self, callback: Callable[[], None]) -> None:
        """Remove a callback. A callback that is not registered is no error."""
        self._tail_waiters.pop(callback, None)

    def wake_followers(self) -> None:
        """Call the tail waiters, though the log has not grown: something else that they are told may have changed."""
        for callback in tuple(self._tail_waiters):
            callback()

    def _notify(self) -> None:
        for callback in tuple(self._waiters):
            callback()

    def _notify_all(self) -> None:
        self._notify()
        for callback in tuple(self._tail_waiters):
            callback()

    def commit(self, offset: int) -> None:
        """Raise the high watermark to ``offset``, which is not past the log end. A lower offset changes nothing."""
        if offset <= self._high_watermark:
            return
        self._high_watermark = offset
        if self._producers.undecided:
            self._producers.decide_below(Offset(offset))
        self._notify()

    # --- stored records ---------------------------------------------------------------------------------------------

    def wait_stored(self, offset_end: int) -> Awaitable[None] | None:
        """None if all records below ``offset_end`` are stored here under the topic's durability; else an awaitable until they are.

        The awaitable raises StorageUnavailable if it can no longer be.
        """
        journaled = self._acceptance.journaled
        if journaled is not None:
            return journaled.wait(offset_end)
        if self._memory or offset_end <= self._durability.synced_end:
            return None
        return self._durability.wait_synced(offset_end)

    def request_stored(self, offset_end: int) -> None:
        """Request that all records below ``offset_end`` are stored here under the topic's durability, without waiting."""
        if not self._memory and self._acceptance.journaled is None:
            self._durability.request_synced(offset_end)

    def request_checkpoint(self) -> None:
        """Request a sync of all records that also moves the recovery point."""
        self._durability.request_checkpoint()

    async def flush(self) -> None:
        """Make all records up to the present log end durable, with indexes and producer state. The recovery point follows.

        Raises: StorageUnavailable.
        """
        await self._durability.flush()

    async def sync(self) -> None:
        """Sync all bytes written so far, in the pool. If a sync is running, only note that another one is needed.

        Raises: StorageUnavailable; the directory is offline then.
        """
        await self._durability.sync()

    def note_synced(self, plan: SyncPlan) -> None:
        """Called by ``LogDurability``: the synced end has risen to the planned end."""
        if self._memory or self.journaled:
            return
        if plan.segments:
            self._reader.remember(plan.end_offset, plan.segments[-1].segment, plan.segments[-1].size_bytes)
        if self._commits_alone:
            self.commit(self._durability.synced_end)
        elif self.on_stored is not None:
            self.on_stored()

    # --- files ------------------------------------------------------------------------------------------------------

    def _create_files(self) -> File:
        """Make the directory and the files of a log that has none. Returns: the open file of its segment.

        Raises: StorageFull, StorageUnavailable; the next append tries again.
        """
        try:
            file = create_log_files(self._directory.fs, self.path, self.topic_id, self._writer.segment)
        except OSError as error:
            raise storage_error(error, f"Cannot make the log of {self.topic}-{self.partition}") from error
        self._durability.note_files_created()
        return file
