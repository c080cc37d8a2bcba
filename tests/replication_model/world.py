"""The world of one seed: machines, the bucket, the network, clients, faults and checkers on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from uuid import UUID

from app.configs import BrokerConfig
from app.core.units import BrokerId, LeaderEpoch, LogSequence, TimestampMs
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, PartitionImage
from app.metadata.image.records import (
    LEVEL_FEATURE,
    ClusterRecord,
    Endpoint,
    MemberRecord,
    PartitionRecord,
    TopicRecord,
    broker_change,
    cluster_change,
    feature_change,
    partition_change,
    topic_change,
)
from app.metadata.log.log_format import KeyValue
from tests.replication_model.bucket import NO_ENTRY, Bucket, LogEntry
from tests.replication_model.checkers import Checkers
from tests.replication_model.clients import Client
from tests.replication_model.disk import Disk, Marker, ReplicaLog
from tests.replication_model.faults import END_MS, HEAL_MS, FaultActor, Plan
from tests.replication_model.network import Network
from tests.replication_model.process import Process
from tests.replication_model.rules import RULES, Rules
from tests.sim.timeline import Timeline
from tests.sim.violation import Violation

TOPIC: Final = UUID(int=7)
CLUSTER: Final = "cluster"
FLUSH_EVERY_MS: Final = 7_000.0
"""How often the operating system writes page caches back."""
AFTERMATH_MS: Final = 8_000.0
"""Time after a disturbance in which a broker may still be fenced for it."""
CALM_MS: Final = 30_000.0
"""Time after the end of all faults within which everything works again."""


class Machine:
    """A computer with one disk, and a broker process that may run on it."""

    def __init__(self, world: World, node_id: int, rng: Random) -> None:
        self.world = world
        self.node_id = node_id
        self.rng = rng
        self.boot_id = f"boot-{rng.getrandbits(32):x}"
        self.disk = Disk(UUID(int=rng.getrandbits(128)), node_id)
        self.disk_image: Disk | None = None
        self.clock_skew_ms = rng.uniform(-50_000.0, 50_000.0)
        self.process: Process | None = None
        world.timeline.after(rng.uniform(0.5, 1.0) * FLUSH_EVERY_MS, self._flush)

    def start(self) -> None:
        """Start the broker, unless it runs."""
        if self.process is None:
            self.process = Process(self.world, self, self.world.rules)
            self.world.starts[self.process.incarnation] = len(self.world.starts) + 1
            self.world.disturb(self.node_id, 0.0)
            self.world.trace(f"{self.process.name} starts")
            self.process.begin()

    def kill(self) -> None:
        """The process ends. What it wrote is in the page cache."""
        self.world.disturb(self.node_id, 20_000.0)
        if self.process is not None:
            self.process.alive = False
            self.process = None

    def lose_power(self) -> None:
        """The process ends, and what was not synced is gone."""
        self.kill()
        for log in self.disk.logs.values():
            log.lose_power(self.rng)
        self.boot_id = f"boot-{self.rng.getrandbits(32):x}"
        if not self.world.plan.disk:
            self.world.checkers.disk_damaged(self.node_id)

    def lose_disk(self) -> None:
        """The data directory is gone; there will be a new one."""
        self.kill()
        self.disk = Disk(UUID(int=self.rng.getrandbits(128)), self.node_id)
        self.world.checkers.disk_damaged(self.node_id)

    def put_back_image(self) -> None:
        """The disk is as it was when its image was taken. The machine is booted for that."""
        assert self.disk_image is not None
        self.kill()
        self.disk, self.disk_image = self.disk_image, None
        self.boot_id = f"boot-{self.rng.getrandbits(32):x}"
        self.world.checkers.disk_damaged(self.node_id)

    def pause(self, for_ms: float) -> None:
        """The process stands still (SIGSTOP), unless it does already."""
        if self.process is not None:
            self.world.disturb(self.node_id, for_ms)
            if not self.process.paused:
                self.process.pause(for_ms)

    def stop_in_order(self, again_ms: float, *, take_image: bool = False) -> None:
        """Ask the broker to stop (SIGTERM), and start it ``again_ms`` after it has."""
        process = self.process
        if process is not None:
            self.world.disturb(self.node_id, 20_000.0)

            def stopped() -> None:
                self.process = None
                self.world.timeline.after(again_ms, self.start)
                if take_image:
                    self.disk_image = self.disk.copy()

            process.stop_in_order(stopped)

    def _flush(self) -> None:
        self.world.timeline.after(FLUSH_EVERY_MS, self._flush)
        for log in self.disk.logs.values():
            log.synced_end = log.end


class World:
    """One seed."""

    def __init__(self, seed: int, rules: Rules = RULES, lines: list[str] | None = None, **fixed: object) -> None:
        self.seed = seed
        self.rules = rules
        self._lines = lines
        self.rng = Random(seed)
        self.plan = Plan.of(Random(self.rng.getrandbits(64)), **fixed)
        self.timeline = Timeline()
        self.bucket = Bucket(self.timeline, Random(self.rng.getrandbits(64)))
        self.bucket.on_stored = self._stored
        self.machines: dict[int, Machine] = {}
        self.network = Network(self.timeline, Random(self.rng.getrandbits(64)), self._process_of)
        self.checkers = Checkers(self)
        self.images: dict[bytes, ClusterImage] = {NO_ENTRY.nonce: ClusterImage()}
        """By the nonce of the entry that made it: every broker that applies the entry gets the same image."""
        self.newest = self.images[NO_ENTRY.nonce]
        self.controller_id = -1
        self.topic_id = TOPIC
        self.starts: dict[UUID, int] = {}
        """Numbers of the starts of brokers, by incarnation."""
        self._disturbed_until_ms: dict[int, float] = {}
        self._all_disturbed_until_ms = 0.0
        self._values = 0
        self.broker_config = BrokerConfig()
        for node_id in range(self.plan.nodes):
            self.machines[node_id] = Machine(self, node_id, Random(self.rng.getrandbits(64)))
        self.machines_in_order = list(self.machines.values())
        self._found_cluster()
        for machine in self.machines_in_order:
            self.timeline.after(self.rng.uniform(0.0, 300.0), machine.start)
        self.clients = [Client(self, index, Random(self.rng.getrandbits(64))) for index in range(self.plan.partitions)]
        self.faults = FaultActor(self, Random(self.rng.getrandbits(64)))

    @property
    def now_ms(self) -> float:
        return self.timeline.now_ms

    def trace(self, line: str) -> None:
        """Note what happens, for people."""
        if self._lines is not None:
            self._lines.append(f"{self.timeline.now_ms / 1000:8.3f} {line}")

    @property
    def traced(self) -> bool:
        return self._lines is not None

    def new_value(self) -> int:
        """A value that no other record has."""
        self._values += 1
        return self._values

    def newest_partition(self, index: int) -> PartitionImage:
        """By the newest entry."""
        return self.newest.topics_by_id[TOPIC].partitions[index]

    def disturb(self, node_id: int | None, for_ms: float) -> None:
        """Something happens to a broker, or to all, so that others may miss it for a while."""
        until_ms = self.now_ms + for_ms + AFTERMATH_MS
        if node_id is None:
            self._all_disturbed_until_ms = max(self._all_disturbed_until_ms, until_ms)
        else:
            self._disturbed_until_ms[node_id] = max(self._disturbed_until_ms.get(node_id, 0.0), until_ms)

    def was_disturbed(self, node_id: int) -> bool:
        """Whether others may have missed the broker."""
        return self.now_ms < max(self._all_disturbed_until_ms, self._disturbed_until_ms.get(node_id, 0.0))

    def leader_of(self, index: int) -> int:
        """By the newest entry."""
        return int(self.newest_partition(index).leader)

    def run(self) -> None:
        """Run to the end. Raises: Violation."""
        self.timeline.run_until(END_MS)
        self.check_alive()

    # --- what faults ask for ------------------------------------------------------------------------------------------

    def ask_reassignment(self, rng: Random) -> None:
        """Ask the controller for other replicas of a partition."""
        index = rng.randrange(self.plan.partitions)
        replicas = rng.sample(range(self.plan.nodes), min(self.plan.factor, self.plan.nodes))
        self._ask_controller("reassign", (index, tuple(replicas)))

    def ask_min_in_sync(self, value: int) -> None:
        """Ask the controller for another ``min.insync.replicas``."""
        self._ask_controller("min in-sync", value)

    def _ask_controller(self, method: str, request: Any) -> None:
        if self.controller_id >= 0:
            self.network.client_call(self.controller_id, method, request, lambda response: None)

    # --- the end ------------------------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Everything works again."""
        assert END_MS - HEAL_MS > CALM_MS
        topic = self.newest.topics_by_id[TOPIC]
        fenced = [each.broker_id for each in self.newest.brokers.values() if not each.active]
        if fenced:
            raise Violation("alive", f"brokers {fenced} are fenced or stopping")
        for partition, client in zip(topic.partitions, self.clients, strict=True):
            index = int(partition.partition_index)
            if partition.leader < 0:
                if self._nobody_may_lead(partition):
                    continue
                raise Violation("alive", f"partition {index} has no leader: {partition}")
            if sorted(partition.isr) != sorted(partition.replicas):
                raise Violation("alive", f"partition {index}: {partition.isr} of {partition.replicas} are in sync")
            if client.last_acked_ms < END_MS - 5_000:
                raise Violation(
                    "alive", f"partition {index}: nothing was acknowledged since {client.last_acked_ms / 1000:.1f} s"
                )
            log = self.machines[int(partition.leader)].disk.logs[index]
            leader = self.machines[int(partition.leader)].process
            assert leader is not None
            self.checkers.leads(leader.node_id, leader.name, index, int(partition.leader_epoch), log, log.end)
            for replica in partition.replicas:
                other = self.machines[int(replica)].disk.logs[index]
                history = self.checkers.history(index)
                if other.start > history.tiered_end:
                    raise Violation("INV-4", f"partition {index}: broker {replica} begins at {other.start}")

    def _nobody_may_lead(self, partition: PartitionImage) -> bool:
        """Whether everybody who had all records has lost them, so that an operator must decide."""
        history = self.checkers.history(int(partition.partition_index))
        return not self.plan.unclean and history.excused_above is not None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _process_of(self, node_id: int) -> Process | None:
        machine = self.machines.get(node_id)
        return machine.process if machine is not None else None

    def image_after(self, before: ClusterImage, entry: LogEntry) -> ClusterImage:
        """The image that ``entry`` makes of the one before it."""
        image = self.images.get(entry.nonce)
        if image is None:
            draft = ImageDraft(before)
            draft.apply(entry.records)
            image = self.images[entry.nonce] = draft.freeze(LogSequence(entry.sequence))
        return image

    def _stored(self, name: str, entry: LogEntry) -> None:
        if name == CLUSTER:
            before = self.newest
            self.newest = self.image_after(self.newest, entry)
            if entry.is_seal and entry.writer_id:
                self.controller_id = int(entry.writer_id.split("/")[0])
            if self.traced:
                self._trace_entry(entry, before)
            self.checkers.entry_stored(entry, before, self.newest)
        else:
            self.checkers.manifest_stored(int(name.split("-")[1]), entry)
            if self.traced:
                self.trace(
                    f"{name} {entry.sequence} by {entry.writer_id}: "
                    + (
                        "seal"
                        if entry.is_seal
                        else f"{entry.records[0]} [{entry.records[1].start}, {entry.records[1].end})"
                    )
                    + f" epoch {entry.epoch}"
                )

    def _trace_entry(self, entry: LogEntry, before: ClusterImage) -> None:
        what = [f"entry {entry.sequence} by {entry.writer_id}" + (f": seal {entry.epoch}" if entry.is_seal else "")]
        for broker, image in self.newest.brokers.items():
            if before.brokers.get(broker) != image:
                state = "fenced" if image.fenced else "stopping" if image.stopping else "active"
                what.append(f"broker {broker} {state} epoch {image.broker_epoch}")
        for topic_id, topic in self.newest.topics_by_id.items():
            old = before.topics_by_id.get(topic_id)
            for index, partition in enumerate(topic.partitions):
                if old is None or old.partitions[index] != partition:
                    more = "".join(
                        f" {name}={value}"
                        for name, value in partition._asdict().items()
                        if name in ("eligible", "last_known_eligible", "adding", "removing", "recovering") and value
                    )
                    what.append(
                        f"p{index}: leader {partition.leader} epoch {partition.leader_epoch}.{partition.partition_epoch} "
                        f"isr {tuple(partition.isr)} of {tuple(partition.replicas)}{more}"
                    )
        self.trace("; ".join(what))

    def _found_cluster(self) -> None:
        """A cluster whose brokers have all just stopped in order."""
        plan = self.plan
        records: list[KeyValue] = [
            cluster_change(ClusterRecord(2, "model", TimestampMs(0))),
            feature_change(LEVEL_FEATURE, 1),
        ]
        for machine in self.machines_in_order:
            machine.disk.marker = Marker(1, True, machine.boot_id)
            record = MemberRecord(
                1, machine.disk.directory_id, UUID(int=machine.node_id + 1), 1, self.endpoints(machine.node_id), None,
                TimestampMs(0), fenced=True, changed_at=1, level_max=1,
            )  # fmt: skip
            records.append(broker_change(machine.node_id, record))
        configs = {
            "min.insync.replicas": str(plan.min_in_sync),
            "unclean.leader.election.enable": str(plan.unclean).lower(),
        }
        records.append(topic_change(TOPIC, TopicRecord(1, "model", plan.partitions, configs, TimestampMs(0))))
        for index in range(plan.partitions):
            replicas = tuple(BrokerId((index + place) % plan.nodes) for place in range(min(plan.factor, plan.nodes)))
            records.append(
                partition_change(TOPIC, index, PartitionRecord(1, replicas[0], LeaderEpoch(0), 0, replicas, replicas))
            )
            for replica in replicas:
                self.machines[int(replica)].disk.logs[index] = ReplicaLog()
        seal = LogEntry(0, "", self.rng.randbytes(16), True, 0, NO_ENTRY.nonce, ())
        first = LogEntry(1, "", self.rng.randbytes(16), False, 0, seal.nonce, records)
        for entry in (seal, first):
            self.bucket.logs.setdefault(CLUSTER, {})[entry.sequence] = entry
            before, self.newest = self.newest, self.image_after(self.newest, entry)
            self.checkers.entry_stored(entry, before, self.newest)

    @staticmethod
    def endpoints(node_id: int) -> tuple[Endpoint, ...]:
        """Where a broker is reached."""
        return (Endpoint("PLAINTEXT", f"host-{node_id}", 9092, "PLAINTEXT"),)


@dataclass(slots=True)
class Result:
    """What became of a seed."""

    seed: int
    violation: Violation | None
    acked: int
    excuses: int
    events: int
    faults: list[str]
    lines: list[str]


def run_seed(
    seed: int,
    rules: Rules = RULES,
    *,
    trace: bool = False,
    prepare: Callable[[World], None] | None = None,
    **fixed: object,
) -> Result:
    """Run one seed. ``fixed``: fields of the plan."""
    lines: list[str] = []
    world = World(seed, rules, lines if trace else None, **fixed)
    if prepare is not None:
        prepare(world)
    violation = None
    try:
        world.run()
    except Violation as found:
        violation = found
        world.trace(f"VIOLATION {found}")
    return Result(
        seed,
        violation,
        sum(client.acked for client in world.clients),
        sum(history.excuses for history in world.checkers.histories.values()),
        world.timeline.events,
        world.faults.done,
        lines,
    )
