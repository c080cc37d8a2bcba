"""The log of one partition on the local disk.

All methods that change state are synchronous and belong to the event loop. There is no await between a check and the write that
relies on it, so no lock is needed. Work that may wait for the disk (syncs, cold reads, searches by time) is asynchronous and runs
in the pool.

Offsets, from left to right:

    log start ≤ local log start ≤ recovery point ≤ synced end ≤ log end
    log start ≤ last stable offset ≤ high watermark ≤ log end

- log start: the first readable record. Records below the local log start are only in the object store.
- recovery point: all records below it survive a loss of power, with their indexes and their producer state.
- synced end: all records below it survive a loss of power.

The stored end is the synced end with ``firn.durability=disk``, and the log end with ``memory``. While this broker is alone in sync,
the high watermark follows the stored end (``commit_alone``); else only ``commit`` raises it. As in Kafka, the log has the value,
because appends and readers need it, and the partition (``app.replication``) has the rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from app.configs import Durability, TimestampType, TopicConfig
from app.configs.numbers import LONG_MAX
from app.core.errors import (
    ConflictError,
    CorruptionError,
    ErrorCode,
    FirnError,
    ProtocolError,
    RequestRejected,
    StorageUnavailable,
)
from app.core.limits import DECOMPRESSED_BATCH_BYTES_MAX
from app.core.units import (
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from app.hot.acceptance import Acceptance, LogWork
from app.hot.checkpoints import EpochStart
from app.hot.directory import LogDirectory
from app.hot.durability import WRITE_BACK_BYTES, LogDurability
from app.hot.epochs import LeaderEpochs
from app.hot.indexes import AbortedTransaction
from app.hot.journal import Journal, JournaledEnd
from app.hot.preparation import codec_of, looks_at_records, needs_preparation, prepare
from app.hot.producers import (
    BATCHES_KEPT,
    SEQUENCE_MASK,
    ProducerStates,
    aborted_entry,
    encode_snapshot,
    parse_snapshot,
)
from app.hot.reader import LogReader
from app.hot.reads import LocalRead
from app.hot.recovery import (
    FOR_EVER,
    LoadedLog,
    create_file,
    create_log_files,
    load_log,
    new_segment,
)
from app.hot.segment_holds import LogCleaning
from app.hot.segment_list import SegmentList
from app.hot.segment_writer import SegmentWriter
from app.hot.segments import (
    RELATIVE_OFFSET_MAX,
    TRANSACTION_INDEX_SUFFIX,
    CleanedSegment,
    RolledSegment,
    Segment,
    SegmentHold,
    SegmentView,
)
from app.hot.snapshots import ProducerSnapshots
from app.hot.state_file import LogState, ProducerState
from app.hot.syncing import SyncPlan
from app.machine.files import File, storage_error, write_all, write_whole
from app.records.batch import (
    CONTROL,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    HeaderFields,
    check_batches,
    check_single,
    check_stored_batch,
    lacks_maximum,
    parse_header,
    rewrite_header,
    stored_batches,
)
from app.records.control import ControlType, build_marker, parse_marker

_PLACE: Final = Struct(">qii")
"""The first fields of a batch: base offset, batch length, leader epoch."""
_BASE_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_TIMESTAMPS: Final = Struct(">qq")
_TIMESTAMPS_POSITION: Final = 27
"""Where the first and the greatest timestamp of a batch are."""
RUN_BATCHES_MAX: Final = 1000
"""Batches of one write: systems take 1,024 buffers (IOV_MAX of Linux)."""
ORDINARY_AGE_MS: Final = 20 * 365 * 86_400_000
"""Batches with an older base timestamp take the general path, which repairs a header with implausible timestamps."""


class PreparationNeeded(FirnError):
    """A batch must be prepared before it can be appended. Its sender is not told: the caller prepares it on a pool thread."""


class AppendResult(NamedTuple):
    """The result of an append."""

    base_offset: Offset
    last_offset_end: Offset
    """One past the last record's offset: the argument for ``wait_stored``."""
    log_append_time_ms: TimestampMs
    """-1 unless the topic has LogAppendTime."""
    duplicate: bool
    """Whether the batch is a duplicate: nothing was written, and the offsets are those of the original."""


_new_result: Final[Callable[[type[AppendResult], tuple[int, int, int, bool]], AppendResult]] = tuple.__new__
"""Creates an ``AppendResult`` at half the cost of calling the class."""


class PartitionLog:
    """The local log of one partition that this broker leads or follows."""

    __slots__ = (
        "__weakref__",
        "_acceptance",
        "_active_from_bytes",
        "_after_max_ms",
        "_append_time",
        "_appended_before",
        "_assumes_committed",
        "_bases",
        "_before_max_ms",
        "_cleaning",
        "_codec",
        "_commits_alone",
        "_commits_at_append",
        "_directory",
        "_durability",
        "_end_from",
        "_end_offset",
        "_epochs",
        "_fast_before_ms",
        "_files",
        "_flush_messages",
        "_flushes_early",
        "_high_watermark",
        "_log_start_offset",
        "_max_batch_bytes",
        "_memory",
        "_needs_preparation",
        "_noted_epoch",
        "_plain",
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
        self._follow(config)
        if self._epochs.latest > 0:
            self.leader_epoch = self._epochs.latest
        self._high_watermark = self._end_offset
        if not self._memory:
            durable_end = max(self._durability.synced_end, self._durability.recovery_point)
            self._high_watermark = max(durable_end, self._segments[0].base_offset)
        self._producers.decide_below(self._high_watermark)

    def _adopt(self, loaded: LoadedLog) -> None:
        self._files = SegmentList(self._directory, self.path, loaded.segments)
        self._segments = self._files.segments
        self._bases = self._files.bases
        self._writer = SegmentWriter(self._directory, self.path, self._files, self.config)
        self._epochs = loaded.epochs
        self._producers = loaded.producers
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
        )
        self._noted_epoch: int = self._epochs.latest

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self._log_start_offset}, {self._end_offset})>"

    # --- its properties -------------------------------------------------------------------------------------------------

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

    def _adopt_anew(self, loaded: LoadedLog) -> None:
        """The log continues with other files."""
        self._appended_before = self.appended
        self._adopt(loaded)
        self._count_appends_from_here()
        self.truncations += 1

    def _count_appends_from_here(self) -> None:
        self._active_from_bytes = self._writer.segment.size_bytes
        self._end_from = self._end_offset

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
    def offline_error(self) -> FirnError | None:
        """Why the log refuses all operations; None if it does not."""
        return self._acceptance.refusal

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

    # --- settings and leadership ------------------------------------------------------------------------------------

    def update_config(self, config: TopicConfig) -> None:
        """Apply changed settings of the topic. Another cleanup policy ends a compaction under way."""
        if self._cleaning is not None and config.cleanup_policy != self.config.cleanup_policy:
            self._cleaning.end()
        self._follow(config)
        self._writer.update_config(config)

    def _follow(self, config: TopicConfig) -> None:
        self.config = config
        self._max_batch_bytes = config.max_message_bytes
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._fast_before_ms = min(config.message_timestamp_before_max_ms, ORDINARY_AGE_MS)
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._append_time = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        self._memory = config.firn_durability is Durability.MEMORY
        self._flush_messages = config.flush_messages
        self._codec = codec_of(config)
        self._needs_preparation = self._codec is not None or looks_at_records(config)
        self._plain = not self._needs_preparation and not self._append_time
        self._flushes_early = config.flush_messages < LONG_MAX
        self._set_terms()
        if self._commits_at_append:
            self.commit(self._end_offset)
        elif self._memory and self.on_stored is not None:
            self.on_stored()  # records that waited for a sync are stored now

    def _set_terms(self) -> None:
        self._commits_at_append = self._commits_alone and self._memory and not self.journaled
        self._tells_of_appends = not self._commits_alone or self.journaled
        self.terms = object()
        """Another object whenever an append may mean something else than before. Knowledge from earlier appends ends then."""

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

    @property
    def journaled(self) -> bool:
        """Whether records count as stored when a journal has them."""
        return self._acceptance.journaled is not None

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

    def _note_epoch(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        # Not written here: recovery finds the epochs of all records from the recovery point on in the batches themselves, and the
        # sync that moves it writes the checkpoint first. A thousand partitions whose epochs rise at a start would cost a second.
        self._epochs.assign(epoch, start_offset)
        self._noted_epoch = epoch

    def _forget_empty_epochs(self) -> None:
        """Forget epochs that no record has: the next record may be of an earlier one, and would count as theirs (as in Kafka)."""
        self._epochs.truncate_from_end(Offset(self._end_offset))
        self._noted_epoch = self._epochs.latest

    # --- refusing ---------------------------------------------------------------------------------------------------

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

    @property
    def sealed(self) -> bool:
        """Whether all appends are refused."""
        return self._acceptance.sealed is not None

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

    def _check_begin(self, producer_id: int) -> None:
        """A transactional batch is to be appended. Raises: the error of ``pause_transactions`` if it begins a transaction."""
        if self._acceptance.settling is not None and producer_id not in self._producers.open_transactions:
            self._acceptance.check(LogWork.BEGIN)

    # --- appending --------------------------------------------------------------------------------------------------

    def needs_preparation(self, records: memoryview) -> bool:
        """Whether ``prepare_append`` has work: to recompress a batch, to check its records, or to compute the greatest timestamp
        that its header has not. Cheap."""
        if self._needs_preparation and needs_preparation(records, self.config, self._codec):
            return True
        if self._append_time or len(records) < HEADER_BYTES:
            return False
        base_timestamp, max_timestamp = _TIMESTAMPS.unpack_from(records, _TIMESTAMPS_POSITION)
        return bool(max_timestamp < 0 or max_timestamp < base_timestamp)

    def prepare_append(self, records: memoryview, *, raw_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX) -> bytearray:
        """Like ``preparation.prepare``. Run it in the pool, before ``append_as_leader``. It does not change the log."""
        return prepare(records, self.config, now_ms=self._directory.now_ms(), raw_bytes_max=raw_bytes_max)

    def append_as_leader(
        self, records: memoryview, *, now_ms: int, prepared: bool = False, may_prepare: bool = True
    ) -> AppendResult:
        """Check produced batches, assign their offsets, and write them. Synchronous; one write; cost per batch.

        ``records`` must be writable: offsets and epochs are patched in place. It is not kept. Several batches are accepted only
        if none is idempotent. ``prepared``: they come from ``prepare_append``; without it they are prepared here, now, or with
        ``may_prepare=False`` PreparationNeeded is raised.

        Guarantees: on an error nothing was appended, though ``records`` may have been patched. The result is stored as the
        topic's durability asks once ``wait_stored(last_offset_end)`` says so; that holds for a duplicate too.

        Raises: ProtocolError, RequestRejected (as ``check_batches``; INVALID_TIMESTAMP, INVALID_RECORD,
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE); StorageFull; StorageUnavailable.
        """
        if self._acceptance.guarded:
            self._check(LogWork.LEAD, len(records))
        fields = check_single(records, self._max_batch_bytes)
        # The way that nearly all appends go: one batch that is next in order, into a segment with room, its file open. Everything
        # else takes the general way, which does the same in the same order; a test holds the two against each other.
        writer = self._writer
        segment = writer.segment
        handle = segment.handle
        index = segment.index
        if fields is not None and self._plain and handle.pinned and index is not None:
            (
                _,
                batch_length,
                _,
                _,
                _,
                attributes,
                delta,
                base_timestamp,
                max_timestamp,
                producer_id,
                epoch,
                sequence,
                _,
            ) = fields
            size = segment.size_bytes
            length = len(records)
            base = self._end_offset
            last_offset = base + delta
            leader_epoch = self.leader_epoch
            entry = self._producers.entries.get(producer_id) if producer_id >= 0 else None
            if (
                (
                    producer_id < 0
                    if entry is None
                    else entry.epoch == epoch
                    and (entry.last_sequence + 1) & SEQUENCE_MASK == sequence
                    and (entry.transaction_first_offset >= 0) == (attributes & TRANSACTIONAL > 0)
                )
                and now_ms - self._fast_before_ms <= base_timestamp <= max_timestamp <= now_ms + self._after_max_ms
                and size + length <= writer.segment_bytes
                and size > 0
                and max_timestamp <= segment.roll_after_timestamp
                and now_ms <= segment.roll_after_now_ms
                and last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX
                and leader_epoch == self._noted_epoch
            ):
                _PLACE.pack_into(records, 0, base, batch_length, leader_epoch)
                file = handle.file
                assert file is not None
                try:
                    if file.pwrite(records, size) != length:
                        write_whole(file, records, size)
                except OSError as error:
                    raise self._undo_write(file, error) from error
                if max_timestamp > segment.max_timestamp:
                    segment.max_timestamp = max_timestamp
                    segment.max_timestamp_offset = last_offset
                if segment.bytes_since_index_entry > writer.index_interval_bytes:
                    writer.add_index_entry(index, last_offset, size)
                    segment.bytes_since_index_entry = length
                else:
                    segment.bytes_since_index_entry += length
                if entry is not None:
                    last_sequence = (sequence + delta) & SEQUENCE_MASK
                    entry.last_sequence = last_sequence
                    entry.last_timestamp = max_timestamp
                    batches = entry.batches
                    batches.append((sequence, last_sequence, base, last_offset, max_timestamp))
                    if len(batches) > BATCHES_KEPT:
                        del batches[0]
                segment.size_bytes = size + length
                segment.last_append_ms = now_ms
                end = last_offset + 1
                segment.end_offset = self._end_offset = end
                durability = self._durability
                durability.unsaved_bytes += length
                if durability.unsaved_bytes >= WRITE_BACK_BYTES or self._flushes_early:
                    durability.request_if_due(end, self._flush_messages)
                if self._commits_at_append:
                    self._high_watermark = end
                    if self._producers.undecided:
                        self._producers.decide_below(end)
                    if self._waiters:
                        self._notify()
                elif self._tells_of_appends:
                    self._tell_of_append(records)
                return _new_result(AppendResult, (base, end, NO_TIMESTAMP, False))
        if fields is not None:
            found = [(0, BatchHeader._make(fields))]
        else:
            found = check_batches(records, max_batch_bytes=self._max_batch_bytes)
        return self.append_generally(records, found, now_ms, prepared, may_prepare)

    def check_plain(self, records: memoryview) -> HeaderFields | None:
        """As ``check_single``: the fields of a batch for ``append_run``. None if the batch needs ``append_as_leader``, or the log
        takes no runs now."""
        return None if self._acceptance.guarded else check_single(records, self._max_batch_bytes)

    def append_run(self, run: Sequence[tuple[memoryview, HeaderFields]], *, now_ms: int) -> list[AppendResult]:
        """Append the first batches of ``run`` by one write: those that ``append_as_leader`` would take its straight way with.

        ``run``: batches as for ``append_as_leader``, each with the fields from ``check_single``.

        Returns: a result for each batch that was appended; perhaps fewer than there are batches, or none. The caller hands the next
        one to ``append_as_leader``, which raises its error. Raises: StorageFull, StorageUnavailable; nothing was
        appended then, though batches may have been patched, as by ``append_as_leader``.
        """
        writer = self._writer
        segment = writer.segment
        handle = segment.handle
        index = segment.index
        size = segment.size_bytes
        leader_epoch = self.leader_epoch
        if (
            self._acceptance.guarded
            or not self._plain
            or not handle.pinned
            or index is None
            or size == 0
            or now_ms > segment.roll_after_now_ms
            or leader_epoch != self._noted_epoch
        ):
            return []
        entries = self._producers.entries
        following: dict[int, int] = {}
        results: list[AppendResult] = []
        buffers: list[memoryview] = []
        earliest, latest = now_ms - self._fast_before_ms, now_ms + self._after_max_ms
        roll_after, room = segment.roll_after_timestamp, writer.segment_bytes - size
        last_of_segment = segment.base_offset + RELATIVE_OFFSET_MAX
        base = self._end_offset
        for records, fields in run[: max(1, min(writer.index_room, RUN_BATCHES_MAX))]:
            (
                _,
                batch_length,
                _,
                _,
                _,
                attributes,
                delta,
                base_timestamp,
                max_timestamp,
                producer_id,
                epoch,
                sequence,
                _,
            ) = fields
            if producer_id >= 0:
                entry = entries.get(producer_id)
                if (
                    entry is None
                    or entry.epoch != epoch
                    or following.get(producer_id, (entry.last_sequence + 1) & SEQUENCE_MASK) != sequence
                    or (entry.transaction_first_offset >= 0) != (attributes & TRANSACTIONAL > 0)
                ):
                    break
                following[producer_id] = (sequence + delta + 1) & SEQUENCE_MASK
            room -= len(records)
            last_offset = base + delta
            if not (
                earliest <= base_timestamp <= max_timestamp <= latest
                and room >= 0
                and max_timestamp <= roll_after
                and last_offset <= last_of_segment
            ):
                break
            _PLACE.pack_into(records, 0, base, batch_length, leader_epoch)
            buffers.append(records)
            results.append(_new_result(AppendResult, (base, last_offset + 1, NO_TIMESTAMP, False)))
            base = last_offset + 1
        if not results:
            return []
        file = handle.file
        assert file is not None
        try:
            write_all(file, buffers, size)
        except OSError as error:
            raise self._undo_write(file, error) from error
        position = size
        for (records, fields), (base, end, _, _) in zip(run, results, strict=False):
            length = len(records)
            max_timestamp, producer_id = fields[8], fields[9]
            if max_timestamp > segment.max_timestamp:
                segment.max_timestamp = max_timestamp
                segment.max_timestamp_offset = end - 1
            if segment.bytes_since_index_entry > writer.index_interval_bytes:
                writer.add_index_entry(index, end - 1, position)
                segment.bytes_since_index_entry = length
            else:
                segment.bytes_since_index_entry += length
            if producer_id >= 0:
                entry = entries[producer_id]
                sequence = fields[11]
                entry.last_sequence = last_sequence = (sequence + fields[6]) & SEQUENCE_MASK
                entry.last_timestamp = max_timestamp
                batches = entry.batches
                batches.append((sequence, last_sequence, base, end - 1, max_timestamp))
                if len(batches) > BATCHES_KEPT:
                    del batches[0]
            position += length
        segment.size_bytes = position
        segment.last_append_ms = now_ms
        segment.end_offset = self._end_offset = end
        durability = self._durability
        durability.unsaved_bytes += position - size
        if durability.unsaved_bytes >= WRITE_BACK_BYTES or self._flushes_early:
            durability.request_if_due(end, self._flush_messages)
        if self._commits_at_append:
            self._high_watermark = end
            if self._producers.undecided:
                self._producers.decide_below(end)
            if self._waiters:
                self._notify()
        elif self._tells_of_appends:
            self._tell_of_append()
        return results

    def append_generally(
        self,
        records: memoryview,
        found: list[tuple[int, BatchHeader]],
        now_ms: int,
        prepared: bool,
        may_prepare: bool = True,
    ) -> AppendResult:
        """The rest of ``append_as_leader``, for checked batches of any kind."""
        if not prepared and (
            (self._needs_preparation and self.needs_preparation(records))
            or (not self._append_time and any(lacks_maximum(header) for _, header in found))
        ):
            if not may_prepare:
                raise PreparationNeeded(f"A batch for {self.topic}-{self.partition} must be prepared.")
            return self.append_as_leader(memoryview(self.prepare_append(records)), now_ms=now_ms, prepared=True)
        earliest, latest = now_ms - self._before_max_ms, now_ms + self._after_max_ms
        for _, header in found:
            (_, _, _, _, _, attributes, _, base_timestamp, max_timestamp, producer_id, epoch, sequence, _) = header
            if (
                max_timestamp > latest or (base_timestamp < earliest and base_timestamp != NO_TIMESTAMP)
            ) and not self._append_time:
                raise RequestRejected(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"Timestamps from {base_timestamp} to {max_timestamp} are not within [{earliest}, {latest}].",
                )
            if producer_id >= 0:
                if len(found) != 1:
                    raise ProtocolError("An idempotent producer sends one batch at a time.", ErrorCode.INVALID_RECORD)
                entry = self._producers.entries.get(producer_id)
                if entry is not None and not (
                    entry.epoch == epoch
                    and (entry.last_sequence + 1) & SEQUENCE_MASK == sequence
                    and (entry.transaction_first_offset < 0 or attributes & TRANSACTIONAL)
                ):
                    original = self._producers.check(header, entry)
                    if original is not None:
                        return AppendResult(
                            original.base_offset,
                            Offset(original.last_offset + 1),
                            TimestampMs(original.timestamp) if self._append_time else NO_TIMESTAMP,
                            True,
                        )
                if attributes & TRANSACTIONAL:
                    self._check_begin(producer_id)
        if self.leader_epoch != self._noted_epoch:
            self._note_epoch(self.leader_epoch, Offset(self._end_offset))
        base = end = self._end_offset
        leader_epoch = self.leader_epoch
        for position, header in found:
            _BASE_OFFSET.pack_into(records, position, end)
            _EPOCH.pack_into(records, position + LENGTH_PREFIX_BYTES, leader_epoch)
            end += header[6] + 1
        if self._append_time:
            found = [
                (
                    position,
                    rewrite_header(
                        records,
                        position,
                        attributes=header.attributes | LOG_APPEND_TIME,
                        max_timestamp=TimestampMs(now_ms),
                    ),
                )
                for position, header in found
            ]
        else:
            found = [(position, _without_false_maximum(records, position, header)) for position, header in found]
        self._write(records, found, base, end, now_ms, False)
        return AppendResult(
            Offset(base), Offset(end), TimestampMs(now_ms) if self._append_time else NO_TIMESTAMP, False
        )

    def append_as_follower(self, records: memoryview, *, now_ms: int) -> AppendResult:
        """Write batches that already have offsets and epochs: replicated batches, or batches read from the object store.

        They may leave offsets out, as compaction does. A batch that begins before the log end is refused, even if it ends after it:
        followers ask at the ends of batches.

        Raises: CorruptionError if a batch is not sound, or leader epochs fall; RequestRejected OFFSET_OUT_OF_RANGE if the first
        does not come after the log end, or offsets do not rise; StorageFull; StorageUnavailable. Then nothing was appended.
        """
        if self._acceptance.guarded:
            self._check(LogWork.FOLLOW, len(records))
        found = stored_batches(records, self._end_offset, self._noted_epoch)
        gaps = False
        if found:
            end = found[-1][1].end_offset
        else:
            found, end, gaps = self._check_followed(records)
        base = found[0][1].base_offset
        if end - 1 - base > RELATIVE_OFFSET_MAX:
            raise CorruptionError(f"Offsets {base} and {end - 1} are too far from each other for one append.")
        if gaps and self.cleaned_end_offset is None:
            self._expect_gaps()
        if found[-1][1].leader_epoch > self._noted_epoch:
            for _, header in found:
                if header.leader_epoch > self._noted_epoch:
                    self._note_epoch(header.leader_epoch, header.base_offset)
        try:
            self._write(records, found, base, end, now_ms, True)
        except FirnError:
            self._forget_empty_epochs()
            raise
        return AppendResult(base, Offset(end), NO_TIMESTAMP, False)

    def _check_followed(self, records: memoryview) -> tuple[list[tuple[int, BatchHeader]], Offset, bool]:
        """The batches of ``append_as_follower``, where they end, and whether offsets are left out. Raises: as it does."""
        found: list[tuple[int, BatchHeader]] = []
        position, end, epoch = 0, self._end_offset, self._noted_epoch
        gaps = False
        while position < len(records):
            header = check_stored_batch(records, position)
            if header.base_offset < end:
                raise RequestRejected(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"Offset {header.base_offset} is already used; the next offset is {end} or later.",
                )
            if header.leader_epoch < epoch:
                raise CorruptionError(
                    f"The batch at offset {header.base_offset} for {self.topic}-{self.partition} has leader epoch "
                    f"{header.leader_epoch}, but the record before it has {epoch}."
                )
            found.append((position, header))
            gaps = gaps or header.base_offset > end
            end, epoch = header.end_offset, header.leader_epoch
            position += header.size_bytes
        if not found:
            raise ProtocolError("There is no record batch.", ErrorCode.CORRUPT_MESSAGE)
        return found, Offset(end), gaps

    def _expect_gaps(self) -> None:
        """Let recovery know that offsets may be missing, before the first are. Raises: StorageFull, StorageUnavailable."""
        self.cleaned_end_offset = self.local_log_start_offset
        if self.config.compacted:
            return  # recovery expects it anyway, and the next checkpoint comes long before the topic is another
        try:
            self._directory.write_checkpoint()
        except OSError as error:
            self.cleaned_end_offset = None
            raise storage_error(error, f"Cannot write the checkpoints for {self.topic}-{self.partition}") from error

    def append_from_coordinator(self, batch: memoryview, *, now_ms: int) -> AppendResult:
        """Write one batch of this broker's own coordinator to an internal topic. Its offsets begin at 0.

        A transactional one has a producer but no sequence: the coordinator's knowledge tells it apart from repetition.

        Raises: RequestRejected MESSAGE_TOO_LARGE, INVALID_PRODUCER_EPOCH; StorageFull; StorageUnavailable. Then nothing was
        appended.
        """
        if self._acceptance.guarded:
            self._check(LogWork.LEAD, len(batch))
        header = parse_header(batch)
        assert header.size_bytes == len(batch)
        if len(batch) > self._max_batch_bytes:
            raise RequestRejected(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A record batch of {len(batch)} bytes is over max.message.bytes, which is {self._max_batch_bytes}.",
            )
        if header.producer_id >= 0:
            self._producers.check_coordinator(header)
            if header.is_transactional:
                self._check_begin(header.producer_id)
        if self.leader_epoch != self._noted_epoch:
            self._note_epoch(self.leader_epoch, Offset(self._end_offset))
        base = self._end_offset
        end = base + header.last_offset_delta + 1
        _BASE_OFFSET.pack_into(batch, 0, base)
        _EPOCH.pack_into(batch, LENGTH_PREFIX_BYTES, self.leader_epoch)
        self._write(batch, [(0, header)], base, end, now_ms, False)
        return AppendResult(Offset(base), Offset(end), NO_TIMESTAMP, False)

    def append_control(
        self,
        control_type: ControlType,
        *,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        coordinator_epoch: int,
        now_ms: int,
        decided_ms: int = -1,
        decision: bytes = b"",
    ) -> AppendResult:
        """Write the marker that ends a producer's transaction in this partition. Harmless if no transaction is open.

        ``decision``: the marker's header. With it the marker's timestamp is ``decided_ms``.

        Raises: RequestRejected INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED; StorageFull; StorageUnavailable.
        """
        if self._acceptance.guarded:
            self._check(LogWork.LEAD, 0)  # a marker is small, and a transaction that waits for it holds others up
        base = self._end_offset
        batch = bytearray(
            build_marker(
                control_type,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp=TimestampMs(decided_ms if decision else now_ms),
                base_offset=Offset(base),
                leader_epoch=self.leader_epoch,
                decision=decision,
            )
        )
        marker = parse_marker(batch)
        assert marker is not None
        self._producers.check_marker(marker)
        if self.leader_epoch != self._noted_epoch:
            self._note_epoch(self.leader_epoch, Offset(base))
        self._write(memoryview(batch), [(0, parse_header(batch))], base, base + 1, now_ms, True)
        return AppendResult(Offset(base), Offset(base + 1), NO_TIMESTAMP, False)

    def _write(
        self,
        records: memoryview,
        found: list[tuple[int, BatchHeader]],
        base: int,
        end: int,
        now_ms: int,
        placed: bool,
    ) -> None:
        """Append checked and patched batches: roll if necessary, write once, then update all state, which cannot fail.

        ``placed``: the headers were read after the offsets were set; otherwise offsets follow one another from ``base``.
        """
        length = len(records)
        writer = self._writer
        if writer.segment.index is None:
            self._reader.load_index_now(writer.segment)
        if writer.must_roll(length, end, found[-1][1].max_timestamp, now_ms):
            # A segment begins where the one before ends, even if its first batch does not.
            self._roll(base if end - 1 - self._end_offset > RELATIVE_OFFSET_MAX else self._end_offset)
        segment = writer.segment
        size, index = segment.size_bytes, segment.index
        assert index is not None
        handle = segment.handle
        file = handle.file
        if file is None:
            file = self._directory.descriptors.open(handle) if self._durability.has_files else self._create_files()
        try:
            if file.pwrite(records, size) != length:
                write_whole(file, records, size)
        except OSError as error:
            raise self._undo_write(file, error) from error
        if not handle.pinned:
            self._directory.descriptors.pin(handle, self)
            self._durability.dirty_since_ms = now_ms
        if size == 0:
            writer.note_first_append(found[0][1].max_timestamp, now_ms)
        offset = base
        for position, header in found:
            (
                header_offset,
                batch_length,
                _,
                _,
                _,
                attributes,
                delta,
                _,
                max_timestamp,
                producer_id,
                epoch,
                sequence,
                record_count,
            ) = header
            if placed:
                offset = header_offset
            last_offset = offset + delta
            if max_timestamp > segment.max_timestamp and record_count:
                segment.max_timestamp = max_timestamp
                segment.max_timestamp_offset = last_offset
            if segment.bytes_since_index_entry > writer.index_interval_bytes:
                writer.add_index_entry(index, last_offset, size + position)
                segment.bytes_since_index_entry = 0
            segment.bytes_since_index_entry += batch_length + LENGTH_PREFIX_BYTES
            if producer_id >= 0:
                if attributes & CONTROL:
                    self._apply_marker(segment, records[position:])
                else:
                    self._producers.apply(
                        producer_id, epoch, sequence, offset, last_offset, max_timestamp, attributes & TRANSACTIONAL
                    )
            offset = last_offset + 1
        segment.size_bytes = size + length
        segment.last_append_ms = now_ms
        segment.end_offset = end
        self._end_offset = end
        durability = self._durability
        durability.unsaved_bytes += length
        if durability.unsaved_bytes >= WRITE_BACK_BYTES or self._flushes_early:
            durability.request_if_due(end, self._flush_messages)
        if self._commits_at_append:
            self._high_watermark = end
            if self._producers.undecided:
                self._producers.decide_below(end)
            if self._waiters:
                self._notify()
        elif self._tells_of_appends:
            self._tell_of_append(records)

    def _tell_of_append(self, records: memoryview | None = None) -> None:
        """A log with a journal or with several replicas has grown: the journal stores ``records``; followers may fetch them, and in
        memory they are stored."""
        if self._acceptance.journaled is not None:
            assert records is not None, "with a journal each append is checked, and a run takes none"
            self._acceptance.journaled.journal.take(records)
        if self.appends_decide and self._memory and self.on_stored is not None:
            self.on_stored()
        if self._tail_waiters:
            for callback in tuple(self._tail_waiters):
                callback()

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

    def _undo_write(self, file: File, error: OSError) -> FirnError:
        """Undo a failed write. Returns: the error to raise."""
        failure = self._writer.undo(file, error)
        if self._writer.torn:
            self._acceptance.tear()
        return failure

    def _apply_marker(self, segment: Segment, batch: memoryview) -> None:
        marker = parse_marker(batch)
        if marker is None:
            return
        completed = self._producers.apply_marker(marker)
        if completed is not None and completed.aborted:
            aborted = self._reader.aborted_of(segment)
            aborted.append(aborted_entry(completed, self._producers.last_stable_offset_after(completed)))

    # --- rolling ----------------------------------------------------------------------------------------------------

    def roll(self) -> bool:
        """Close the active segment and begin a new one. Returns: False if the active segment is empty; then nothing was done.

        Raises: StorageFull, StorageUnavailable; then nothing was done.
        """
        if self._acceptance.guarded:
            self._check(LogWork.ACCESS)
        segment = self._writer.segment
        if segment.size_bytes == 0:
            return False
        if segment.index is None:
            self._reader.load_index_now(segment)
        self._roll(self._end_offset)
        return True

    def maybe_roll_by_time(self, now_ms: int) -> bool:
        """Roll a non-empty active segment whose first record came ``firn.tier.max.lag.ms`` ago or longer, if the topic is tiered,
        or ``max.compaction.lag.ms``, if it is compacted."""
        segment, config = self._writer.segment, self.config
        age_ms = now_ms - segment.first_append_ms
        if segment.size_bytes == 0 or not (
            (config.tiered and age_ms >= config.firn_tier_max_lag_ms)
            or (config.compacted and age_ms >= config.max_compaction_lag_ms)
        ):
            return False
        return self.roll()

    def _roll(self, base_offset: int) -> None:
        appended = self.appended
        self._writer.roll(base_offset)
        self._appended_before = appended
        self._count_appends_from_here()
        self._snapshots.take_at_roll(base_offset)
        self._durability.note_new_names()
        self.request_checkpoint()

    # --- high watermark and those who wait for it ------------------------------------------------------------------

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

    # --- durability -------------------------------------------------------------------------------------------------

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

    def _out_of_range(self, offset: int) -> RequestRejected:
        return RequestRejected(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} of {self.topic}-{self.partition} is not in [{self._log_start_offset}, {self._end_offset}].",
        )

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

    # --- deleting and truncating ------------------------------------------------------------------------------------

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
    def busy(self) -> bool:
        """Whether a sync or a swap of segments is under way, which a truncation must wait for. Both end without other processes."""
        return self._durability.syncing or (self._cleaning is not None and self._cleaning.swapping)

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
            self._snapshots.delete_below(first)
        except OSError as error:
            raise storage_error(error, f"Cannot delete segments of {self.topic}-{self.partition}") from error
        return dropped

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

    def begin_segment_at(self, offset: int) -> None:
        """Go on in a new segment at ``offset``, which is the log end or later: the offsets between were compacted away, and every
        other replica of the log counts them too.

        Raises: StorageFull, StorageUnavailable; then nothing was done.
        """
        assert offset >= self._end_offset, (self, offset)
        if self._acceptance.guarded:
            self._check(LogWork.ACCESS)
        segment = self._writer.segment
        if segment.base_offset == offset:
            return
        if offset > self._end_offset and self.cleaned_end_offset is None:
            self._expect_gaps()
        if segment.index is None:
            self._reader.load_index_now(segment)
        self._roll(offset)
        segment.end_offset = self._end_offset = offset
        self._count_appends_from_here()

    def _end_work_above(self, offset: int) -> None:
        """End every compaction, and all copies of segments with records at or above ``offset``.

        Raises: ConflictError while a sync or a swap is under way; no other compaction begins a swap before it is over.
        """
        if self._cleaning is not None:
            self._cleaning.end()
        if self.busy:
            raise ConflictError(f"{self.topic}-{self.partition} is being synced; try again.")
        self._files.end_holds_above(offset)

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
            while len(self._segments) > 1 and self._segments[-1].base_offset >= offset:
                self._files.discard_newest()
            segment = self._segments[-1]
            if segment.end_offset > offset:
                self._truncate_segment(segment, offset)
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

    def _lower_recovery_point(self, offset: int) -> None:
        """Durably note that recovery must not trust records from ``offset`` on. Called before records are dropped."""
        if self.cleaned_end_offset is not None:
            self.cleaned_end_offset = min(self.cleaned_end_offset, Offset(offset))
        self._durability.lower_recovery_point(offset)

    def _truncate_segment(self, segment: Segment, offset: int) -> None:
        position, header = (
            self._reader.now(lambda: self._reader.batch_at(segment, offset))
            if offset > segment.base_offset
            else (0, None)
        )
        end_offset = header.base_offset if header is not None else segment.base_offset
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


def _without_false_maximum(records: memoryview, position: int, header: BatchHeader) -> BatchHeader:
    """The header of a produced batch, with a greatest timestamp that its base timestamp does not contradict.

    librdkafka writes a maximum of 0 over records whose timestamps are all -1. A maximum of 1970 must not stand for "no timestamp".
    """
    if header.base_timestamp == NO_TIMESTAMP and header.max_timestamp == 0:
        return rewrite_header(records, position, max_timestamp=NO_TIMESTAMP)
    return header
