"""One leadership of one partition: it takes over, takes records, answers readers, and tiers (ADR 0037, J24 to J35)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from app.errors import CorruptionError, FirnError, RequestRejected
from app.hot.checkpoints import EpochStart
from app.hot.epochs import LeaderEpochs
from app.hot.producers import ProducerStates, encode_snapshot, parse_snapshot
from app.metadata.wal_ranges import WalId, WalRange
from app.records.batch import parse_header, patch_batch
from app.units import LeaderEpoch, Offset, TopicIdPartition
from app.wal.format import BatchFields, WalFooter, batch_fields
from app.wal.states import captured, replay
from app.wal.takeover import NeedsManifest, Piece, TakeOver, Tiered
from tests.wal_simulation.bucket import Manifest, Segment, Stored
from tests.wal_simulation.cluster import Mode, PartitionRecord

if TYPE_CHECKING:
    from tests.wal_simulation.broker import Broker

TIER_MS: Final = (300.0, 1500.0)
AGAIN_MS: Final = (150.0, 400.0)
TROUBLE_MAX: Final = 12


@dataclass(slots=True)
class LocalBatch:
    """A batch on the local disk."""

    fields: BatchFields
    value: int
    snapshot: bytes
    """Producers after it."""

    @property
    def values(self) -> list[int]:
        return [self.value] * (self.fields.last_offset_delta + 1)


@dataclass(slots=True)
class LocalLog:
    """The log of a partition on one disk."""

    start: int = 0
    batches: list[LocalBatch] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)

    @property
    def end(self) -> int:
        return int(self.batches[-1].fields.end_offset) if self.batches else self.start

    def cut(self, end: int) -> None:
        """Forget everything from ``end`` on."""
        self.batches = [batch for batch in self.batches if batch.fields.base_offset < end]
        self.epochs.truncate_from_end(Offset(end))

    def values_from(self, offset: int, end: int) -> list[int]:
        """Values of [offset, end), up to where they are here; ``offset`` is not below the start."""
        found: list[int] = []
        for batch in self.batches:
            base = batch.fields.base_offset
            for index, value in enumerate(batch.values):
                if offset <= base + index < end:
                    found.append(value)
        return found


class Leading:
    """Belongs to one broker epoch and one leader epoch."""

    def __init__(self, broker: Broker, key: TopicIdPartition, record: PartitionRecord) -> None:
        self.broker = broker
        self.world = broker.world
        self.key = key
        self.leader_epoch = record.leader_epoch
        self.record = record
        self.mode = record.mode
        self.closed = False
        self.serving = False
        self.released_at: int | None = None
        self._release: int | None = None
        """The last number, once it is known."""
        self.high_watermark = 0
        self.log = LocalLog()
        self.producers = ProducerStates()
        self.manifest: Manifest | None = None
        self.pieces: list[Piece] = []
        self._snapshot_at_start = b""
        self._start = 0
        self._begin_number: int | None = None
        """While the durability changes: the first number that may have records, and the first offset there."""
        self._begin_offset = 0
        self._walled = False
        self._pending: list[tuple[int, int, Callable[[str, int], None]]] = []
        self._tiering = False
        self._trouble = 0

    # --- beginning --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Find where the partition goes on."""
        if self.mode is Mode.OBJECT:
            self._gather(None)
            return
        log = self.broker.machine.logs.setdefault(self.key, LocalLog())
        producers, epochs = ProducerStates(), LeaderEpochs()
        replay(producers, epochs, [batch.fields for batch in log.batches])
        self._serve(log, producers, Offset(log.end), ())

    def _again(self, manifest: Manifest | None) -> None:
        self.broker.after(self.broker.rng.uniform(*AGAIN_MS), self._refresh_and_gather, manifest)

    def _refresh_and_gather(self, manifest: Manifest | None) -> None:
        if self.closed:
            return
        if self.world.rules.rereads_images:
            self.broker.refresh(lambda: None if self.closed else self._gather(manifest))
        else:
            self._gather(manifest)

    def _gather(self, manifest: Manifest | None) -> None:
        """Read the footers of all objects in the ranges (J15: they are closed)."""
        ranges = [each for each in self.record.ranges if not each.is_open]
        if not self.world.rules.counts_ranges_only:
            ranges = self._widened(ranges)
        objects: dict[WalId, dict[int, WalFooter]] = {}
        wals = sorted({each.wal for each in ranges})

        def read_wal(left: list[WalId]) -> None:
            if self.closed:
                return
            if not left:
                self._decide(ranges, objects, manifest)
                return
            wal = left[0]
            there = objects[wal] = {}
            self.broker.until_known(
                lambda told: self.world.bucket.list_numbers(self.broker, wal, -1, told),
                lambda numbers: read_objects(wal, numbers, there, lambda: read_wal(left[1:])),
            )

        def read_objects(wal: WalId, numbers: list[int], there: dict[int, WalFooter], done: Callable[[], None]) -> None:
            numbers = [each for each in numbers if any(one.wal == wal and one.covers(each) for one in ranges)]
            waiting = set(numbers)

            def told(number: int, stored: Any) -> None:
                if isinstance(stored, Stored):
                    there[number] = stored.footer
                waiting.discard(number)
                if not waiting:
                    done()

            if not numbers:
                done()
            for number in numbers:
                self.broker.until_known(
                    lambda answer, number=number: self.world.bucket.read(self.broker, wal, number, answer),  # type: ignore[misc]
                    lambda stored, number=number: told(number, stored),  # type: ignore[misc]
                )

        read_wal(wals)

    def _widened(self, ranges: list[WalRange]) -> list[WalRange]:
        """Planted: every object of a log counts."""
        wide = []
        for each in ranges:
            log = self.world.bucket.wals.get(each.wal, {})
            numbers = [number for number, one in log.items() if not one.footer.is_seal]
            wide.append(each._replace(last=max(numbers, default=-1)))
        return wide

    def _decide(
        self, ranges: list[WalRange], objects: dict[WalId, dict[int, WalFooter]], manifest: Manifest | None
    ) -> None:
        tiered = None if manifest is None else Tiered(Offset(manifest.tiered_end), Offset(manifest.log_start))
        try:
            taken = self.world.rules.continue_from(self.key, ranges, objects, tiered)
        except CorruptionError as error:
            self._trouble += 1
            if self._trouble > TROUBLE_MAX:
                self.world.checkers.damage(self.key, self.leader_epoch, error)
                return
            self._read_manifest(self._again)
            return
        if isinstance(taken, NeedsManifest):
            # The manifest first, then the footers again: an object may have been tiered and trimmed in between (J25).
            self._read_manifest(self._refresh_and_gather)
            return
        self._take(taken, manifest)

    def _read_manifest(self, then: Callable[[Manifest], None]) -> None:
        self.broker.until_known(
            lambda told: self.world.bucket.read_manifest(self.broker, self.key, told),
            lambda manifest: None if self.closed else then(manifest),
        )

    def _take(self, taken: TakeOver, manifest: Manifest | None) -> None:
        producers, epochs = taken.producers, taken.leader_epochs
        if producers is None or epochs is None:
            assert manifest is not None
            producers, epochs = ProducerStates(), ()
            if manifest.segments:
                producers.load_rows(parse_snapshot(manifest.segments[-1].snapshot))
                epochs = manifest.segments[-1].epochs
        taken = TakeOver(taken.end_offset, epochs, producers, taken.pieces)
        log = self.broker.machine.logs.get(self.key, LocalLog())
        kept = self.world.rules.local_end(Offset(log.end), log.epochs.entries(), taken)
        if kept is None:
            log = LocalLog(taken.end_offset, epochs=LeaderEpochs(epochs))
        else:
            log.cut(kept)
        self.broker.machine.logs[self.key] = log
        self._serve(log, producers, Offset(log.end), taken.pieces)

    def _serve(self, log: LocalLog, producers: ProducerStates, end: Offset, pieces: tuple[Piece, ...]) -> None:
        broker = self.broker
        assert broker.writer is not None
        self.log, self.producers, self.pieces = log, producers, list(pieces)
        self._start = end
        self._snapshot_at_start = encode_snapshot(producers.rows())
        self.high_watermark = end
        log.epochs.assign(LeaderEpoch(self.leader_epoch), end)
        self.world.checkers.leads(self.key, self.leader_epoch, broker.node_id, end)
        self._walled = self.mode is not Mode.REPLICA
        if self._walled:
            self._begin_wal()
        self.serving = True
        self._read_manifest(self._got_manifest)
        self._tier_later()

    def _begin_wal(self) -> None:
        assert self.broker.writer is not None
        self.broker.writer.lead(self.key)
        self._begin_number = self.broker.writer.next_number
        self._begin_offset = self.log.end

    def _got_manifest(self, manifest: Manifest) -> None:
        if self.manifest is None or manifest.tiered_end >= self.manifest.tiered_end:
            self.manifest = manifest

    def note_record(self, record: PartitionRecord) -> None:
        """A newer image, in which this leadership goes on."""
        before, self.record = self.record, record
        if record.mode is not self.mode:
            was, self.mode = self.mode, record.mode
            if was is Mode.REPLICA and self.serving:
                self._walled = True
                self._begin_wal()
        if self.released_at is not None and record.partition_epoch > before.partition_epoch:
            # J18: whatever was asked for is refused for good.
            self._resume()

    def close(self) -> None:
        """Another leadership has begun, or this broker epoch has ended."""
        self.closed, self.serving = True, False

    # --- records ----------------------------------------------------------------------------------------------------------

    def produce(self, batch: bytes, value: int, reply: Callable[[str, int], None]) -> None:
        """One batch. The reply comes when it is stored as the partition asks."""
        broker, writer = self.broker, self.broker.writer
        if not self.serving or self.released_at is not None or writer is None:
            reply("not leader", -1)
            return
        header = parse_header(batch)
        try:
            original = self.producers.check(header, self.producers.entries.get(header.producer_id))
            if original is not None:
                self._reply_when_stored(original.last_offset + 1, original.base_offset, reply)
                return
            if self._walled:
                writer.check_room(self.key, len(batch))
        except FirnError as error:
            reply(error.code.name if isinstance(error, RequestRejected) else "fenced", -1)
            return
        base = Offset(self.log.end)
        state = None
        if self._walled and writer.wants_state(self.key):
            state = captured(self.producers, self.log.epochs.entries(), base)
        patched = bytearray(batch)
        patch_batch(patched, 0, base, LeaderEpoch(self.leader_epoch))
        data = bytes(patched)
        header = parse_header(data)
        self.producers.apply_header(header)
        self.log.epochs.assign(header.leader_epoch, base)
        fields = batch_fields(header)
        self.log.batches.append(LocalBatch(fields, value, encode_snapshot(self.producers.rows())))
        self._reply_when_stored(int(fields.end_offset), base, reply)
        if self._walled:
            linger_ms = self.world.plan.linger_ms
            writer.append(self.key, data, fields, now_ms=int(broker.now_ms), linger_ms=linger_ms, state=state)
            broker.pump()
        else:
            self._commit(fields.end_offset)

    def _reply_when_stored(self, end: int, base: int, reply: Callable[[str, int], None]) -> None:
        if end <= self.high_watermark:
            reply("ok", base)
        else:
            self._pending.append((end, base, reply))

    def acknowledged(self, end: Offset) -> None:
        """Everything below is in objects that count."""
        if not self.closed and self._walled:
            self._commit(end)
            self._try_release()

    def _commit(self, end: Offset) -> None:
        if end > self.high_watermark:
            before, self.high_watermark = self.high_watermark, int(end)
            self.world.checkers.committed(self.key, self.leader_epoch, before, self.log.values_from(before, end))
            for each in [one for one in self._pending if one[0] <= end]:
                self._pending.remove(each)
                each[2]("ok", each[1])

    # --- release ----------------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """J18: stop, flush, and ask."""
        writer = self.broker.writer
        if self.serving and self.mode is Mode.OBJECT and self.released_at is None and writer is not None:
            self.released_at = self.record.partition_epoch
            writer.stop(self.key)
            self._release = None
            self.broker.pump()
            self._try_release()
            if not self.world.rules.release_is_final:
                self.broker.after(400.0, self._resume)

    def _resume(self) -> None:
        writer = self.broker.writer
        if not self.closed and self.released_at is not None and writer is not None and writer.sealed_at is None:
            self.released_at = self._release = None
            writer.resume(self.key)

    def _try_release(self) -> None:
        writer = self.broker.writer
        if self.released_at is None or self._release is not None or self.closed or writer is None:
            return
        last = writer.last_number_if_flushed(self.key)
        if last is None and not self.world.rules.release_is_flushed:
            last = writer.durable_end - 1
        if last is not None:
            self._release = last
            self._ask_release()

    def _ask_release(self) -> None:
        if self.closed or self.released_at is None or self._release is None:
            return
        self.broker.ask_controller(
            "release", self.key, self.broker.node_id, self.leader_epoch, self.released_at, self._release
        )
        self.broker.after(500.0, self._ask_release)

    # --- readers ----------------------------------------------------------------------------------------------------------

    def fetch(self, offset: int, reply: Callable[[list[int], int], None]) -> None:
        """Values from ``offset`` on, below the high watermark: of the local log, a segment, or an object of a sealed range."""
        if not self.serving or offset >= self.high_watermark:
            return
        if offset >= self.log.start:
            reply(self.log.values_from(offset, self.high_watermark)[:20], offset)
            return
        manifest = self.manifest
        if manifest is not None and offset < max(manifest.tiered_end, manifest.log_start):
            for segment in manifest.segments:
                if segment.start <= offset < segment.end:
                    reply(list(segment.values[offset - segment.start :])[:20], offset)
            return
        for piece in self.pieces:
            if piece.section.base_offset <= offset < piece.section.end_offset:
                self.world.bucket.read(
                    self.broker,
                    piece.wal,
                    piece.number,
                    lambda stored, piece=piece: self._read(piece, stored, offset, reply),
                )
                return
        if manifest is None:
            return
        # J31: neither tier has it. The manifest may have grown.
        self._read_manifest(self._got_manifest)

    def _read(self, piece: Piece, stored: Any, offset: int, reply: Callable[[list[int], int], None]) -> None:
        if isinstance(stored, Stored):
            values = self.world.values_of(stored, self.key)
            reply(values[offset - piece.section.base_offset :][:20], offset)
        elif stored is not None and not self.closed:
            self._read_manifest(self._got_manifest)

    # --- the tier ---------------------------------------------------------------------------------------------------------

    def _tier_later(self) -> None:
        self.broker.after(self.broker.rng.uniform(*TIER_MS), self._tier)

    def _tier(self) -> None:
        if self.closed:
            return
        self._tier_later()
        self._ask_drop()
        self._ask_finish()
        if self.manifest is None or self._tiering or self.released_at is not None:
            return
        ends = [self._start, *(int(batch.fields.end_offset) for batch in self.log.batches)]
        ends = [end for end in ends if self.manifest.tiered_end < end <= self.high_watermark and end >= self._start]
        if not ends:
            if self.broker.rng.random() < 0.05:
                self._raise_log_start()
            return
        end = self._start if ends[0] == self._start else self.broker.rng.choice(ends[-3:])
        self._tiering = True
        self._collect(self.manifest.tiered_end, end, [])

    def _collect(self, start: int, end: int, values: list[int]) -> None:
        """J30: read what is to be tiered from the sealed ranges and the local log."""
        at = start + len(values)
        if self.closed or at >= end:
            if not self.closed:
                self._upload(start, end, values[: end - start])
            return
        if at >= self.log.start:
            self._upload(start, end, [*values, *self.log.values_from(at, end)])
            return
        for piece in self.pieces:
            if piece.section.base_offset <= at < piece.section.end_offset:

                def told(stored: Any, piece: Piece = piece) -> None:
                    if isinstance(stored, Stored):
                        more = self.world.values_of(stored, self.key)[at - piece.section.base_offset :]
                        self._collect(start, end, [*values, *more])
                    else:
                        self._tiering = False

                self.world.bucket.read(self.broker, piece.wal, piece.number, told)
                return
        self._tiering = False

    def _upload(self, start: int, end: int, values: list[int]) -> None:
        assert len(values) == end - start, (self.key, start, end, len(values))
        epochs = tuple(each for each in self._lineage() if each.start_offset < end)
        snapshot = self._snapshot_at_start
        for batch in self.log.batches:
            if batch.fields.end_offset == end:
                snapshot = batch.snapshot
        segment = Segment(start, end, tuple(values), epochs, snapshot)
        if not self.world.rules.floor_is_durable:
            self.broker.needs.note_floor(self.key, Offset(end))

        def told(done: bool | None) -> None:
            self._tiering = False
            if self.closed:
                return
            if done:
                self._tiered(end)
            else:
                self._read_manifest(self._after_undecided)

        self.broker.after(
            self.broker.rng.uniform(20, 200),
            lambda: self.world.bucket.append_segment(self.broker, self.key, self.leader_epoch, segment, told),
        )

    def _lineage(self) -> tuple[EpochStart, ...]:
        return self.log.epochs.entries()

    def _after_undecided(self, manifest: Manifest) -> None:
        self._got_manifest(manifest)
        self._tiered(manifest.tiered_end)

    def _tiered(self, end: int) -> None:
        """The manifest's entry is durable (J33)."""
        self._read_manifest(self._got_manifest)
        self.broker.needs.note_floor(self.key, Offset(end))
        if self.mode is Mode.OBJECT and self.broker.rng.random() < 0.5:
            self._delete_local(end)

    def _delete_local(self, end: int) -> None:
        keep = [batch for batch in self.log.batches if batch.fields.base_offset >= end]
        dropped = len(self.log.batches) - len(keep)
        if dropped:
            self.log.start = int(self.log.batches[dropped - 1].fields.end_offset)
            self.log.batches = keep

    def _raise_log_start(self) -> None:
        manifest = self.manifest
        assert manifest is not None
        if self.mode is Mode.OBJECT and manifest.tiered_end > manifest.log_start:
            start = self.broker.rng.randint(manifest.log_start, manifest.tiered_end)
            self.world.bucket.raise_log_start(
                self.broker, self.key, self.leader_epoch, start, lambda done: self._read_manifest(self._got_manifest)
            )

    def _ask_drop(self) -> None:
        """J35."""
        if self.manifest is None or not self.serving:
            return
        closed = [each for each in self.record.ranges if not each.is_open]
        floor = max(self.manifest.tiered_end, self.manifest.log_start)
        needed = [piece for piece in self.pieces if piece.section.end_offset > floor]
        if not self.world.rules.drops_tiered_only:
            done = True
        else:
            # With a section of its own the leader's log has the producers' older batches; after five minutes nobody repeats them.
            done = (
                floor >= self._start
                and not needed
                and (self._has_own_section or self.broker.rng.random() < (0.02 if self.world.writing else 0.5))
            )
        if closed and done and (not self.world.writing or self.broker.rng.random() < self.world.plan.drop_share):
            self.broker.ask_controller("drop", self.key, self.leader_epoch, closed)

    @property
    def _has_own_section(self) -> bool:
        return self.high_watermark > self._start

    def _ask_finish(self) -> None:
        """J40: everything below the first record in this log is tiered."""
        if self.mode is not Mode.TO_OBJECT or not self._walled or self.manifest is None or not self.serving:
            return
        if self.manifest.tiered_end >= self._begin_offset:
            self.broker.ask_controller("finish_switch", self.key, self.leader_epoch, self._begin_number)
