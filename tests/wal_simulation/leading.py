"""One leadership of one partition: it takes over, takes records, answers readers, and tiers (ADR 0037, J24 to J35)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import CorruptionError, FirnError, RequestRejected
from app.core.units import LeaderEpoch, Offset, TopicIdPartition
from app.hot.epochs import LeaderEpochs
from app.hot.indexes import AbortedTransaction
from app.hot.producers import ProducerStates, aborted_entry
from app.metadata.image.wal_ranges import WalId, WalRange
from app.records.batch import BatchHeader, parse_header, patch_batch
from app.records.control import EndTransactionMarker, parse_marker
from app.wal.format import MarkerKind, WalFooter, batch_fields
from app.wal.states import captured, restored
from app.wal.takeover import NeedsManifest, Piece, TakeOver, Tiered, narrowed, ranges_are_done
from tests.wal_simulation.bucket import Manifest, Segment, Stored
from tests.wal_simulation.cluster import Mode, PartitionRecord
from tests.wal_simulation.locallog import LocalBatch, LocalLog

if TYPE_CHECKING:
    from tests.wal_simulation.broker import Broker

TIER_MS: Final = (300.0, 1500.0)

Reply = Callable[[str, int], None]
"""Outcome and base offset of a batch."""


class Fetched:
    """What a reader gets: values from ``at`` on, or a reset to ``at``, or the news that the records there are damaged."""

    __slots__ = ("aborted", "at", "kind", "values")

    def __init__(
        self, kind: str, at: int, values: list[int] | None = None, aborted: Iterable[AbortedTransaction] = ()
    ) -> None:
        self.kind, self.at, self.values, self.aborted = kind, at, values or [], tuple(aborted)


def _tiered(manifest: Manifest) -> Tiered:
    return Tiered(Offset(manifest.tiered_end), Offset(manifest.log_start))


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
        self._taken: TakeOver | None = None
        """What is in closed ranges, unless the partition goes on from a disk."""
        self._has_own_section = False
        """Whether an object that counts has records of this leadership."""
        self._start = 0
        """Where this leadership began."""
        self._closed_end = 0
        """Closed ranges have nothing above, once this leadership has begun."""
        self._begin_number: int | None = None
        """While the durability changes: the first number that may have records, and the first offset there."""
        self._begin_offset = 0
        self._walled = False
        self._is_copied = False
        """Whether the other members have everything that this broker's disk has."""
        self._pending: list[tuple[int, int, Reply]] = []
        self._tiering = False
        self._must_roll = False

    # --- beginning --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Find where the partition goes on."""
        by_log = self.mode.fails_over_by_log
        if self.mode is Mode.TO_OBJECT and not self.world.rules.changes_fail_over_as_before:
            by_log = True
        if by_log:
            self.broker.steps["read"] += 1
            self._gather()
            return
        log = self.broker.disk.setdefault(self.key, LocalLog())
        self._is_copied = True
        self._serve(log, log.producers(), None)

    def _gather(self) -> None:
        """Read the footers of all objects in the ranges (J15: they are closed)."""
        ranges = [each for each in self.record.ranges if not each.is_open]
        if not self.world.rules.ignores_older_logs:
            ranges = [*self._older_logs(ranges), *ranges]
        objects: dict[WalId, dict[int, WalFooter]] = {}
        wals = sorted({each.wal for each in ranges})

        def read_wal(left: list[WalId]) -> None:
            if self.closed:
                return
            if not left:
                self._decide(ranges, objects, None)
                return
            wal = left[0]
            there = objects[wal] = {}
            early = self.broker.read_early.get(wal)
            if early is not None:
                there.update(early)
                read_wal(left[1:])
                return
            self.broker.until_known(
                lambda told: self.world.bucket.list_numbers(self.broker, wal, -1, told),
                lambda numbers: read_objects(wal, numbers, there, lambda: read_wal(left[1:])),
            )

        def read_objects(wal: WalId, numbers: list[int], there: dict[int, WalFooter], done: Callable[[], None]) -> None:
            if self.world.rules.ignores_garbage:
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

    def _older_logs(self, ranges: list[WalRange]) -> list[WalRange]:
        """Planted: every log of the brokers in the record counts, whatever its broker epoch."""
        found = []
        for wal, log in sorted(self.world.bucket.wals.items()):
            newer = any(each.broker_id == wal.broker_id and each.broker_epoch > wal.broker_epoch for each in ranges)
            if not newer or any(each.wal == wal for each in ranges):
                continue
            spans: dict[int, list[int]] = {}
            for number, stored in log.items():
                for section in stored.footer.sections:
                    if section.partition == self.key:
                        spans.setdefault(section.leader_epoch, []).append(number)
            found += [WalRange(*wal, epoch, min(there), max(there)) for epoch, there in sorted(spans.items())]
        return found

    def _decide(
        self, ranges: list[WalRange], objects: dict[WalId, dict[int, WalFooter]], manifest: Manifest | None
    ) -> None:
        tiered = None if manifest is None else _tiered(manifest)
        try:
            taken = self.world.rules.continue_from(self.key, ranges, objects, tiered)
        except CorruptionError as error:
            self.world.checkers.damage(self.key, self.leader_epoch, error)
            return
        if isinstance(taken, NeedsManifest):
            # With the same footers: what was missing in them was tiered before the manifest is read (J25).
            self._read_manifest(lambda manifest: self._decide(ranges, objects, manifest))
            return
        self._take(taken, manifest)

    def _read_manifest(self, then: Callable[[Manifest], None]) -> None:
        self.broker.until_known(
            lambda told: self.world.bucket.read_manifest(self.broker, self.key, told),
            lambda manifest: None if self.closed else then(manifest),
        )

    def _take(self, taken: TakeOver, manifest: Manifest | None) -> None:
        self.broker.steps["read"] -= 1
        producers, epochs = taken.producers, taken.leader_epochs
        if producers is None or epochs is None:
            assert manifest is not None
            producers, epochs = ProducerStates(), ()
            if manifest.segments:
                producers, lineage = restored(manifest.segments[-1].state)
                epochs = lineage.entries()
        producers.decide_below(taken.end_offset)
        taken = replace(taken, leader_epochs=epochs, producers=producers)
        log = self.broker.disk.get(self.key, LocalLog())
        kept = self.world.rules.local_end(Offset(0), Offset(log.end), log.epochs.entries(), taken)
        # What a log lacks is read from the objects here, and not brought to the disk: it begins anew at the end.
        if kept is None or kept < taken.end_offset:
            state = captured(producers, epochs, taken.end_offset)
            log = LocalLog(taken.end_offset, epochs=LeaderEpochs(epochs), state_at_start=state)
        else:
            log.cut(kept)
        self.broker.disk[self.key] = log
        self._serve(log, producers, taken)

    def _serve(self, log: LocalLog, producers: ProducerStates, taken: TakeOver | None) -> None:
        broker = self.broker
        assert broker.writer is not None
        self.log, self.producers, self._taken = log, producers, taken
        end = Offset(log.end)
        self._start = end
        self._closed_end = 0 if taken is not None else end
        self.high_watermark = end
        log.epochs.assign(LeaderEpoch(self.leader_epoch), end)
        self._state_at_start = captured(producers, log.epochs.entries(), end)
        self.world.checkers.leads(self, end)
        self._walled = self.mode.is_walled
        if self._walled:
            self._begin_wal()
        self.serving = True
        self._read_manifest(self._got_manifest)
        self._tier_later()

    def _begin_wal(self) -> None:
        assert self.broker.writer is not None
        self.broker.writer.lead(self.key)
        self.broker.needs.note_led(self.key, self.leader_epoch)
        self._begin_number = self.broker.writer.next_number
        self._begin_offset = self.log.end

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Where records of closed ranges are."""
        return self._taken.pieces if self._taken is not None else ()

    def _got_manifest(self, manifest: Manifest) -> None:
        if self.manifest is None and self._taken is not None:
            try:
                self._taken = narrowed(self.key, self._taken, _tiered(manifest))
            except CorruptionError as error:  # J26: it has served already, and finds out now
                self.world.checkers.damage(self.key, self.leader_epoch, error)
                self.close()
                return
        if self.manifest is None or manifest.tiered_end >= self.manifest.tiered_end:
            self.manifest = manifest
            if self._walled:
                self._note_floor(manifest.tiered_end, manifest.log_start)

    def note_record(self, record: PartitionRecord) -> None:
        """A newer image, in which this leadership goes on."""
        before, self.record = self.record, record
        if record.mode is not self.mode:
            was, self.mode = self.mode, record.mode
            if self.serving and was is Mode.REPLICA:
                self._walled = True
                self._begin_wal()
            if self.mode is Mode.REPLICA:
                self._leave_wal()
            if self.mode is Mode.OBJECT:
                self._is_copied = False  # disks of others may be lost from here on
        if self.released_at is not None and record.partition_epoch > before.partition_epoch:
            # J18: whatever was asked for is refused for good.
            self._resume()

    def _leave_wal(self) -> None:
        """The second entry of a change from object durability (J41)."""
        if self._walled:
            self._walled = False
            assert self.broker.writer is not None
            self.broker.writer.forget(self.key)
            self._commit(Offset(self.log.end))
            self._closed_end = self.log.end

    def close(self) -> None:
        """Another leadership has begun, or this broker epoch has ended."""
        if not self.closed and not self.serving and self.mode.fails_over_by_log:
            self.broker.steps["read"] -= 1
        self.closed, self.serving = True, False

    # --- records ----------------------------------------------------------------------------------------------------------

    def produce(self, batch: bytes, value: int, reply: Reply) -> None:
        """One batch, or the marker of a transaction. The reply comes when it is stored as the partition asks."""
        broker, writer = self.broker, self.broker.writer
        if not self.serving or self.released_at is not None or writer is None:
            reply("not leader", -1)
            return
        header = parse_header(batch)
        marker = parse_marker(batch) if header.is_control else None
        members = self._other_members()
        if members is None:
            reply("not leader", -1)
            return
        try:
            if marker is not None:
                self.producers.check_marker(marker)
            else:
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
        fields = batch_fields(header)
        if marker is not None:
            fields = batch_fields(header, MarkerKind(marker.control_type), marker.coordinator_epoch)
        aborted = self._apply(header, marker)
        after = captured(self.producers, self.log.epochs.entries(), Offset(fields.end_offset))
        for log in (self.log, *members):
            log.append(LocalBatch(fields, value, after, aborted))
        self._reply_when_stored(int(fields.end_offset), base, reply)
        if self._walled:
            linger_ms = self.world.plan.linger_ms
            writer.append(self.key, data, fields, now_ms=int(broker.now_ms), linger_ms=linger_ms, state=state)
            broker.pump()
        else:
            self._commit(fields.end_offset)

    def _other_members(self) -> list[LocalLog] | None:
        """The logs on the other members' disks; None if they do not follow this leader any more, which then appends nothing.

        How members follow is not what this simulation is about, so they do it at once, and without error.
        """
        if self.mode is Mode.OBJECT or not self._is_copied:
            return []
        record = self.world.log.newest.partitions.get(self.key)
        if record is None or record.leader_epoch != self.leader_epoch or record.members != self.record.members:
            return None
        return [self.world.machines[each].disk_of(self.key) for each in record.members if each != self.broker.node_id]

    def _apply(self, header: BatchHeader, marker: EndTransactionMarker | None) -> AbortedTransaction | None:
        """Returns: the transaction that is aborted by it."""
        if marker is None:
            self.producers.apply_header(header)
            return None
        completed = self.producers.apply_marker(marker._replace(offset=Offset(header.base_offset)))
        if completed is None or not completed.aborted:
            return None
        return aborted_entry(completed, self.producers.last_stable_offset_after(completed))

    def _reply_when_stored(self, end: int, base: int, reply: Reply) -> None:
        if end <= self.high_watermark:
            reply("ok", base)
        else:
            self._pending.append((end, base, reply))

    def acknowledged(self, end: Offset) -> None:
        """Everything below is in objects that count."""
        if not self.closed and self._walled:
            self._has_own_section = self._has_own_section or self.mode is Mode.OBJECT
            self._commit(min(end, Offset(self.log.end)))
            self._try_release()

    def _commit(self, end: Offset) -> None:
        if end > self.high_watermark:
            before, self.high_watermark = self.high_watermark, int(end)
            self.producers.decide_below(self.high_watermark)
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

    @property
    def last_stable_offset(self) -> int:
        """Up to where readers of committed transactions read."""
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    def _aborted_in(self, start: int, end: int) -> set[AbortedTransaction]:
        known = {
            *(self._taken.aborted if self._taken is not None else ()),
            *(batch.aborted for batch in self.log.batches if batch.aborted is not None),
        }
        for segment in self.manifest.segments if self.manifest is not None else ():
            known.update(segment.aborted)
        return {each for each in known if each.first_offset < end and each.last_offset >= start}

    def fetch(self, offset: int, reply: Callable[[Fetched], None], *, committed: bool) -> None:
        """Values from ``offset`` on: of the local log, a segment, or an object of a sealed range."""
        end = self.last_stable_offset if committed else self.high_watermark
        manifest = self.manifest

        def give(values: list[int], at: int) -> None:
            values = values[: min(20, end - at)]
            reply(Fetched("values", at, values, self._aborted_in(at, at + len(values)) if committed else ()))

        if not self.serving:
            return
        if manifest is not None and offset < manifest.log_start:
            reply(Fetched("reset", manifest.log_start))
            return
        if offset >= end:
            return
        if offset >= self.log.start:
            give(self.log.values_from(offset, end), offset)
            return
        if manifest is not None and offset < manifest.tiered_end:
            for segment in manifest.segments:
                if segment.end > offset:
                    at = max(offset, segment.start)
                    give(list(segment.values[at - segment.start :]), at)
                    return
        for piece in self.pieces:
            if piece.section.end_offset > offset:
                # As a log is read: the first batch that ends above the offset.
                at = max(offset, piece.section.base_offset)
                if manifest is None and at > offset:
                    return  # what is below may be tiered
                self.world.bucket.read(
                    self.broker,
                    piece.wal,
                    piece.number,
                    lambda stored, piece=piece, at=at: self._read(piece, stored, at, give, reply),  # type: ignore[misc]
                )
                return
        if manifest is not None:
            # J31: neither tier has it. The manifest may have grown.
            self._read_manifest(self._got_manifest)

    def _read(
        self,
        piece: Piece,
        stored: Any,
        at: int,
        give: Callable[[list[int], int], None],
        reply: Callable[[Fetched], None],
    ) -> None:
        if self.manifest is not None and at < self.manifest.log_start:
            # Meanwhile known as deleted, and transactions that were aborted there are not known any more.
            reply(Fetched("reset", self.manifest.log_start))
            return
        if isinstance(stored, Stored):
            values = self.world.values_of(stored, self.key)
            give(values[at - piece.section.base_offset :], at)
            return
        if stored is None or self.closed:
            return
        if not self.world.rules.polls_before_damage:
            reply(Fetched("damage", at))
            return

        def polled(manifest: Manifest) -> None:
            self._got_manifest(manifest)
            self.broker.refresh(lambda: missed(manifest))

        def missed(manifest: Manifest) -> None:
            if not self.closed and at >= max(manifest.tiered_end, manifest.log_start):
                reply(Fetched("damage", at))

        self._read_manifest(polled)

    # --- the tier ---------------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """J38: what this partition holds back is to be tiered."""
        self._must_roll = True

    @property
    def _is_lazy(self) -> bool:
        """Whether its segments are rolled so rarely that only J38 does it."""
        return self.mode is Mode.OBJECT and self.world.is_lazy(self.key)

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
        floor = max(self.manifest.tiered_end, self.manifest.log_start)
        ends = [self._start, *(int(batch.fields.end_offset) for batch in self.log.batches)]
        ends = [end for end in ends if floor < end <= self.high_watermark and end >= self._start]
        rng = self.broker.rng
        soon = ends and ends[0] == self._start and self.world.rules.rolls_ended
        if self._is_lazy and not soon and not self._must_roll:
            ends = []
        last = [batch.fields for batch in self.log.batches if batch.fields.end_offset == self.high_watermark]
        if self._must_roll and not ends and last and self.manifest.tiered_end < self.high_watermark:
            floor, ends = int(last[0].base_offset), [self.high_watermark]  # deleted, but nothing else has its producers
        elif not ends or rng.random() < self.world.plan.delete_records:
            if rng.random() < 0.05 + self.world.plan.delete_records:
                self._raise_log_start(self.manifest)
            return
        end = self._start if ends[0] == self._start else ends[-1] if self._must_roll else rng.choice(ends[-3:])
        self._must_roll = False
        self._tiering = True
        self._collect(floor, end)

    def _collect(self, start: int, end: int) -> None:
        """J30: read what is to be tiered from the sealed ranges, all at once, and from the local log."""
        wanted = [
            piece for piece in self.pieces if start < piece.section.end_offset and piece.section.base_offset < end
        ]
        wanted = [piece for piece in wanted if piece.section.base_offset < self.log.start]
        found: dict[int, int] = {}

        def told(piece: Piece, stored: Any) -> None:
            if isinstance(stored, Stored):
                found.update(enumerate(self.world.values_of(stored, self.key), piece.section.base_offset))
            wanted.remove(piece)
            if not wanted:
                self._collected(start, end, found)

        if not wanted:
            self._collected(start, end, found)
        for piece in list(wanted):
            self.broker.until_known(
                lambda done, piece=piece: self.world.bucket.read(self.broker, piece.wal, piece.number, done),  # type: ignore[misc]
                lambda stored, piece=piece: told(piece, stored),  # type: ignore[misc]
            )

    def _collected(self, start: int, end: int, found: dict[int, int]) -> None:
        if self.closed:
            return
        found.update(enumerate(self.log.values_from(self.log.start, end), self.log.start))
        if all(offset in found for offset in range(start, end)):
            self._upload(start, end, [found[offset] for offset in range(start, end)])
        else:
            self._tiering = False  # an object is missing: it was tiered, or it is lost

    def _upload(self, start: int, end: int, values: list[int]) -> None:
        assert len(values) == end - start, (self.key, start, end, len(values))
        state = self._state_at_start
        for batch in self.log.batches:
            if batch.fields.end_offset == end:
                state = batch.state
        if not self.world.rules.segments_have_older:
            state = state._replace(older=())
        # By their markers: a marker above is not committed, and perhaps never will be at that offset.
        aborted = sorted(each for each in self._aborted_in(start, end) if each.last_offset < end)
        segment = Segment(start, end, tuple(values), state, tuple(aborted))
        if not self.world.rules.floor_is_durable:
            self._note_floor(end)

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

    def _after_undecided(self, manifest: Manifest) -> None:
        self._got_manifest(manifest)
        self._tiered(manifest.tiered_end)

    def _tiered(self, end: int) -> None:
        """The manifest's entry is durable (J33)."""
        self._read_manifest(self._got_manifest)
        self._note_floor(end)
        if self.mode is Mode.OBJECT and self.broker.rng.random() < 0.5:
            known = self.manifest.tiered_end if self.manifest is not None else 0
            self.log.forget_below(min(end, known))

    def _note_floor(self, tiered_end: int, log_start: int = 0) -> None:
        self.broker.needs.note_floor(self.key, Offset(tiered_end), Offset(log_start))

    def _raise_log_start(self, manifest: Manifest) -> None:
        """Records are deleted, tiered or not."""
        if self.mode is not Mode.OBJECT or self.high_watermark <= manifest.log_start:
            return
        rng = self.broker.rng
        start = self.high_watermark if rng.random() < 0.3 else rng.randint(manifest.log_start, self.high_watermark)
        self.world.bucket.raise_log_start(
            self.broker, self.key, self.leader_epoch, start, lambda done: self._read_manifest(self._got_manifest)
        )

    def _ask_drop(self) -> None:
        """J35."""
        if self.manifest is None or not self.serving:
            return
        closed = [each for each in self.record.ranges if not each.is_open]
        if not self.world.rules.drops_tiered_only:
            done = True
        elif self._taken is not None:
            done = ranges_are_done(self._taken.end_offset, _tiered(self.manifest), own_section=self._has_own_section)
            # A leader may wait as long as it likes for a section of its own.
            waits = self.world.writing and self.broker.rng.random() < 0.7
            done = done and (self._has_own_section or not waits)
            done = done and self.manifest.tiered_end >= self._closed_end
        else:
            done = self.manifest.tiered_end >= self._closed_end
        if closed and done and (not self.world.writing or self.broker.rng.random() < self.world.plan.drop_share):
            self.broker.ask_controller("drop", self.key, self.leader_epoch, closed)

    def _ask_finish(self) -> None:
        """J40: everything below the first record in this log is tiered. J41: the other members have everything above."""
        if not self._walled or self.manifest is None or not self.serving:
            return
        if self.mode is Mode.TO_OBJECT and self.manifest.tiered_end >= self._begin_offset:
            self.broker.ask_controller("finish_to", self.key, self.leader_epoch, self._begin_number)
        on_disk = self.broker.disk is self.broker.machine.disk  # otherwise another process has come in its place
        if self.mode is Mode.FROM_OBJECT and self.manifest.tiered_end >= self.log.start and on_disk:
            self._finish_from()

    def _finish_from(self) -> None:
        members = self.record.members
        if not self._is_copied:
            for each in members:
                if each != self.broker.node_id:
                    self.world.machines[each].disk[self.key] = self.log.copy()
            self._is_copied = True
        assert self.broker.writer is not None
        last = self.broker.writer.durable_end - 1  # the members have what comes later
        self.broker.ask_controller("finish_from", self.key, self.leader_epoch, members, last)
