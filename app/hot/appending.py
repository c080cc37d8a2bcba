"""Appends to one log: by a leader, alone or several together, by a follower, and by this broker's coordinators.

An append is checked, written by one system call, and then applied to the state of the log, which cannot fail. Nearly all batches
of clients take a straight way, which does the same as the general one; a test holds the two against each other.

Tests: ``tests/hot/test_append.py``, ``tests/hot/test_produced_records.py``, ``tests/hot/test_model.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from app.configs import TimestampType, TopicConfig
from app.configs.numbers import LONG_MAX
from app.core.errors import CorruptionError, ErrorCode, FirnError, ProtocolError, RequestRejected
from app.core.limits import DECOMPRESSED_BATCH_BYTES_MAX
from app.core.units import NO_TIMESTAMP, Offset, ProducerEpoch, ProducerId, TimestampMs
from app.hot.acceptance import LogWork
from app.hot.durability import WRITE_BACK_BYTES
from app.hot.indexes import SegmentIndex
from app.hot.log_offsets import LogOffsets
from app.hot.preparation import codec_of, looks_at_batches, needs_preparation, prepare
from app.hot.producers import BATCHES_KEPT, SEQUENCE_MASK, aborted_entry
from app.hot.segments import RELATIVE_OFFSET_MAX, Segment
from app.machine.files import File, storage_error, write_all, write_whole
from app.records.batch import (
    CONTROL,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    PLACE,
    TIMESTAMPS,
    TIMESTAMPS_POSITION,
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
from app.records.control import ControlType, EndTransactionMarker, build_marker, parse_marker

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


class AppendedLog(LogOffsets):
    """A log, as far as it grows."""

    __slots__ = (
        "_after_max_ms",
        "_append_time",
        "_before_max_ms",
        "_codec",
        "_fast_before_ms",
        "_flush_messages",
        "_flushes_early",
        "_max_batch_bytes",
        "_needs_preparation",
        "_plain",
    )

    def _set_limits(self, config: TopicConfig) -> None:
        """Apply settings of the topic to all later appends."""
        self._max_batch_bytes = config.max_message_bytes
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._fast_before_ms = min(config.message_timestamp_before_max_ms, ORDINARY_AGE_MS)
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._append_time = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        self._flush_messages = config.flush_messages
        self._codec = codec_of(config)
        self._needs_preparation = self._codec is not None or looks_at_batches(config)
        self._plain = not self._needs_preparation and not self._append_time
        self._flushes_early = config.flush_messages < LONG_MAX

    def _check_begin(self, producer_id: int) -> None:
        """A transactional batch is to be appended. Raises: the error of ``pause_transactions`` if it begins a transaction."""
        if self._acceptance.settling is not None and producer_id not in self._producers.open_transactions:
            self._acceptance.check(LogWork.BEGIN)

    # --- produced batches -------------------------------------------------------------------------------------------

    def needs_preparation(self, records: memoryview) -> bool:
        """Whether ``prepare_append`` has work: to recompress a batch, to check its records, or to compute the greatest timestamp
        that its header has not. Cheap."""
        if self._needs_preparation and needs_preparation(records, self.config, self._codec):
            return True
        if self._append_time or len(records) < HEADER_BYTES:
            return False
        base_timestamp, max_timestamp = TIMESTAMPS.unpack_from(records, TIMESTAMPS_POSITION)
        return bool(max_timestamp < 0 or max_timestamp < base_timestamp)

    def has_batch(self, records: memoryview) -> bool:
        """Whether one sound batch of an idempotent producer is in the log already, so that an append would find a duplicate."""
        header = parse_header(records)
        entry = self._producers.entries.get(header.producer_id) if header.producer_id >= 0 else None
        if entry is None or entry.epoch != header.producer_epoch:
            return False
        last_sequence = (header.base_sequence + header.last_offset_delta) & SEQUENCE_MASK
        return any(one[0] == header.base_sequence and one[1] == last_sequence for one in entry.batches)

    def prepare_append(self, records: memoryview, *, raw_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX) -> bytearray:
        """Like ``preparation.prepare``. Run it in the pool, before ``append_as_leader``. It does not change the log."""
        return prepare(records, self.config, now_ms=self._directory.now_ms(), raw_bytes_max=raw_bytes_max)

    def append_as_leader(
        self, records: memoryview, *, now_ms: int, prepared: bool = False, may_prepare: bool = True
    ) -> AppendResult:
        """Check produced batches, assign their offsets, and write them. Synchronous; one write; cost per batch.

        ``records`` must be writable: offsets and epochs are patched in place. It is not kept. Several batches are accepted only
        if none is idempotent. ``prepared``: they come from ``prepare_append``; without it they are prepared here, now, or with
        ``may_prepare=False``, or if the topic has its schemas checked, PreparationNeeded is raised.

        Guarantees: on an error nothing was appended, though ``records`` may have been patched. The result is stored as the
        topic's durability asks once ``wait_stored(last_offset_end)`` says so; that holds for a duplicate too.

        Raises: ProtocolError, RequestRejected (as ``check_batches``; INVALID_TIMESTAMP, INVALID_RECORD,
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE); StorageFull; StorageUnavailable.
        """
        if self._acceptance.guarded:
            self._check(LogWork.LEAD, len(records))
        fields = check_single(records, self._max_batch_bytes)
        # The way that nearly all appends go: one batch that is next in order, into a segment with room, its file open. Everything
        # else takes the general way, which does the same in the same order; a test holds the two against each other. This way also
        # has its own copy of ``_advance``: a call of it would be a third one for each append.
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
                PLACE.pack_into(records, 0, base, batch_length, leader_epoch)
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
                    self._tell_of_append((records,))
                return _new_result(AppendResult, (base, end, NO_TIMESTAMP, False))
        if fields is not None:
            found = [(0, BatchHeader._make(fields))]
        else:
            found = check_batches(records, max_batch_bytes=self._max_batch_bytes)
        return self.append_generally(records, found, now_ms, prepared, may_prepare)

    def check_plain(self, records: memoryview) -> HeaderFields | None:
        """As ``check_single``: the fields of a batch for ``append_run``. None if the batch needs ``append_as_leader``, or the log
        takes no runs now."""
        return check_single(records, self._max_batch_bytes) if self._acceptance.takes_runs else None

    def append_run(self, run: Sequence[tuple[memoryview, HeaderFields]], *, now_ms: int) -> list[AppendResult]:
        """Append the first batches of ``run`` by one write: those that ``append_as_leader`` would take its straight way with.

        ``run``: batches as for ``append_as_leader``, each with the fields from ``check_single``.

        Returns: a result for each batch that was appended; perhaps fewer than there are batches, or none. The caller hands the next
        one to ``append_as_leader``, which raises its error. Raises: StorageFull, StorageUnavailable; as ``Journal.admit``, also if
        the journal has room for some of the batches but not for all. Nothing was appended then, though batches may have been
        patched, as by ``append_as_leader``.
        """
        writer = self._writer
        segment = writer.segment
        handle = segment.handle
        index = segment.index
        size = segment.size_bytes
        leader_epoch = self.leader_epoch
        if (
            not self._acceptance.takes_runs
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
        room_in_indexes = min(
            writer.index_entries_max - len(index.offsets), writer.time_entries_max - len(index.times), RUN_BATCHES_MAX
        )
        for records, fields in run[: max(1, room_in_indexes)]:
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
            PLACE.pack_into(records, 0, base, batch_length, leader_epoch)
            buffers.append(records)
            results.append(_new_result(AppendResult, (base, last_offset + 1, NO_TIMESTAMP, False)))
            base = last_offset + 1
        if not results:
            return []
        journaled = self._acceptance.journaled
        if journaled is not None:
            journaled.journal.admit(sum([len(records) for records in buffers]), len(buffers))
        file = handle.file
        assert file is not None
        try:
            write_all(file, buffers, size)
        except OSError as error:
            raise self._undo_write(file, error) from error
        self._advance(segment, index, run[: len(results)], self._end_offset, False, buffers, now_ms)
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
            if not may_prepare or self.config.checks_schemas:
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
            PLACE.pack_into(records, position, end, header[1], leader_epoch)
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

    # --- batches that have offsets ----------------------------------------------------------------------------------

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

    # --- batches of this broker -------------------------------------------------------------------------------------

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
        PLACE.pack_into(batch, 0, base, header.batch_length, self.leader_epoch)
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
        timestamp = TimestampMs(decided_ms if decision else now_ms)
        marker = EndTransactionMarker(
            control_type, coordinator_epoch, producer_id, producer_epoch, Offset(base), timestamp
        )
        self._producers.check_marker(marker)
        batch = bytearray(
            build_marker(
                control_type,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp=timestamp,
                base_offset=Offset(base),
                leader_epoch=self.leader_epoch,
                decision=decision,
            )
        )
        if self.leader_epoch != self._noted_epoch:
            self._note_epoch(self.leader_epoch, Offset(base))
        self._write(memoryview(batch), [(0, parse_header(batch))], base, base + 1, now_ms, True, marker)
        return AppendResult(Offset(base), Offset(base + 1), NO_TIMESTAMP, False)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(
        self,
        records: memoryview,
        found: list[tuple[int, BatchHeader]],
        base: int,
        end: int,
        now_ms: int,
        placed: bool,
        marker: EndTransactionMarker | None = None,
    ) -> None:
        """Append checked and patched batches: roll if necessary, write once, then ``_advance``.

        ``placed``: the headers were read after the offsets were set; otherwise offsets follow one another from ``base``.
        ``marker``: what the only batch says, if it is one and that is known.
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
        self._advance(segment, index, found, base, placed, (records,), now_ms, marker)

    def _advance(
        self,
        segment: Segment,
        index: SegmentIndex,
        batches: Sequence[tuple[object, HeaderFields]],
        base: int,
        placed: bool,
        written: Sequence[memoryview],
        now_ms: int,
        marker: EndTransactionMarker | None = None,
    ) -> None:
        """Apply batches that were just written at the end of ``segment`` to all state of the log. It cannot fail.

        ``batches``: at least one, each with the fields of its header. ``placed``: the fields were read after the offsets were set;
        otherwise offsets follow one another from ``base``. ``written``: the bytes of the batches, in one piece; or a piece for each
        batch of a run, which has no control batches. ``marker``: as of ``_write``.
        """
        writer = self._writer
        producers = self._producers
        entries = producers.entries
        start = position = segment.size_bytes
        end = base
        for _, fields in batches:
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
            ) = fields
            offset = header_offset if placed else end
            last_offset = offset + delta
            length = batch_length + LENGTH_PREFIX_BYTES
            if max_timestamp > segment.max_timestamp and record_count:
                segment.max_timestamp = max_timestamp
                segment.max_timestamp_offset = last_offset
            if segment.bytes_since_index_entry > writer.index_interval_bytes:
                writer.add_index_entry(index, last_offset, position)
                segment.bytes_since_index_entry = length
            else:
                segment.bytes_since_index_entry += length
            if producer_id >= 0:
                if attributes & CONTROL:
                    assert len(written) == 1, "a run has no control batches"
                    if marker is None:
                        marker = parse_marker(written[0][position - start :])
                    if marker is not None:
                        self._apply_marker(segment, marker)
                    marker = None
                elif (
                    producer_id in entries
                    and (entry := entries[producer_id]).epoch == epoch
                    and sequence >= 0
                    and (entry.transaction_first_offset >= 0 or not attributes & TRANSACTIONAL)
                ):
                    # As ``apply`` does it for a producer that goes on. The call would cost more than the work.
                    entry.last_sequence = last_sequence = (sequence + delta) & SEQUENCE_MASK
                    entry.last_timestamp = max_timestamp
                    kept = entry.batches
                    kept.append((sequence, last_sequence, offset, last_offset, max_timestamp))
                    if len(kept) > BATCHES_KEPT:
                        del kept[0]
                else:
                    producers.apply(
                        producer_id, epoch, sequence, offset, last_offset, max_timestamp, attributes & TRANSACTIONAL
                    )
            position += length
            end = last_offset + 1
        segment.size_bytes = position
        segment.last_append_ms = now_ms
        segment.end_offset = self._end_offset = end
        durability = self._durability
        durability.unsaved_bytes += position - start
        if durability.unsaved_bytes >= WRITE_BACK_BYTES or self._flushes_early:
            durability.request_if_due(end, self._flush_messages)
        if self._commits_at_append:
            self._high_watermark = end
            if producers.undecided:
                producers.decide_below(end)
            if self._waiters:
                self._notify()
        elif self._tells_of_appends:
            self._tell_of_append(written)

    def _tell_of_append(self, written: Sequence[memoryview]) -> None:
        """A log with a journal or with several replicas has grown: the journal stores the batches that were ``written``; followers
        may fetch them, and in memory they are stored."""
        if self._acceptance.journaled is not None:
            self._acceptance.journaled.journal.take(written)
        if self.appends_decide and self._memory and self.on_stored is not None:
            self.on_stored()
        if self._tail_waiters:
            for callback in tuple(self._tail_waiters):
                callback()

    def _undo_write(self, file: File, error: OSError) -> FirnError:
        """Undo a failed write. Returns: the error to raise."""
        failure = self._writer.undo(file, error)
        if self._writer.torn:
            self._acceptance.tear()
        return failure

    def _apply_marker(self, segment: Segment, marker: EndTransactionMarker) -> None:
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


def _without_false_maximum(records: memoryview, position: int, header: BatchHeader) -> BatchHeader:
    """The header of a produced batch, with a greatest timestamp that its base timestamp does not contradict.

    librdkafka writes a maximum of 0 over records whose timestamps are all -1. A maximum of 1970 must not stand for "no timestamp".
    """
    if header.base_timestamp == NO_TIMESTAMP and header.max_timestamp == 0:
        return rewrite_header(records, position, max_timestamp=NO_TIMESTAMP)
    return header
