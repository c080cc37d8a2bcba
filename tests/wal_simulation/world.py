"""The world of one seed: machines, the bucket, clients, faults and checkers on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

from app.core.units import PartitionIndex, TopicId, TopicIdPartition
from app.records.batch import iter_headers
from app.records.control import parse_marker
from app.records.record import iter_records
from tests.sim.links import Links
from tests.sim.timeline import Timeline
from tests.sim.violation import Violation
from tests.wal_simulation.broker import Broker
from tests.wal_simulation.bucket import Bucket, Stored
from tests.wal_simulation.checkers import Checkers
from tests.wal_simulation.clients import Consumer, Producer, TransactionalProducer
from tests.wal_simulation.cluster import NOBODY, ClusterLog, Image, Mode, PartitionRecord
from tests.wal_simulation.faults import END_MS, QUIET_MS, FaultActor, Plan
from tests.wal_simulation.leading import Leading
from tests.wal_simulation.locallog import LocalLog
from tests.wal_simulation.rules import RULES, Rules


class Machine:
    """A computer with a disk, and perhaps a broker's process."""

    def __init__(self, world: World, node_id: int, rng: Random) -> None:
        self.world, self.node_id, self._rng = world, node_id, rng
        self.disk: dict[TopicIdPartition, LocalLog] = {}
        self.process: Broker | None = None
        self.twin: Broker | None = None
        """The process before, which goes on somewhere else."""

    def disk_of(self, key: TopicIdPartition) -> LocalLog:
        """The log of a partition on this disk."""
        return self.disk.setdefault(key, LocalLog())

    def start(self) -> None:
        """Start the broker, unless it runs."""
        if self.process is None:
            self.process = Broker(self.world, self, self.world.new_incarnation(), Random(self._rng.getrandbits(64)))

    def kill(self, *, wipe: bool) -> None:
        """The process ends, and perhaps the disk is lost."""
        for process in (self.process, self.twin):
            if process is not None:
                process.alive = False
        self.process = self.twin = None
        if wipe and not self._has_only_copy:
            self.disk = {}

    @property
    def _has_only_copy(self) -> bool:
        """Such a disk is never lost, because it is not what this simulation is about."""
        records = self.world.log.newest.partitions.values()
        return any(self.node_id in each.members and each.mode is not Mode.OBJECT for each in records)

    def replace(self) -> None:
        """Somebody starts the broker on another computer with an empty disk, because this one seems to be dead, and is not."""
        if self.process is not None and not self._has_only_copy:
            if self.twin is not None:
                self.twin.alive = False
            self.twin, self.process, self.disk = self.process, None, {}
            self.start()


class BrokerLinks(Links):
    """Between brokers. Clients reach each broker."""

    delay_ms = (0.5, 3.0)
    held_share = 0.0


class World:
    """One seed."""

    def __init__(
        self, seed: int, rules: Rules = RULES, lines: list[str] | None = None, *, muted: bool = False, **fixed: Any
    ) -> None:
        self.seed, self.rules, self._lines = seed, rules, lines
        self.muted = muted
        """Whether checkers that restate a rule say nothing."""
        rng = self.rng = Random(seed)
        self.plan = Plan.of(Random(rng.getrandbits(64)), **fixed)
        self.timeline = Timeline()
        self.counts: dict[int, int] = {}
        """Records of each batch, by value."""
        self.producer_of: dict[int, int] = {}
        self.transactions: dict[int, bool | None] = {}
        """By value: whether its transaction is committed; None while it is open."""
        self.markers: set[int] = set()
        self._incarnations = 0
        self._nonces = 0
        self._producer_ids = 0
        self._topics = 0
        self.writing = True
        self.links = BrokerLinks(self.timeline, rng)
        self.checkers = Checkers(self)
        self.bucket = Bucket(self.timeline, Random(rng.getrandbits(64)), self.checkers)
        self.bucket.corrupt_share, self.bucket.page = self.plan.corrupt_share, self.plan.page
        nodes = self.plan.nodes
        self.keys: set[TopicIdPartition] = set()
        """Partitions that are there."""
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        records = {}
        for index in range(self.plan.partitions):
            is_replica = index < self.plan.replicas
            members = tuple({index % nodes, (index + 1) % nodes}) if is_replica else ()
            records[self.new_key()] = PartitionRecord(
                NOBODY, 0, 0, (), Mode.REPLICA if is_replica else Mode.OBJECT, members
            )
        self.log = ClusterLog(self.bucket, Image(1, partitions=records))
        self.note_topics()
        self.machines = {node: Machine(self, node, Random(rng.getrandbits(64))) for node in range(nodes)}
        for machine in self.machines.values():
            self.timeline.after(rng.uniform(0, 100), machine.start)
        self.faults = FaultActor(self, Random(rng.getrandbits(64)))
        self.timeline.after(QUIET_MS, self._stop_writing)

    def _stop_writing(self) -> None:
        self.writing = False

    def heal(self) -> None:
        """All faults are over."""
        self.bucket.away_from.clear()
        self.bucket.wals_away_from.clear()
        self.bucket.main_away_from.clear()
        self.bucket.undecided_share = 0.0
        self.links.heal()
        for machine in self.machines.values():
            machine.start()

    # --- topics -----------------------------------------------------------------------------------------------------------

    def new_key(self) -> TopicIdPartition:
        """A partition of a topic that was never there."""
        self._topics += 1
        return TopicIdPartition(TopicId(UUID(int=self._topics)), PartitionIndex(0))

    def note_topics(self) -> None:
        """Clients come and go with the topics of the newest image."""
        rng, plan = self.rng, self.plan
        there = set(self.log.newest.partitions)
        for key in sorted(there - self.keys):
            self.keys.add(key)
            made: list[Producer] = [Producer(self, key, Random(rng.getrandbits(64))) for _ in range(plan.producers)]
            made += [TransactionalProducer(self, key, Random(rng.getrandbits(64))) for _ in range(plan.transactional)]
            self.producers += made
            for committed in (False, True):
                self.consumers.append(Consumer(self, key, Random(rng.getrandbits(64)), committed=committed))
        gone = self.keys - there
        if gone:
            self.keys -= gone
            self.producers = [each for each in self.producers if each.key in there]
            self.consumers = [each for each in self.consumers if each.key in there]

    def is_lazy(self, key: TopicIdPartition) -> bool:
        """Whether the partition's segments are rolled rarely."""
        return int(key.topic_id.int) <= self.plan.lazy

    def members_with(self, leader: int) -> tuple[int, ...]:
        """Brokers that are to have copies of a partition."""
        others = [each for each in self.machines if each != leader]
        return (leader, *self.rng.sample(others, min(1, len(others))))

    def some_leader(self, key: TopicIdPartition, rng: Random) -> int:
        """Whom a client asks: it need not know the newest leader."""
        if rng.random() < 0.8:
            return self.log.newest.partitions[key].leader
        return rng.choice(list(self.machines))

    def trace(self, line: str) -> None:
        """Note what happens, for people."""
        if self._lines is not None:
            self._lines.append(f"{self.timeline.now_ms / 1000:8.3f} {line}")

    def new_value(self, count: int, producer_id: int) -> int:
        """A value that no other batch has."""
        value = len(self.counts) + 1
        self.counts[value] = count
        self.producer_of[value] = producer_id
        return value

    def new_incarnation(self) -> int:
        self._incarnations += 1
        return self._incarnations

    def new_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

    def new_nonce(self) -> bytes:
        self._nonces += 1
        return self._nonces.to_bytes(16, "big")

    def process_of(self, node_id: int) -> Broker | None:
        """The process on a machine."""
        machine = self.machines.get(node_id)
        return machine.process if machine is not None else None

    def send(self, sender: int, to: int, deliver: Callable[[Broker], None]) -> None:
        """A message between brokers, to the process that runs on the machine when it arrives."""
        self.links.send(sender, to, lambda: self._arrive(to, deliver))

    def deliver(self, to: int, delay_ms: float, deliver: Callable[[Broker], None], *, twin: bool = False) -> None:
        """A client's message to the process that runs on a machine when it arrives; or to that before it, if it still runs."""
        self.timeline.after(delay_ms, lambda: self._arrive(to, deliver, twin=twin))

    def _arrive(self, to: int, deliver: Callable[[Broker], None], *, twin: bool = False) -> None:
        machine = self.machines.get(to)
        process = machine.process if machine is not None else None
        if twin and machine is not None and machine.twin is not None:
            process = machine.twin
        if process is not None:
            process.after(0.0, deliver, process)

    # --- the truth --------------------------------------------------------------------------------------------------------

    def values_of(self, stored: Stored, key: TopicIdPartition) -> list[int]:
        """The values in an object's section of a partition."""
        for section in stored.footer.sections:
            if section.partition == key:
                data = stored.data[section.position : section.position + section.size_bytes]
                values: list[int] = []
                for position, header in iter_headers(data):
                    batch = data[position : position + header.size_bytes]
                    marker = parse_marker(batch) if header.is_control else None
                    if marker is not None:
                        values.append(marker.coordinator_epoch)
                    else:
                        values += [int(record.value or b"-1") for record in iter_records(batch)]
                return values
        return []

    def value_at(self, leading: Leading, offset: int) -> int:
        """What the new leader of a partition has at an offset that nobody was told of yet."""
        key = leading.key
        if offset >= leading.log.start:
            return leading.log.values_from(offset, offset + 1)[0]
        for piece in leading.pieces:
            if piece.section.base_offset <= offset < piece.section.end_offset:
                stored = self.bucket.wals[piece.wal].get(piece.number)
                if stored is not None:
                    return self.values_of(stored, key)[offset - piece.section.base_offset]
        for segment in self.bucket.manifest(key).segments:
            if segment.start <= offset < segment.end:
                return segment.values[offset - segment.start]
        raise Violation("lost", f"nobody has offset {offset} of {key}")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a seed."""

    seed: int
    violation: Violation | None
    lines: Sequence[str]
    acked: int
    read: int
    take_overs: int
    deleted: int
    resets: int
    faults: frozenset[str]
    hits: Mapping[tuple[str, str], int]
    """How often each kind of fault has hit each step."""
    aborted: int
    """Records of aborted transactions."""


def run_seed(seed: int, rules: Rules = RULES, *, trace: bool = False, muted: bool = False, **fixed: Any) -> Result:
    """Run one seed to its end, or to the first violation. ``muted``: without checkers that restate a rule."""
    lines: list[str] = []
    world = World(seed, rules, lines if trace else None, muted=muted, **fixed)
    violation = None
    try:
        world.timeline.run_until(END_MS)
        world.checkers.at_end()
    except Violation as error:
        violation = error
    checkers = world.checkers
    return Result(
        seed,
        violation,
        lines,
        checkers.acked,
        checkers.read,
        checkers.take_overs,
        checkers.deleted,
        checkers.resets,
        frozenset(world.faults.done),
        world.faults.hits,
        sum(outcome is False for outcome in world.transactions.values()),
    )
