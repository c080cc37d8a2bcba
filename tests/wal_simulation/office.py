"""The controller's work in a broker's process: sessions, seals of logs, and entries (ADR 0037, J16 to J23, J36)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import CorruptionError
from app.core.units import TopicIdPartition
from app.metadata.image.wal_ranges import WalId, WalRange, dropped, released
from tests.wal_simulation.cluster import NOBODY, BrokerRecord, Image, Mode, PartitionRecord
from tests.wal_simulation.sealer import end_log

if TYPE_CHECKING:
    from tests.wal_simulation.broker import Broker

SESSION_MS: Final = 1200.0
TICK_MS: Final = (80.0, 160.0)
SWEEP_MS: Final = (700.0, 2500.0)

Plan = Callable[[Image], Image | None]
"""From the newest image: the next one, or None if there is nothing to do."""

Job = Callable[[Callable[[], None]], None]
Brokers = Mapping[int, BrokerRecord]


class Office:
    """Of one term of one controller. It does one thing at a time, and what waits for seals beside it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.world = broker.world
        self.image = Image()
        self.open = True
        self.active = False
        self._jobs: list[Job] = []
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

    def _do(self, name: tuple[Any, ...], job: Job) -> None:
        """Do a job after those before it; not if one of that name waits or is under way."""
        if self._begins(name):
            self._jobs.append(lambda done: job(lambda: self._ended(name, done)))
            self._next()

    def _beside(self, name: tuple[Any, ...], job: Job) -> None:
        """Do a job that waits for a store that others do not wait for."""
        if self._begins(name):
            job(lambda: self._ended(name, lambda: None))

    def _begins(self, name: tuple[Any, ...]) -> bool:
        if not self.active or name in self._names:
            return False
        self._names.add(name)
        return True

    def _ended(self, name: tuple[Any, ...], done: Callable[[], None]) -> None:
        self._names.discard(name)
        done()

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
            if image.sequence >= self.image.sequence:
                self.image = image
            planned = plan(image)
            if planned is None:
                done()
                return
            self._append(planned, lambda won: done() if won else read())

        def read() -> None:
            self.broker.until_known(lambda told: self.world.log.read(self.broker, told), on_image)

        on_image(self.image)

    # --- what brokers ask for ---------------------------------------------------------------------------------------------

    def heard(self, node_id: int, broker_epoch: int, next_number: int) -> None:
        """A heartbeat."""
        record = self.image.brokers.get(node_id)
        if record is None or record.broker_epoch != broker_epoch:
            return
        self._heard_ms[node_id] = self.broker.now_ms
        wal = WalId(node_id, broker_epoch)
        self.next_numbers[wal] = max(next_number, self.next_numbers.get(wal, 0))
        if record.fenced:
            self._do(("unfence", node_id), lambda done: self.change(lambda image: self._unfenced(image, wal), done))

    def _unfenced(self, image: Image, wal: WalId) -> Image | None:
        """M7, J14: a log with orphaned ranges is to be sealed, and its broker has to register again."""
        record = image.brokers.get(wal.broker_id)
        if record is None or record.broker_epoch != wal.broker_epoch or not record.fenced:
            return None
        if record.sealed_at is not None or wal in image.orphaned_wals():
            return None
        return self._with_leaders(image, {**image.brokers, wal.broker_id: replace(record, fenced=False)}, {})

    def register(self, node_id: int, incarnation: int, known: int) -> None:
        """A new process of a broker. ``known``: the incarnation that it saw, and replaces (M9)."""

        def plan(image: Image) -> Image | None:
            before = image.brokers.get(node_id)
            seen = before.incarnation if before is not None else NOBODY
            if seen == incarnation or seen != known:
                return None
            joined = BrokerRecord(image.sequence + 1, incarnation)
            seals = self.world.rules.registration_ends_leaderships
            return self._without_broker(image, node_id, {**image.brokers, node_id: joined}, seals=seals)

        def job(done: Callable[[], None]) -> None:
            self._heard_ms[node_id] = self.broker.now_ms
            self.change(plan, done)

        self._do(("register", node_id), job)

    def fence(self, node_id: int) -> None:
        """A broker is silent, or somebody thinks so."""
        record = self.image.brokers.get(node_id)

        def plan(image: Image) -> Image | None:
            before = image.brokers.get(node_id)
            if before is None or before != record or before.fenced:
                return None
            return self._without_broker(image, node_id, {**image.brokers, node_id: replace(before, fenced=True)})

        self._do(("fence", node_id), lambda done: self.change(plan, done))

    def unregister(self, node_id: int) -> None:
        """Somebody says that a broker is gone for ever."""

        def plan(image: Image) -> Image | None:
            left = {node: one for node, one in image.brokers.items() if node != node_id}
            return self._without_broker(image, node_id, left) if len(left) < len(image.brokers) else None

        self._do(("unregister", node_id), lambda done: self.change(plan, done))

    def _without_broker(self, image: Image, node_id: int, brokers: Brokers, *, seals: bool = True) -> Image:
        """J16, J22: an entry that ends a broker epoch. Open ranges stay open, and nobody leads them."""
        rules = self.world.rules
        ended: dict[TopicIdPartition, PartitionRecord] = {}
        for key, record in image.partitions.items():
            if record.leader != node_id:
                continue
            ranges = record.ranges
            found = record.open_range
            if found is not None and not (rules.ends_with_seal and rules.elects_after_seal and seals):
                ranges = rules.sealed(ranges, found.wal, self._guess(found.wal))
                self._beside(("late seal", found.wal), lambda done, wal=found.wal: self._seal_late(wal, done))  # type: ignore[misc]
            ended[key] = record.changed(leader=NOBODY, leader_epoch=record.leader_epoch + 1, ranges=ranges)
        return self._with_leaders(image, brokers, ended)

    def _guess(self, wal: WalId) -> int:
        """Planted: the end of a log that nobody has sealed."""
        numbers = self.world.bucket.wals.get(wal, {})
        return max((number for number, one in numbers.items() if not one.footer.is_seal), default=-1) + 1

    def _seal_late(self, wal: WalId, done: Callable[[], None]) -> None:
        if self.world.rules.ends_with_seal and self.world.rules.registration_ends_leaderships:
            end_log(self.broker, wal, lambda end: done())

    def _close_orphans(self) -> None:
        """J17: end logs that nobody writes any more, and name leaders of what was in them."""
        for wal in self.image.orphaned_wals():
            self._beside(
                ("close", wal),
                lambda done, wal=wal: end_log(  # type: ignore[misc]
                    self.broker, wal, lambda end: self.change(lambda image: self._closed(image, wal, end), done)
                ),
            )

    def _closed(self, image: Image, wal: WalId, end: int) -> Image | None:
        """The second entry: all orphaned ranges of a log end where it was sealed (J21)."""
        changed: dict[TopicIdPartition, PartitionRecord] = {}
        for key, record in image.partitions.items():
            if not image.is_orphaned(record) or record.ranges[-1].wal != wal:
                continue
            try:
                changed[key] = record.changed(ranges=self.world.rules.sealed(record.ranges, wal, end))
            except CorruptionError as error:  # this partition alone, and no other, is not led any more
                self.world.checkers.damage(key, record.leader_epoch, error)
                changed[key] = record.changed(ranges=record.ranges[:-1], offline=True)
        broker = image.brokers.get(wal.broker_id)
        brokers = dict(image.brokers)
        if broker is not None and broker.broker_epoch == wal.broker_epoch:
            brokers[wal.broker_id] = replace(broker, sealed_at=end)
        return self._with_leaders(image, brokers, changed) if changed else None

    # --- leaders ----------------------------------------------------------------------------------------------------------

    def _with_leaders(self, image: Image, brokers: Brokers, changed: dict[TopicIdPartition, PartitionRecord]) -> Image:
        """An image with these records, and with leaders of all partitions that can have one (J23)."""
        for key, before in image.partitions.items():
            record = changed.get(key, before)
            if record.leader == NOBODY and record.open_range is None and not record.offline:
                changed[key] = self._elected(record, brokers)
        return image.with_partitions(changed, brokers=brokers)

    def _elected(self, record: PartitionRecord, brokers: Brokers) -> PartitionRecord:
        able = [each for each, broker in brokers.items() if not broker.fenced and broker.sealed_at is None]
        by_log = record.mode.fails_over_by_log
        if not self.world.rules.changes_fail_over_as_before and record.mode is Mode.TO_OBJECT:
            by_log = True
        if not by_log:
            able = [each for each in able if each in record.members]
        if not able:
            return record
        leader = self.broker.rng.choice(able)
        epoch = record.leader_epoch + 1
        changed = record.changed(leader=leader, leader_epoch=epoch)
        if record.mode.fails_over_by_log:
            ranges = self._opened(record.ranges, WalId(leader, brokers[leader].broker_epoch), epoch)
            changed = replace(changed, ranges=ranges)
        if record.mode is Mode.FROM_OBJECT:
            changed = replace(changed, members=self.world.members_with(leader))
        return changed

    def _opened(self, ranges: tuple[WalRange, ...], wal: WalId, leader_epoch: int) -> tuple[WalRange, ...]:
        rules = self.world.rules
        return rules.opened(ranges, wal, leader_epoch, rules.first_number(self.next_numbers.get(wal, 0)))  # type: ignore[no-any-return]

    def release(self, key: TopicIdPartition, node_id: int, leader_epoch: int, partition_epoch: int, last: int) -> None:
        """J18."""

        def plan(image: Image) -> Image | None:
            record = image.partitions.get(key)
            if record is None or record.leader != node_id or record.open_range is None:
                return None
            named = (record.leader_epoch, record.partition_epoch) == (leader_epoch, partition_epoch)
            if not named and self.world.rules.release_names_epochs:
                return None
            others = {each: one for each, one in image.brokers.items() if each != node_id}
            closed = record.changed(leader=NOBODY, ranges=released(record.ranges, record.open_range.wal, last))
            changed = self._elected(closed, others)
            if changed is closed:
                changed = record.changed()  # the leader hears that it leads on
            return image.with_partitions({key: changed})

        self._do(("release", key, partition_epoch), lambda done: self.change(plan, done))

    def transfer(self, key: TopicIdPartition) -> None:
        """Another member is to lead a partition that is on its members' disks."""

        def plan(image: Image) -> Image | None:
            record = image.partitions.get(key)
            if record is None or record.mode.fails_over_by_log or record.leader == NOBODY:
                return None
            others = {each: one for each, one in image.brokers.items() if each != record.leader}
            given_up = record.changed(leader=NOBODY)
            changed = self._elected(given_up, others)
            return None if changed is given_up else image.with_partitions({key: changed})

        self._do(("transfer", key), lambda done: self.change(plan, done))

    def drop(self, key: TopicIdPartition, leader_epoch: int, done_ranges: list[WalRange]) -> None:
        """J35."""

        def plan(image: Image) -> Image | None:
            record = image.partitions.get(key)
            if record is None or record.leader_epoch != leader_epoch:
                return None
            ranges = dropped(record.ranges, done_ranges)
            return None if ranges == record.ranges else image.with_partitions({key: record.changed(ranges=ranges)})

        self._do(("drop", key), lambda done: self.change(plan, done))

    # --- topics -----------------------------------------------------------------------------------------------------------

    def delete(self, key: TopicIdPartition) -> None:
        """A topic is deleted, and another one is made."""

        def plan(image: Image) -> Image | None:
            if key not in image.partitions:
                return None
            left = {other: one for other, one in image.partitions.items() if other != key}
            made = self.world.new_key()
            changed = {made: PartitionRecord(NOBODY, 0, 0, ())}
            return self._with_leaders(replace(image, partitions={**left, **changed}), image.brokers, {})

        self._do(("delete", key), lambda done: self.change(plan, done))

    def switch(self, key: TopicIdPartition) -> None:
        """The first entry of a change of durability (J40, J41)."""

        def plan(image: Image) -> Image | None:
            record = image.partitions.get(key)
            if record is None or record.leader == NOBODY:
                return None
            rules = self.world.rules
            if record.mode is Mode.REPLICA:
                if rules.two_entries_to_object:
                    return image.with_partitions({key: record.changed(mode=Mode.TO_OBJECT)})
                wal = WalId(record.leader, image.brokers[record.leader].broker_epoch)
                changed = record.changed(mode=Mode.OBJECT, ranges=self._opened(record.ranges, wal, record.leader_epoch))
            elif record.mode is Mode.OBJECT:
                if rules.two_entries_from_object:
                    members = self.world.members_with(record.leader)
                    return image.with_partitions({key: record.changed(mode=Mode.FROM_OBJECT, members=members)})
                changed = record.changed(mode=Mode.REPLICA, members=(record.leader,), ranges=record.ranges[:-1])
            else:
                return None
            return image.with_partitions({key: changed})

        self._do(("switch", key), lambda done: self.change(plan, done))

    def finish_to(self, key: TopicIdPartition, leader_epoch: int, begin_number: int) -> None:
        """The second entry: everything above the tiered end is in the leader's log from ``begin_number`` on (J40)."""

        def plan(image: Image) -> Image | None:
            record = image.partitions.get(key)
            if record is None or record.mode is not Mode.TO_OBJECT or record.leader_epoch != leader_epoch:
                return None
            wal = image.wal_of(record.leader)
            if wal is None:
                return None
            opened = self.world.rules.opened(record.ranges, wal, leader_epoch, begin_number)
            return image.with_partitions({key: record.changed(mode=Mode.OBJECT, ranges=opened)})

        self._do(("switch", key), lambda done: self.change(plan, done))

    def finish_from(self, key: TopicIdPartition, leader_epoch: int, members: tuple[int, ...], last: int) -> None:
        """The second entry: every member has what is not tiered, and ``last`` is the last object that counts (J41)."""

        def plan(image: Image) -> Image | None:
            record = image.partitions.get(key)
            if record is None or record.mode is not Mode.FROM_OBJECT or record.leader_epoch != leader_epoch:
                return None
            if record.open_range is None or record.members != members:
                return None
            closed = released(record.ranges, record.open_range.wal, last)
            return image.with_partitions({key: record.changed(mode=Mode.REPLICA, ranges=closed)})

        self._do(("switch", key), lambda done: self.change(plan, done))

    # --- on its own -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self.active:
            return
        now_ms = self.broker.now_ms
        for node_id, record in self.image.brokers.items():
            if not record.fenced and now_ms - self._heard_ms.get(node_id, 0.0) > SESSION_MS:
                self.fence(node_id)
        self._close_orphans()
        self.broker.until_known(lambda told: self.world.log.read(self.broker, told), self._note)

    def _note(self, image: Image) -> None:
        if image.controller_epoch > self.image.controller_epoch:
            self.close()

    def _sweep(self) -> None:
        """J36: delete what nobody needs of logs that have ended."""
        rare = self.world.writing and self.broker.rng.random() >= self.world.plan.sweep_share
        if self.active and not rare:
            bucket = self.world.bucket
            self.broker.until_known(lambda told: bucket.list_wals(self.broker, told), self._sweep_all)

    def _sweep_all(self, wals: list[WalId]) -> None:
        for wal in wals:
            if self.active and self.world.rules.has_ended(wal, self.image.said_of(wal)):
                self._beside(("sweep", wal), lambda done, wal=wal: self._sweep_one(wal, done))  # type: ignore[misc]

    def _sweep_one(self, wal: WalId, done: Callable[[], None]) -> None:
        bucket = self.world.bucket
        image = self.image

        def listed(end: int, numbers: list[int]) -> None:
            ranges = [each for record in image.partitions.values() for each in record.ranges if each.wal == wal]
            doomed = self.world.rules.deletable(wal, numbers, end, ranges, image.said_of(wal))
            if doomed:
                bucket.delete(self.broker, wal, doomed, lambda told: None)
            done()

        end_log(
            self.broker,
            wal,
            lambda end: self.broker.until_known(
                lambda told: bucket.list_numbers(self.broker, wal, -1, told), lambda numbers: listed(end, numbers)
            ),
        )
