"""The controller's work in a broker's process: sessions, seals of logs, and entries (ADR 0037, J16 to J23, J36)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from app.metadata.wal_ranges import WalId, WalRange, dropped, released
from app.units import TimestampMs, TopicIdPartition
from app.wal.format import encode_seal
from app.wal.sealing import Action, Found, List, PutSeal, ReadTails, Sealed
from tests.wal_simulation.bucket import Stored
from tests.wal_simulation.cluster import NOBODY, BrokerRecord, Image, Mode, PartitionRecord

if TYPE_CHECKING:
    from tests.wal_simulation.broker import Broker

SESSION_MS: Final = 1200.0
TICK_MS: Final = (80.0, 160.0)
SWEEP_MS: Final = (700.0, 2500.0)

Plan = Callable[[Image], Image | None]
"""From the newest image: the next one, or None if there is nothing to do."""


class Office:
    """Of one term of one controller. It does one thing at a time."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.world = broker.world
        self.image = Image()
        self.open = True
        self.active = False
        self._jobs: list[Callable[[Callable[[], None]], None]] = []
        self._names: set[tuple[Any, ...]] = set()
        self._busy = False
        self._heard_ms: dict[int, float] = {}
        self.next_numbers: dict[WalId, int] = {}
        """What brokers have told of their logs (J19)."""

    def take(self) -> None:
        """Become the controller: seal the cluster log."""

        def read(image: Image) -> None:
            if not self.open:
                return
            mine = image.next(controller=self.broker.node_id, controller_epoch=image.controller_epoch + 1)
            self._append(mine, lambda won: began() if won else self.close())

        def began() -> None:
            self.active = True
            now_ms = self.broker.now_ms
            self._heard_ms = dict.fromkeys(self.image.brokers, now_ms)
            self.broker.repeat(TICK_MS, self._tick)
            self.broker.repeat(SWEEP_MS, self._sweep)

        self.broker.until_known(lambda done: self.world.log.read(self.broker, done), read)

    def close(self) -> None:
        """Another one is the controller."""
        self.open = self.active = False

    # --- one thing at a time ----------------------------------------------------------------------------------------------

    def _do(self, name: tuple[Any, ...], job: Callable[[Callable[[], None]], None]) -> None:
        """Do a job after those before it; not if one of that name waits or is under way."""
        if not self.active or name in self._names:
            return
        self._names.add(name)

        def run(done: Callable[[], None]) -> None:
            def ended() -> None:
                self._names.discard(name)
                done()

            job(ended)

        self._jobs.append(run)
        self._next()

    def _next(self) -> None:
        if self._busy or not self._jobs or not self.active:
            return
        self._busy = True

        def done() -> None:
            self._busy = False
            self.broker.after(0.0, self._next)

        self._jobs.pop(0)(done)

    def _append(self, image: Image, done: Callable[[bool], None]) -> None:
        """C2: put one entry until its outcome is known."""

        def known(won: bool) -> None:
            if won:
                self.image = image
            done(won)

        self.broker.until_known(lambda told: self.world.log.append(self.broker, image, told), known)

    def change(self, plan: Plan, done: Callable[[], None]) -> None:
        """Have a plan written, on the newest image, unless this controller is deposed."""

        def on_image(image: Image) -> None:
            if image.controller != self.broker.node_id or image.controller_epoch != self.image.controller_epoch:
                self.close()
                return
            self.image = image
            planned = plan(image)
            if planned is None:
                done()
                return
            self._append(planned, lambda won: done() if won else read())

        def read() -> None:
            self.broker.until_known(lambda told: self.world.log.read(self.broker, told), on_image)

        on_image(self.image)

    # --- sealing ----------------------------------------------------------------------------------------------------------

    def seal(self, wal: WalId, done: Callable[[int], None]) -> None:
        """End a log (J9 to J13)."""
        broker, bucket = self.broker, self.world.bucket
        sealing = self.world.rules.sealing()
        seals: dict[int, bytes] = {}

        def do(action: Action) -> None:
            match action:
                case List(above):
                    broker.until_known(
                        lambda told: bucket.list_numbers(broker, wal, above, told),
                        lambda found: do(sealing.on_list(found)),
                    )
                case ReadTails(numbers):
                    read_all(numbers, {})
                case PutSeal(number):
                    if number not in seals:
                        nonce = self.world.new_nonce()
                        seals[number] = encode_seal(wal, number, nonce, TimestampMs(0), broker.node_id)
                    broker.until_known(
                        lambda told: bucket.put(broker, wal, number, seals[number], told),
                        lambda written: do(sealing.on_put(written=written)),
                    )
                case Sealed(end):
                    self.world.checkers.sealed(wal, end)
                    done(end)

        def read_all(numbers: tuple[int, ...], found: dict[int, Found]) -> None:
            def told(number: int, stored: Any) -> None:
                if isinstance(stored, Stored):
                    found[number] = Found.SEAL if stored.footer.is_seal else Found.RECORDS
                else:
                    found[number] = Found.MISSING
                if len(found) == len(numbers):
                    do(sealing.on_tails(found))

            for number in numbers:
                broker.until_known(
                    lambda answer, number=number: bucket.read(broker, wal, number, answer),  # type: ignore[misc]
                    lambda stored, number=number: told(number, stored),  # type: ignore[misc]
                )

        do(sealing.start())

    # --- what brokers ask for ---------------------------------------------------------------------------------------------

    def heard(self, node_id: int, broker_epoch: int, next_number: int) -> None:
        """A heartbeat."""
        record = self.image.brokers.get(node_id)
        if record is not None and record.broker_epoch == broker_epoch:
            self._heard_ms[node_id] = self.broker.now_ms
            wal = WalId(node_id, broker_epoch)
            self.next_numbers[wal] = max(next_number, self.next_numbers.get(wal, 0))

    def register(self, node_id: int, incarnation: int, known: int) -> None:
        """A new process of a broker. ``known``: the incarnation that it saw, and replaces (M9)."""

        def job(done: Callable[[], None]) -> None:
            record = self.image.brokers.get(node_id)
            if record is not None and (record.incarnation == incarnation or record.incarnation != known):
                done()
                return
            self._heard_ms[node_id] = self.broker.now_ms

            def plan(image: Image, end: int | None) -> Image | None:
                before = image.brokers.get(node_id)
                if before is not None and before.incarnation != known:
                    return None
                epoch = image.sequence + 1
                if before is not None and not self.world.rules.registers_anew:
                    epoch = before.broker_epoch
                joined = BrokerRecord(epoch, incarnation)
                return self._ended(image, node_id, before, end, {**image.brokers, node_id: joined})

            self._end_broker(node_id, plan, done)

        self._do(("register", node_id), job)

    def fence(self, node_id: int) -> None:
        """A broker is silent, or somebody thinks so."""

        def job(done: Callable[[], None]) -> None:
            record = self.image.brokers.get(node_id)
            if record is None or record.fenced:
                done()
                return

            def plan(image: Image, end: int | None) -> Image | None:
                before = image.brokers.get(node_id)
                if before is None or before != record:
                    return None
                fenced = BrokerRecord(before.broker_epoch, before.incarnation, True, end)
                return self._ended(image, node_id, before, end, {**image.brokers, node_id: fenced})

            self._end_broker(node_id, plan, done)

        self._do(("fence", node_id), job)

    def _end_broker(
        self, node_id: int, plan: Callable[[Image, int | None], Image | None], done: Callable[[], None]
    ) -> None:
        """J16, J17, J22: seal the log first if the broker leads anything of it, then write the entry."""
        record = self.image.brokers.get(node_id)
        writes = record is not None and any(
            each.leader == node_id and each.mode is not Mode.REPLICA for each in self.image.partitions.values()
        )
        if record is None or not writes:
            self.change(lambda image: plan(image, None), done)
            return
        wal = WalId(node_id, record.broker_epoch)
        rules = self.world.rules
        if not rules.ends_with_seal or not rules.seals_before_entry:
            numbers = self.world.bucket.wals.get(wal, {})
            guess = max((number for number, one in numbers.items() if not one.footer.is_seal), default=-1) + 1
            sealing_later = rules.ends_with_seal
            self.change(
                lambda image: plan(image, guess),
                lambda: self.seal(wal, lambda end: done()) if sealing_later else done(),
            )
            return
        self.seal(wal, lambda end: self.change(lambda image: plan(image, end), done))

    def _ended(
        self, image: Image, node_id: int, before: BrokerRecord | None, end: int | None, brokers: dict[int, BrokerRecord]
    ) -> Image | None:
        """The image after a broker epoch has ended; None if the seal is missing that it needs (J16)."""
        changed: dict[TopicIdPartition, PartitionRecord] = {}
        for key, record in image.partitions.items():
            ranges = record.ranges
            if record.leader == node_id and ranges and ranges[-1].is_open:
                if end is None or before is None:
                    return None
                ranges = self.world.rules.sealed(ranges, WalId(node_id, before.broker_epoch), end)
            if record.leader in (node_id, NOBODY):
                changed[key] = self._elected(record, ranges, brokers, ended=record.leader == node_id)
        return image.with_partitions(changed, brokers=brokers)

    def _elected(
        self, record: PartitionRecord, ranges: tuple[WalRange, ...], brokers: dict[int, BrokerRecord], *, ended: bool
    ) -> PartitionRecord:
        """J23; a partition whose only copy is on one disk is led there."""
        able = [each for each, broker in brokers.items() if not broker.fenced]
        if record.mode is not Mode.OBJECT:
            able = [each for each in able if each == record.home]
        if not able:
            return record.changed(leader=NOBODY, leader_epoch=record.leader_epoch + ended, ranges=ranges)
        leader = self.broker.rng.choice(able)
        if record.mode is Mode.OBJECT:
            ranges = self._opened(ranges, WalId(leader, brokers[leader].broker_epoch), record.leader_epoch + 1)
        return record.changed(leader=leader, leader_epoch=record.leader_epoch + 1, ranges=ranges)

    def _opened(self, ranges: tuple[WalRange, ...], wal: WalId, leader_epoch: int) -> tuple[WalRange, ...]:
        rules = self.world.rules
        return rules.opened(ranges, wal, leader_epoch, rules.first_number(self.next_numbers.get(wal, 0)))  # type: ignore[no-any-return]

    def release(self, key: TopicIdPartition, node_id: int, leader_epoch: int, partition_epoch: int, last: int) -> None:
        """J18."""

        def plan(image: Image) -> Image | None:
            record = image.partitions[key]
            named = (record.leader_epoch, record.partition_epoch) == (leader_epoch, partition_epoch)
            if record.leader != node_id or (not named and self.world.rules.release_names_epochs):
                return None
            if not record.ranges or not record.ranges[-1].is_open:
                return None
            able = [each for each, one in image.brokers.items() if not one.fenced and each != node_id]
            if not able:
                return image.with_partitions({key: record.changed()})  # the leader hears that it leads on
            ranges = released(record.ranges, record.ranges[-1].wal, last)
            leader = self.broker.rng.choice(able)
            ranges = self._opened(ranges, WalId(leader, image.brokers[leader].broker_epoch), record.leader_epoch + 1)
            changed = record.changed(leader=leader, leader_epoch=record.leader_epoch + 1, ranges=ranges)
            return image.with_partitions({key: changed})

        self._do(("release", key, partition_epoch), lambda done: self.change(plan, done))

    def drop(self, key: TopicIdPartition, leader_epoch: int, done_ranges: list[WalRange]) -> None:
        """J35."""

        def plan(image: Image) -> Image | None:
            record = image.partitions[key]
            ranges = dropped(record.ranges, done_ranges)
            if record.leader_epoch != leader_epoch or ranges == record.ranges:
                return None
            return image.with_partitions({key: record.changed(ranges=ranges)})

        self._do(("drop", key), lambda done: self.change(plan, done))

    def switch(self, key: TopicIdPartition) -> None:
        """The first entry of a change to object durability (J40)."""

        def plan(image: Image) -> Image | None:
            record = image.partitions[key]
            if record.mode is not Mode.REPLICA or record.leader == NOBODY:
                return None
            if self.world.rules.two_entries:
                return image.with_partitions({key: record.changed(mode=Mode.TO_OBJECT)})
            wal = WalId(record.leader, image.brokers[record.leader].broker_epoch)
            changed = record.changed(mode=Mode.OBJECT, ranges=self._opened(record.ranges, wal, record.leader_epoch))
            return image.with_partitions({key: changed})

        self._do(("switch", key), lambda done: self.change(plan, done))

    def finish_switch(self, key: TopicIdPartition, leader_epoch: int, begin_number: int) -> None:
        """The second entry: everything above the tiered end is in the leader's log from ``begin_number`` on."""

        def plan(image: Image) -> Image | None:
            record = image.partitions[key]
            if record.mode is not Mode.TO_OBJECT or record.leader_epoch != leader_epoch or record.leader == NOBODY:
                return None
            wal = WalId(record.leader, image.brokers[record.leader].broker_epoch)
            opened = self.world.rules.opened(record.ranges, wal, leader_epoch, begin_number)
            return image.with_partitions({key: record.changed(mode=Mode.OBJECT, ranges=opened)})

        self._do(("switch", key), lambda done: self.change(plan, done))

    # --- on its own -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self.active:
            return
        now_ms = self.broker.now_ms
        for node_id, record in self.image.brokers.items():
            if not record.fenced and now_ms - self._heard_ms.get(node_id, 0.0) > SESSION_MS:
                self.fence(node_id)
        self._do(("refresh",), lambda done: self.change(lambda image: None, done))
        self.broker.until_known(lambda told: self.world.log.read(self.broker, told), self._note)

    def _note(self, image: Image) -> None:
        if image.controller_epoch > self.image.controller_epoch:
            self.close()

    def _sweep(self) -> None:
        """J36: delete what nobody needs of logs that have ended."""
        if self.active:
            bucket = self.world.bucket
            self.broker.until_known(lambda told: bucket.list_wals(self.broker, told), self._sweep_all)

    def _sweep_all(self, wals: list[WalId]) -> None:
        for wal in wals:
            if self.active and self.image.is_dead(wal):
                self._do(("sweep", wal), lambda done, wal=wal: self._sweep_one(wal, done))  # type: ignore[misc]

    def _sweep_one(self, wal: WalId, done: Callable[[], None]) -> None:
        bucket = self.world.bucket
        image = self.image
        if not image.is_dead(wal):
            done()
            return

        def listed(end: int, numbers: list[int]) -> None:
            ranges = [each for record in image.partitions.values() for each in record.ranges if each.wal == wal]
            doomed = self.world.rules.deletable(wal, numbers, end, ranges, image.said_of(wal))
            if doomed:
                bucket.delete(self.broker, wal, doomed, lambda told: None)
            done()

        self.seal(
            wal,
            lambda end: self.broker.until_known(
                lambda told: bucket.list_numbers(self.broker, wal, -1, told), lambda numbers: listed(end, numbers)
            ),
        )
