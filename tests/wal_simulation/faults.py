"""What a run looks like, and what goes wrong in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from app.wal.format import WINDOW

if TYPE_CHECKING:
    from tests.wal_simulation.office import Office
    from tests.wal_simulation.world import World

HEAL_MS: Final = 16_000.0
QUIET_MS: Final = 19_000.0
"""From here on producers send nothing new."""
END_MS: Final = 34_000.0

KINDS: Final[Mapping[str, int]] = {
    "kill": 4,
    "wipe": 4,
    "kill all": 1,
    "pause": 5,
    "pause controller": 4,
    "cut from bucket": 3,
    "cut from brokers": 3,
    "cut from cluster log": 3,
    "bucket away": 1,
    "undecided": 5,
    "slow": 3,
    "new controller": 3,
    "suspect": 4,
    "move": 8,
    "switch": 3,
    "stop": 2,
    "twin": 2,
    "unregister": 1,
    "delete topic": 1,
    "wals away": 1,
    "lose": 0,
}
"""Kinds of faults, and how often each is chosen."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed makes of a run."""

    nodes: int = 3
    partitions: int = 3
    linger_ms: int = 20
    window: int = WINDOW
    object_bytes: int = 1000
    buffer_bytes: int = 24_000
    pause_ms: float = 80.0
    idle_share: float = 0.01
    """How often a producer stops for a while."""
    lost_replies: float = 0.05
    drop_share: float = 1.0
    """How often a leader asks for ranges to be dropped, of the times when it should."""
    sweep_share: float = 1.0
    """How often dead logs are looked through, of the times when they should be."""
    producers: int = 2
    """Of each partition."""
    transactional: int = 1
    """Transactional producers of each partition."""
    lazy: int = 0
    """Partitions whose segments are rolled so rarely that only wal.retention.bytes does it."""
    retention_bytes: int = 1 << 40
    delete_records: float = 0.0
    """How often records are deleted up to an offset, of the times when something could be tiered."""
    corrupt_share: float = 0.0
    """Of objects that are read, how many arrive with a wrong byte."""
    page: int = 1000
    """Numbers of one LIST."""
    replicas: int = 0
    """Partitions that begin with another durability."""
    fault_every_ms: tuple[float, float] = (200.0, 1500.0)
    weights: Mapping[str, int] = field(default_factory=lambda: KINDS)

    @classmethod
    def of(cls, rng: Random, **fixed: Any) -> Plan:
        """A plan by chance, but for what is fixed."""
        object_bytes = rng.choice([250, 500, 1500])
        plan = cls(
            nodes=rng.choice([1, 2, 3, 3, 4]),
            partitions=rng.choice([1, 2, 3]),
            window=rng.choice([WINDOW, WINDOW, WINDOW, 3, 1]),
            linger_ms=rng.choice([2, 10, 40]),
            object_bytes=object_bytes,
            buffer_bytes=object_bytes * rng.choice([12, 24, 50]),
            pause_ms=rng.choice([40.0, 80.0, 200.0]),
            idle_share=rng.choice([0.0, 0.005, 0.03]),
            lost_replies=rng.choice([0.0, 0.02, 0.1]),
            replicas=rng.choice([0, 0, 1]),
            producers=rng.choice([1, 2]),
            transactional=rng.choice([0, 1, 1]),
            lazy=rng.choice([0, 0, 1]),
            retention_bytes=rng.choice([4_000, 20_000]),
            delete_records=rng.choice([0.0, 0.0, 0.1, 0.4]),
            corrupt_share=rng.choice([0.0, 0.02]),
            page=rng.choice([10, 50, 1000]),
            fault_every_ms=rng.choice([(100.0, 700.0), (200.0, 1500.0), (1000.0, 3000.0)]),
        )
        return replace(plan, **fixed)


class FaultActor:
    """Does something bad every now and then, until ``HEAL_MS``."""

    def __init__(self, world: World, rng: Random) -> None:
        self.world, self.rng = world, rng
        self.done: set[str] = set()
        self.hits: Counter[tuple[str, str]] = Counter()
        world.timeline.after(rng.uniform(1000, 2000), self._tick)
        world.timeline.after(HEAL_MS, world.heal)

    def _tick(self) -> None:
        world, rng = self.world, self.rng
        if world.timeline.now_ms > HEAL_MS - 1500:
            return
        world.timeline.after(rng.uniform(*world.plan.fault_every_ms), self._tick)
        weights = world.plan.weights
        if not any(weights.values()):
            return
        kind = rng.choices(list(weights), list(weights.values()))[0]
        self.done.add(kind)
        world.trace(f"fault: {kind}")
        acts: dict[str, Callable[[int], None]] = {
            "kill": lambda node: self._kill(node, wipe=False),
            "wipe": lambda node: self._kill(node, wipe=True),
            "kill all": self._kill_all,
            "pause": self._pause,
            "pause controller": lambda node: self._pause(world.log.newest.controller),
            "cut from bucket": lambda node: self._for_a_while(world.bucket.away_from, node),
            "cut from brokers": lambda node: self._for_a_while(world.links.cut_off, node),
            "cut from cluster log": lambda node: self._for_a_while(world.bucket.main_away_from, node),
            "bucket away": self._bucket_away,
            "undecided": self._undecided,
            "slow": self._slow,
            "new controller": self._new_controller,
            "suspect": self._suspect,
            "move": self._move,
            "switch": self._switch,
            "stop": self._stop,
            "twin": self._twin,
            "unregister": self._unregister,
            "delete topic": self._delete_topic,
            "wals away": self._wals_away,
            "lose": self._lose,
        }
        acts[kind](rng.choice(list(world.machines)))

    def _hit(self, kind: str, node: int) -> None:
        """Count what a fault hits."""
        process = self.world.process_of(node)
        for step in process.under_way() if process is not None else ():
            self.hits[kind, step] += 1

    def _kill(self, node: int, *, wipe: bool) -> None:
        self._hit("kill", node)
        machine = self.world.machines[node]
        machine.kill(wipe=wipe)
        self.world.timeline.after(self.rng.uniform(50, 4000), machine.start)

    def _kill_all(self, node: int) -> None:
        for each in self.world.machines:
            self._kill(each, wipe=self.rng.random() < 0.8)

    def _pause(self, node: int) -> None:
        self._hit("pause", node)
        process = self.world.process_of(node)
        if process is not None:
            process.pause(self.rng.choice([60.0, 300.0, 1000.0, 3000.0, 6000.0]))

    def _for_a_while(self, who: set[int], node: int) -> None:
        self._hit("cut", node)
        who.add(node)
        self.world.timeline.after(self.rng.uniform(200, 4000), who.discard, node)

    def _bucket_away(self, node: int) -> None:
        for each in self.world.machines:
            self._for_a_while(self.world.bucket.away_from, each)

    def _undecided(self, node: int) -> None:
        bucket = self.world.bucket
        bucket.undecided_share = self.rng.choice([0.05, 0.2, 0.5])
        self.world.timeline.after(self.rng.uniform(500, 4000), self._decided)

    def _decided(self) -> None:
        self.world.bucket.undecided_share = 0.0

    def _slow(self, node: int) -> None:
        bucket = self.world.bucket
        bucket.slow_until_ms = self.world.timeline.now_ms + self.rng.uniform(300, 2500)
        bucket.slowness = self.rng.choice([3.0, 10.0])

    def _new_controller(self, node: int) -> None:
        process = self.world.process_of(node)
        if process is not None and process.broker_epoch >= 0:
            process.take_office()

    def _suspect(self, node: int) -> None:
        process = self.world.process_of(self.world.log.newest.controller)
        if process is not None and process.office is not None:
            process.office.fence(node)

    def _move(self, node: int) -> None:
        key = self.rng.choice(list(self.world.log.newest.partitions))
        process = self.world.process_of(self.world.log.newest.partitions[key].leader)
        if process is not None:
            process.move(key)

    def _ask_controller(self) -> Office | None:
        process = self.world.process_of(self.world.log.newest.controller)
        return process.office if process is not None else None

    def _switch(self, node: int) -> None:
        office = self._ask_controller()
        if office is not None:
            office.switch(self.rng.choice(list(self.world.log.newest.partitions)))

    def _stop(self, node: int) -> None:
        process = self.world.process_of(node)
        if process is not None:
            process.stop()

    def _twin(self, node: int) -> None:
        process = self.world.process_of(node)
        if process is not None and self.rng.random() < 0.5:
            process.pause(self.rng.choice([300.0, 1000.0, 3000.0]))
        self.world.machines[node].replace()

    def _unregister(self, node: int) -> None:
        office = self._ask_controller()
        if office is not None:
            office.unregister(node)

    def _delete_topic(self, node: int) -> None:
        office = self._ask_controller()
        if office is not None:
            office.delete(self.rng.choice(list(self.world.log.newest.partitions)))

    def _wals_away(self, node: int) -> None:
        for each in self.world.machines:
            self._for_a_while(self.world.bucket.wals_away_from, each)

    def _lose(self, node: int) -> None:
        """The store loses an object that a partition needs and that is not its last one: nothing else can be noticed.

        What lies below the hole looks trimmed to everybody (J25), so partitions with records there may be refused, too. In a log
        that has not ended, a hole would end it there (J9).
        """
        world = self.world
        for key, record in world.log.newest.partitions.items():
            floor = world.checkers.floor(key)
            for each in record.ranges:
                log = world.bucket.wals.get(each.wal, {})
                if not any(stored.footer.is_seal for stored in log.values()):
                    continue
                mine = [
                    number
                    for number, stored in sorted(log.items())
                    if each.covers(number) and not each.is_open
                    for section in stored.footer.sections
                    if section.partition == key and section.leader_epoch == each.leader_epoch
                    if section.end_offset > floor
                ]
                if len(mine) > 2 and mine[-1] - mine[0] == len(mine) - 1:
                    number = self.rng.choice(mine[:-1])
                    world.checkers.damaged.update(
                        section.partition
                        for below, stored in log.items()
                        if below <= number
                        for section in stored.footer.sections
                    )
                    world.bucket.lose(each.wal, number)
                    return
