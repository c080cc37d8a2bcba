"""The world of one seed: machines, the bucket, clients, faults and checkers on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

from app.records.batch import iter_headers
from app.records.record import iter_records
from app.units import PartitionIndex, TopicId, TopicIdPartition
from tests.replication_model.timeline import Timeline
from tests.replication_model.violation import Violation
from tests.wal_simulation.broker import Broker
from tests.wal_simulation.bucket import Bucket, Stored
from tests.wal_simulation.checkers import Checkers
from tests.wal_simulation.clients import Consumer, Producer
from tests.wal_simulation.cluster import NOBODY, ClusterLog, Image, Mode, PartitionRecord
from tests.wal_simulation.faults import END_MS, QUIET_MS, FaultActor, Plan
from tests.wal_simulation.leading import LocalLog
from tests.wal_simulation.rules import RULES, Rules

TOPIC = TopicId(UUID(int=7))


class Machine:
    """A computer with a disk, and perhaps a broker's process."""

    def __init__(self, world: World, node_id: int, rng: Random) -> None:
        self.world, self.node_id, self._rng = world, node_id, rng
        self.logs: dict[TopicIdPartition, LocalLog] = {}
        self.process: Broker | None = None

    def start(self) -> None:
        """Start the broker, unless it runs."""
        if self.process is None:
            self.process = Broker(self.world, self, self.world.new_incarnation(), Random(self._rng.getrandbits(64)))

    def kill(self, *, wipe: bool) -> None:
        """The process ends, and perhaps the disk is lost. A disk with the only copy of records is never lost."""
        if self.process is not None:
            self.process.alive = False
            self.process = None
        records = self.world.log.newest.partitions.values()
        if wipe and not any(each.home == self.node_id and each.mode is not Mode.OBJECT for each in records):
            self.logs = {}


class World:
    """One seed."""

    def __init__(self, seed: int, rules: Rules = RULES, lines: list[str] | None = None, **fixed: Any) -> None:
        self.seed, self.rules, self._lines = seed, rules, lines
        rng = self.rng = Random(seed)
        self.plan = Plan.of(Random(rng.getrandbits(64)), **fixed)
        self.timeline = Timeline()
        self.counts: dict[int, int] = {}
        """Records of each batch, by value."""
        self._incarnations = 0
        self._nonces = 0
        self._producer_ids = 0
        self.writing = True
        self.cut_off: set[int] = set()
        """Machines that other brokers do not reach. Clients do."""
        self.checkers = Checkers(self)
        self.bucket = Bucket(self.timeline, Random(rng.getrandbits(64)), self.checkers)
        keys = [TopicIdPartition(TOPIC, PartitionIndex(index)) for index in range(self.plan.partitions)]
        records = {
            key: PartitionRecord(
                NOBODY, 0, 0, (), Mode.REPLICA if index < self.plan.replicas else Mode.OBJECT, index % self.plan.nodes
            )
            for index, key in enumerate(keys)
        }
        self.log = ClusterLog(self.bucket, Image(1, partitions=records))
        self.machines = {node: Machine(self, node, Random(rng.getrandbits(64))) for node in range(self.plan.nodes)}
        for machine in self.machines.values():
            self.timeline.after(rng.uniform(0, 100), machine.start)
        self.producers = [
            Producer(self, key, Random(rng.getrandbits(64))) for key in keys for _ in range(self.plan.producers)
        ]
        self.consumers = [Consumer(self, key, Random(rng.getrandbits(64))) for key in keys]
        self.faults = FaultActor(self, Random(rng.getrandbits(64)))
        self.timeline.after(QUIET_MS, self._stop_writing)

    def _stop_writing(self) -> None:
        self.writing = False

    def heal(self) -> None:
        """All faults are over."""
        self.bucket.away_from.clear()
        self.bucket.undecided_share = 0.0
        self.cut_off.clear()
        for machine in self.machines.values():
            machine.start()

    def trace(self, line: str) -> None:
        """Note what happens, for people."""
        if self._lines is not None:
            self._lines.append(f"{self.timeline.now_ms / 1000:8.3f} {line}")

    def new_value(self, count: int) -> int:
        """A value that no other batch has."""
        value = len(self.counts) + 1
        self.counts[value] = count
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
        """A message between brokers."""
        if sender == to or (sender not in self.cut_off and to not in self.cut_off):
            self.deliver(to, self.rng.uniform(0.5, 3.0), deliver)

    def deliver(self, to: int, delay_ms: float, deliver: Callable[[Broker], None]) -> None:
        """A message to the process that runs on a machine when it arrives."""

        def arrive() -> None:
            process = self.process_of(to)
            if process is not None:
                process.after(0.0, deliver, process)

        self.timeline.after(delay_ms, arrive)

    # --- the truth --------------------------------------------------------------------------------------------------------

    def values_of(self, stored: Stored, key: TopicIdPartition) -> list[int]:
        """The values in an object's section of a partition."""
        for section in stored.footer.sections:
            if section.partition == key:
                data = stored.data[section.position : section.position + section.size_bytes]
                return [
                    int(record.value or b"-1")
                    for position, header in iter_headers(data)
                    for record in iter_records(data[position : position + header.size_bytes])
                ]
        return []

    def value_at(self, key: TopicIdPartition, offset: int, node_id: int) -> int:
        """What the new leader of a partition has at an offset that nobody was told of yet."""
        process = self.process_of(node_id)
        assert process is not None
        leading = process.led[key]
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


def run_seed(seed: int, rules: Rules = RULES, *, trace: bool = False, **fixed: Any) -> Result:
    """Run one seed to its end, or to the first violation."""
    lines: list[str] = []
    world = World(seed, rules, lines if trace else None, **fixed)
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
    )
