"""One run: a cluster of one broker (for a while perhaps two), its clients, its bucket, and everything that goes wrong.

All of it follows from the seed: the shape of the run, every latency, every fault and its moment. ``run_seed`` gives the
outcome; the same seed gives the same trace, whose hash is a part of the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from unittest import mock
from uuid import UUID

from app.configs import BrokerConfig, Durability, TierCompression, TopicConfig
from app.coordinator import topics
from app.core.errors import FencedError
from app.core.units import TimestampMs, TopicId
from app.metadata.image.image import ClusterImage
from app.metadata.log import layout
from app.metadata.log.log_format import decode_entry
from app.metadata.manifest.manifest_state import segment_record_key
from app.objectstore.memory import Fault, FaultKind
from app.records.batch import iter_headers
from tests.sim.bucket import Bucket
from tests.sim.loop import SimLoop
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.sim.wire import Wire
from tests.sim.world import WorldOfBrokers, run_world
from tests.simulation import assigned, sharing
from tests.simulation.actors import Actor, Administrator, Consumer, Producer
from tests.simulation.assigned import AssignedMember, OneOwner
from tests.simulation.checkers import (
    CRC_POSITION,
    AckedMeansKept,
    Bounded,
    BucketIsEnough,
    CommittedOnly,
    NoGapNoOverlap,
    OneAcknowledges,
    OneWriter,
)
from tests.simulation.compaction import KeyedReader, KeyedTopic, KeyedWriter
from tests.simulation.groups import CommittedOffsets, Member
from tests.simulation.history import PartitionHistory
from tests.simulation.machine import Machine
from tests.simulation.sharing import SharedOnce
from tests.simulation.transactions import CommittedReader, TransactionalProducer, Transactions
from tests.support.virtual_loop import VirtualClock


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    trace_hash: str
    acks: int
    reads: int
    restarts: int
    tiered: int
    virtual_s: float
    violation: Violation | None
    lines: tuple[str, ...]
    """The end of the trace."""


FAULTS = (
    "kill",
    "kill within",
    "power",
    "power within",
    "stop",
    "store flaky",
    "store away",
    "store lies",
    "store hangs",
    "disk full",
    "sync fails",
    "rot",
    "clock",
    "take-over",
    "slow pool",
    "short writes",
    "cold pages",
    "sweep",
    "cut",
    "store slow",
    "kill at upload",
    "kill at swap",
)
"""What a run may meet. ``Shape.faults`` says which of them it does."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of run a seed stands for."""

    seconds: float
    faults: tuple[str, ...]
    pause_s: float
    producers: int
    consumers: int
    disk_share: float

    @classmethod
    def of(cls, rng: random.Random, only: tuple[str, ...] | None) -> Shape:
        kinds = list(only) if only is not None else rng.sample(FAULTS, rng.randint(1, 6))
        if "rot" in kinds and rng.random() < 0.5 and only is None:
            kinds.remove("rot")
        return cls(
            seconds=rng.choice((1.5, 3.0, 6.0)),
            faults=tuple(kinds) or ("kill",),
            pause_s=rng.choice((0.2, 0.6, 1.2)),
            producers=rng.randint(1, 3),
            consumers=rng.randint(1, 2),
            disk_share=rng.choice((0.0, 0.5, 1.0)),
        )


class World(WorldOfBrokers):
    """See the module."""

    def __init__(
        self, seed: int, loop: SimLoop, *, faults: tuple[str, ...] | None, keep: Callable[[str], None]
    ) -> None:
        super().__init__(seed, loop, "rngs", keep)
        self.rng = random.Random(f"world {seed}")
        self.shape = Shape.of(self.rng, faults)
        self.clock = VirtualClock(loop)
        self.bucket = Bucket(self.clock, self.new_rng())
        self.histories: dict[tuple[UUID, int], PartitionHistory] = {}
        self.headless: set[tuple[UUID, int]] = set()
        """Partitions whose manifests have lost their last entries, so that nobody may lead them."""
        self.taken: set[str] = set()
        rng = self.rng
        self.disk_share = self.shape.disk_share
        self.topics_come_and_go = rng.random() < 0.4
        self.filler_bytes = rng.choice((20, 200))
        self.codec = rng.choice((0, 0, 3))
        self.chunk_cache_bytes = rng.choice((12_000, 40_000, 1 << 20))
        self.topic_defaults = TopicConfig(
            segment_bytes=rng.choice((600, 1500, 4000)),
            index_interval_bytes=rng.choice((0, 150, 4096)),
            retention_ms=-1,
            local_retention_ms=rng.choice((1, 1500, 60_000)),
            firn_tier_max_lag_ms=rng.choice((1000, 3000)),
            firn_tier_chunk_bytes=rng.choice((300, 900, 4000)),
            firn_tier_compression=rng.choice((TierCompression.AUTO, TierCompression.NONE)),
            firn_remote_delete_delay_ms=3000,
            file_delete_delay_ms=1000,
        )
        self.slow_readers = rng.choice((0.0, 0.0, 0.2))
        coordinated = random.Random(f"coordinated {seed}")
        self.group_ids = ("g", "h")[: coordinated.choice((0, 0, 1, 2))]
        self.members = coordinated.randint(1, 4)
        self.internal_on_disk = coordinated.random() < 0.5
        if self.group_ids:
            # What is committed for a topic goes with it; here it is to stay.
            self.topics_come_and_go = False
            self.topic_defaults = replace(
                self.topic_defaults,
                firn_durability=Durability.DISK if self.internal_on_disk else Durability.MEMORY,
            )
        self.transactional = coordinated.choice((0, 0, 0, 1, 2, 3))
        """How many producers of transactions there are."""
        if self.transactional:
            self.topics_come_and_go = False
            self._promise_to_survive(coordinated.random() < 0.5)
        self.compacting = coordinated.random() < 0.3
        """There is a compacted topic."""
        shared = random.Random(f"shared {seed}")
        self.assigned = shared.choice((0, 0, 0, 2, 3))
        """How many members a group has whose assignment the broker makes."""
        self.assignment_interval_ms = shared.choice((0, 200, 1000))
        self.sharing = shared.choice((0, 0, 0, 1, 2, 3))
        """How many workers share records."""
        if self.assigned or self.sharing:
            durability = Durability.DISK if self.internal_on_disk else Durability.MEMORY
            self.topic_defaults = replace(self.topic_defaults, firn_durability=durability)
        self.acked_means_kept = AckedMeansKept(self)
        self.one_writer = OneWriter(self)
        self.one_acknowledges = OneAcknowledges(self)
        self.committed_only = CommittedOnly(self)
        self.no_gap_no_overlap = NoGapNoOverlap(self)
        self.bucket_is_enough = BucketIsEnough(self)
        self.bounded = Bounded()
        self.committed_offsets = CommittedOffsets(self)
        self.one_owner = OneOwner(self)
        self.shared_once = SharedOnce(self)
        self.transactions = Transactions(self)
        self.keyed = KeyedTopic(self)
        self.bucket.watchers += [self]
        self.machines = [Machine(self, "a")]
        self.owner = self.machines[0]
        self.served_by: Machine | None = None
        self.producing = True
        self.acks = self.reads = self.restarts = 0
        self._moving = False
        self._dies_at_upload = False
        self.dies_at_swap = False
        """The next compaction is cut off while its segment takes the place of others."""
        self.brokers_cut_apart = False
        """No machine reaches another."""
        self.paused_hear_nothing = False
        """What other brokers send to a paused one is lost, as with a machine that is suspended."""
        self.challenged = False
        """Another machine has tried to take the owner's place since it began to serve."""
        self._go: Callable[[object], object] = lambda _work: None
        self.new_level = 0
        """Of ``firn.version``, of the cluster that the first broker makes."""
        self.script: Callable[[World], Awaitable[None]] | None = None
        """What happens instead of clients and faults by chance."""

    def _promise_to_survive(self, power: bool) -> None:
        """All that a transaction touches survives the same, so that it is whole after a crash: a loss of power, or none happens."""
        self.shape = replace(
            self.shape,
            disk_share=float(power),
            faults=tuple(one for one in self.shape.faults if one != "rot" and (power or not one.startswith("power")))
            or ("kill",),
        )
        self.disk_share, self.internal_on_disk = self.shape.disk_share, power
        durability = Durability.DISK if power else Durability.MEMORY
        self.topic_defaults = replace(self.topic_defaults, firn_durability=durability)

    # --- small things -----------------------------------------------------------------------------------------------

    def know_topic(self, name: str, topic_id: UUID, partitions: int, *, disk: bool, expires: bool) -> None:
        for index in range(partitions):
            self.histories[topic_id, index] = PartitionHistory(name, topic_id, index, disk, expires)

    def is_deleted_prefix(self, prefix: str) -> bool:
        return any(
            history.deleting and layout.manifest_prefix(history.topic_id, history.index) == prefix  # type: ignore[arg-type]
            for history in self.histories.values()
        )

    # --- watching the bucket ----------------------------------------------------------------------------------------

    def stored(self, key: str, data: bytes, before: bytes | None) -> None:
        with self.judging():
            self.one_writer.stored(key, data, before)
            self.bucket_is_enough.stored(key, data, before)
        if self._dies_at_upload and key.startswith(layout.DATA_PREFIX) and self.owner.up and not self._moving:
            # The object is whole, and nothing says so yet.
            self._dies_at_upload = False
            self.owner.crash("kill")
            if self.rng.random() < 0.5:
                self._go(self._take_over("dead"))
            else:
                self.crashed(self.owner)

    def removed(self, key: str, data: bytes) -> None:
        with self.judging():
            self.one_writer.removed(key, data)
            self.bucket_is_enough.removed(key, data)

    # --- brokers ----------------------------------------------------------------------------------------------------

    def connect(self) -> tuple[Wire, Machine]:
        """Raises: Unreachable."""
        machine = self.owner
        others = [one for one in self.machines if one.up and one is not machine]
        if others and self.rng.random() < 0.3:
            machine = self.rng.choice(others)
        if not machine.up or machine.node is None or machine.process is None:
            raise Unreachable
        wire = Wire(self.loop, self.new_rng(), machine.process, machine.node.server, self.outside, self.slow_readers)
        machine.wires = [*(one for one in machine.wires if one.open), wire]
        return wire, machine

    def serving(self, machine: Machine) -> None:
        """A broker begins to serve. Raises: Violation."""
        node = machine.node
        assert node is not None
        if node.cluster.writer_id != self.one_writer.cluster_writer:
            # While it was starting another broker has taken its place, and it has not heard of that yet.
            self.trace("serving late", machine.name)
            self._moving = False
            return
        self.restarts += 1
        moved = self.served_by is not None and machine is not self.served_by
        worst = "moved" if moved else machine.worst
        self.trace("serving", machine.name, worst)
        self.owner = self.served_by = machine
        self.one_acknowledges.serving(machine)
        self._moving = self.challenged = False
        for history in list(self.histories.values()):
            if history.deleting:
                continue
            log = node.logs.get(history.topic, history.index)
            if (history.topic_id, history.index) in self.headless:
                if log is not None:
                    raise Violation("INV-1", f"{history.name} is led at {log.log_end_offset} without its last entries")
                continue
            if (history.topic_id, history.index) in node.partitions.table.offline and "store lies" in self.shape.faults:
                # The store gave damaged bytes of its manifest: it is led when they are read again and sound.
                self._go(self._judge_when_led(machine, history, worst))
                continue
            if log is None or log.topic_id != history.topic_id:
                raise Violation("INV-1", f"{history.name} is not there after {worst}")
            tiered_end = int(self.one_writer.manifest(history.topic_id, history.index).tiered_end)
            self.acked_means_kept.restarted(history, int(log.log_end_offset), tiered_end, worst)
        if worst == "moved" or (worst == "power" and not self.internal_on_disk):
            self.committed_offsets.lost()
            self.one_owner.lost()
            self.shared_once.lost()
            self.transactions.lost()
            self.keyed.lost()
        self.shared_once.restarted()
        machine.worst = "clean"
        self.no_gap_no_overlap.look(machine)

    async def _judge_when_led(self, machine: Machine, history: PartitionHistory, worst: str) -> None:
        node = machine.node
        assert node is not None
        while machine.up and machine.node is node and not history.deleting:
            log = node.logs.get(history.topic, history.index)
            if log is not None and (history.topic_id, history.index) not in node.partitions.table.offline:
                with self.judging():
                    tiered_end = int(self.one_writer.manifest(history.topic_id, history.index).tiered_end)
                    self.acked_means_kept.restarted(history, int(log.log_end_offset), tiered_end, worst)
                return
            await asyncio.sleep(0.002)

    def crashed(self, machine: Machine) -> None:
        """A machine went down by itself: somebody will start it again."""
        self.loop.call_later(self.rng.uniform(0.05, 1.0), self._start_again, machine, context=self.outside)

    def _start_again(self, machine: Machine) -> None:
        if machine is self.owner and not self._moving and (machine.process is None or machine.process.dead):
            machine.start()

    async def _keep_running(self) -> None:
        """Whoever supervises brokers: start the owner again when it has ended."""
        while True:
            await asyncio.sleep(0.5)
            owner = self.owner
            for machine in self.machines:
                node = machine.node
                if machine.up and node is not None and node.logs.offline_reason is not None:
                    if "sync fails" not in self.shape.faults:
                        raise Violation("liveness", f"offline without need: {node.logs.offline_reason}")
                    if self.rng.random() < 0.3:
                        machine.stop()
            if owner.process is not None and owner.process.dead and not self._moving:
                if isinstance(owner.exit, FencedError) and not self.challenged:
                    raise Violation("INV-2", f"{owner.name} was fenced by nobody: {owner.exit}")
                owner.start(take_over=self.challenged)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            for machine in self.machines:
                if machine.up and machine.node is not None:
                    self.bounded.look(machine)
            if self.owner.up:
                self.no_gap_no_overlap.look(self.owner)

    # --- trouble ----------------------------------------------------------------------------------------------------

    async def _make_trouble(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.3, 1.7) * self.shape.pause_s)
            kind = self.rng.choice(self.shape.faults)
            await self._trouble(kind)

    async def _trouble(self, kind: str) -> None:
        rng, owner = self.rng, self.owner
        self.trace("fault", kind)
        match kind:
            case "kill" | "power":
                if owner.process is not None and not owner.process.dead and not self._moving:
                    owner.crash(kind)
                    self.crashed(owner)
            case "kill within" | "power within":
                owner.crash_within(rng.choice((1, 2, 3, 8, 20, 60)), kind.split()[0])
            case "stop":
                owner.stop()
            case "store flaky":
                kinds = rng.sample(
                    (FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.APPLIED_LATE, FaultKind.LATENCY), 2
                )
                faults = [
                    Fault(one, probability=rng.choice((0.1, 0.3, 0.6)), latency_ms=(1, rng.choice((50, 1500))))
                    for one in kinds
                ]
                await self._for_a_while(faults, rng.uniform(0.5, 3.0))
            case "store away":
                await self._for_a_while([Fault(FaultKind.UNAVAILABLE)], rng.uniform(0.3, 7.0))
            case "store lies":
                kinds = [FaultKind.FLIPPED_BYTE, FaultKind.TORN_READ, FaultKind.SHORT_ANSWER]
                faults = [Fault(one, probability=rng.choice((0.1, 0.4))) for one in kinds]
                await self._for_a_while(faults, rng.uniform(0.5, 4.0))
            case "store hangs":
                one = rng.choice((FaultKind.HANG, FaultKind.HANG_APPLIED))
                await self._for_a_while([Fault(one, probability=rng.choice((0.1, 0.5)))], rng.uniform(0.5, 3.0))
            case "disk full":
                disk = owner.disk
                disk.capacity_bytes = disk.used + rng.choice((0, 100, 700))
                await asyncio.sleep(rng.uniform(0.2, 3.0))
                disk.capacity_bytes = 1 << 40
            case "sync fails":
                owner.disk.fail_next("fdatasync", rng.choice((".log", "", ".index")))
            case "rot":
                self._rot(owner)
            case "clock":
                self.clock.skew_ms += rng.choice((-600_000, -3000, -1, 1, 5000, 600_000))
            case "take-over":
                await self._take_over(rng.choice(("alive", "alive", "cut off", "dead", "stopped")))
            case "slow pool":
                self._pool_latency_s = rng.choice(((0.0001, 0.002), (0.0, 0.0), (0.01, 0.3), (0.0001, 1.0)))
            case "short writes":
                owner.disk.short_write_rate = rng.choice((0.0, 0.1, 0.5))
            case "cold pages":
                owner.disk.cold_rate = rng.choice((0.0, 0.3, 1.0))
            case "cut":
                for wire in owner.wires:
                    wire.close()
            case "kill at upload":
                self._dies_at_upload = True
            case "kill at swap":
                self.dies_at_swap = True
            case "store slow":
                faults = [Fault(FaultKind.LATENCY, latency_ms=(10, rng.choice((100, 500))))]
                await self._for_a_while(faults, rng.uniform(0.5, 4.0))
            case "sweep":
                for machine in self.machines:
                    if machine.up and machine.node is not None:
                        for partition in machine.node.remote_log_manager._partitions.values():
                            partition.due.sweep_at_s = 0.0
            case _:
                raise AssertionError(kind)

    async def _for_a_while(self, faults: list[Fault], seconds: float) -> None:
        self.bucket.faults += faults
        await asyncio.sleep(seconds)
        self.bucket.faults = [fault for fault in self.bucket.faults if fault not in faults]

    def _rot(self, machine: Machine) -> None:
        """One bit of one segment changes on the disk."""
        paths = [path for path in machine.disk.segment_files("/data") if machine.disk.file_size(path)]
        if not paths:
            return
        path = self.rng.choice(paths)
        machine.rotten = True
        directory, _, name = path.rpartition("/")
        topic, _, index = directory.rpartition("/")[2].rpartition("-")
        for history in self.histories.values():
            if (history.topic, history.index) == (topic, int(index)) and not history.gone:
                base = int(name.partition(".")[0])
                before = history.rotten_from
                history.rotten_from = base if before is None else min(base, before)
                data = bytes(machine.disk._file(path).current)
                batches = [(at, header.size_bytes) for at, header in iter_headers(memoryview(data))]
                at, size = self.rng.choice(batches)
                if at + size > len(data) or size <= CRC_POSITION:
                    return  # what a crash has torn is rotten enough
                machine.disk.flip_bit(path, at + self.rng.randrange(CRC_POSITION, size), self.rng.randrange(8))
                self.trace("rot", path)

    async def _take_over(self, how: str) -> None:
        """Another machine takes the broker's place; the old one lives on, or is cut off, or is dead."""
        rng, old = self.rng, self.owner
        if self._moving or len(self.machines) > 4:
            return
        self._moving = True
        self.trace("moving", how)
        if how == "dead":
            old.crash("kill")
        elif how == "stopped":
            old.stop()
            await asyncio.sleep(rng.uniform(0.0, 1.0))
        elif how == "cut off" and old.store is not None:
            old.store.cut_off = True
        idle = [one for one in self.machines if one is not old and (one.process is None or one.process.dead)]
        if idle and rng.random() < 0.5:
            new = rng.choice(idle)
        else:
            new = Machine(self, "abcdefg"[len(self.machines)])
            self.machines.append(new)
        await self.bring_up(new)
        if how == "cut off" and old.store is not None:
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            old.store.cut_off = False
        if rng.random() < 0.5:
            await asyncio.sleep(rng.uniform(0.0, 2.0))

    async def bring_up(self, new: Machine) -> None:
        """Start a machine with take-over until it serves."""
        tries = 0
        while not new.up:
            if new.process is None or new.process.dead:
                tries += 1
                if tries > 40:
                    raise Violation("liveness", f"{new.name} cannot take over: {new.exit}")
                await asyncio.sleep(0.3)
                if new.process is None or new.process.dead:  # whoever supervises it may have been quicker
                    new.start(take_over=True)
            await asyncio.sleep(0.05)

    # --- the run ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Everything. Raises: whatever failed."""
        tasks: list[asyncio.Task[None]] = []

        async def guard(work: object) -> None:
            try:
                await work  # type: ignore[misc]
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - told to whoever runs the seed
                self.fail(error)

        def go(work: object) -> asyncio.Task[None]:
            task = self.loop.create_task(guard(work))
            tasks.append(task)
            return task

        self._go = go
        script = go(self._script(go))
        failed = go(self._failed.wait())
        await asyncio.wait([script, failed], return_when=asyncio.FIRST_COMPLETED)
        if self.failure is not None:
            raise self.failure

    async def _script(self, go: Callable[[object], asyncio.Task[None]]) -> None:
        self.owner.start()
        await self.until(lambda: self.owner.up, 60, "the first start")
        if self.script is not None:
            await self.script(self)
            return
        go(self._keep_running())
        go(self._look())
        administrator = Administrator(self, "admin")
        while not self.histories:
            try:
                await administrator.create_topic()
            except Unreachable:
                await asyncio.sleep(0.1)
        rng = self.rng
        for number in range(self.shape.producers):
            go(Producer(self, f"p{number}", idempotent=rng.random() < 0.6, acks=rng.choice((-1, -1, 1, 0))).run())
        for number in range(self.shape.consumers):
            go(Consumer(self, f"c{number}").run())
        for group_id in self.group_ids:
            for number in range(self.members):
                go(Member(self, f"{group_id}{number}", group_id).run())
        for number in range(self.assigned):
            go(AssignedMember(self, f"m{number}").run())
        if self.sharing:
            await sharing.begin(Actor(self, "share configs"))
        for number in range(self.sharing):
            go(sharing.Worker(self, f"s{number}").run())
        for number in range(self.transactional):
            name = f"x{number}"
            go(TransactionalProducer(self, name, rng.choice(("x", name)), second_protocol=rng.random() < 0.5).run())
            go(CommittedReader(self, f"r{number}").run())
        if self.compacting:
            go(KeyedWriter(self, "w0", transactional=False).run())
            go(KeyedWriter(self, "w1", transactional=self.transactional > 0).run())
            go(KeyedReader(self, "k0").run())
        go(administrator.run())
        trouble = go(self._make_trouble())
        await asyncio.sleep(self.shape.seconds)
        trouble.cancel()
        await asyncio.wait([trouble])
        self.calm()
        await self._settle()
        await self._read_all()
        await self._read_offsets()
        await self._read_shared()
        await self._read_committed()
        await self._read_keyed()
        await self.bucket_is_enough.prove()
        ending = rng.random()
        if ending < 0.3:
            self.owner.crash(
                "kill" if self.transactional and not self.internal_on_disk else rng.choice(("kill", "power"))
            )
            self.owner.start()
        elif ending < 0.6:
            # The bucket alone: an empty directory.
            self._moving = True
            self.owner.crash("kill")
            self.machines.append(Machine(self, "z"))
            await self.bring_up(self.machines[-1])
        elif ending < 0.8:
            await self.lose_entries_and_disk()
        else:
            return
        await self.until(lambda: self.owner.up, 60, "the last start")
        await self._read_all()
        await self._read_offsets()
        await self._read_shared()
        await self._read_committed()
        await self._read_keyed()

    async def lose_entries_and_disk(self) -> int:
        """The disk is lost, and with it the last entries of some manifests. Returns of how many.

        Nobody may give the offsets of the segments that those entries name to other records: such a partition is not led
        until the entries are back.
        """
        self._moving = True
        self.owner.crash("kill")
        hidden: dict[str, tuple[bytes, TimestampMs]] = {}
        for history in list(self.histories.values()):
            if not history.deleting:
                found = self.bucket.hide(self._entries_of_last_segment(history))
                hidden |= found
                if found:
                    self.headless.add((history.topic_id, history.index))
        self.trace("hidden", sorted(hidden))
        lost = len(self.headless)
        self.machines.append(Machine(self, "y"))
        await self.bring_up(self.machines[-1])
        await self.until(lambda: self.owner.up, 60, "the start without some entries")
        self.bucket.show(hidden)
        node = self.owner.node
        assert node is not None
        await self.until(lambda: not node.partitions.table.offline, 300, "partitions to be led whose entries are back")
        for history in list(self.histories.values()):
            log = node.logs.get(history.topic, history.index)
            if (history.topic_id, history.index) in self.headless and log is not None:
                tiered_end = int(self.one_writer.manifest(history.topic_id, history.index).tiered_end)
                self.acked_means_kept.restarted(history, int(log.log_end_offset), tiered_end, "moved")
        self.headless.clear()
        return lost

    def _entries_of_last_segment(self, history: PartitionHistory) -> list[str]:
        """Keys of the manifest's entries from the first on that names its last readable segment; none if a snapshot names it."""
        state = self.one_writer.manifest(history.topic_id, history.index)
        prefix = layout.manifest_prefix(TopicId(history.topic_id), history.index)
        if not state.finished or state.finished[-1].end_offset <= state.log_start_offset:
            return []
        last = segment_record_key(state.finished[-1].segment_id)
        snapshots = self.bucket.keys_from(layout.snapshot_prefix(prefix))
        keys = self.bucket.keys_from(layout.log_prefix(prefix))
        for at, key in enumerate(keys):
            named = layout.parse_numbered_key(key)
            data = self.bucket.peek(key)
            assert named is not None
            assert data is not None
            if any(record_key == last for record_key, _ in decode_entry(key, named.sequence, data).records):
                covered = [one for one in snapshots if one[-layout.SEQUENCE_DIGITS :] >= key[-layout.SEQUENCE_DIGITS :]]
                return [] if covered or at == 0 else keys[at:]
        return []

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.trace("calm")
        self._dies_at_upload = self.dies_at_swap = False
        self.bucket.faults.clear()
        self._pool_latency_s = (0.0001, 0.002)
        self.producing = False
        for machine in self.machines:
            machine._die_after = None
            machine.disk.capacity_bytes = 1 << 40
            machine.disk.short_write_rate = 0.0
            machine.disk.cold_rate = 0.0
            machine.disk._failing.clear()
            if machine.store is not None:
                machine.store.cut_off = False

    async def _settle(self) -> None:
        """Let the broker come up, and the tier have all that it should have."""
        if self._moving:
            await self.bring_up(self.owner)
            self._moving = False
        await self.until(lambda: self.owner.up and self._is_online(), 90, "a start without trouble")
        # Who the owner is may change meanwhile: a take-over that was under way comes to its end.
        await self.until(
            lambda: not any(one.up for one in self.machines if one is not self.owner), 60, "fenced brokers to end"
        )
        await self.until(self._is_stable, 60, "the last transactions to end", "INV-9")
        rotten = any(history.rotten_from is not None for history in self.histories.values())
        if not rotten:
            # A copy that met bytes that were not what they should be is tried again after five minutes.
            await self.until(self._is_tiered, 400, "the tier to catch up")

    def _is_online(self) -> bool:
        node = self.owner.node
        return node is not None and node.logs.offline_reason is None

    def _is_stable(self) -> bool:
        node = self.owner.node
        return (
            self.owner.up
            and node is not None
            and all(log.last_stable_offset >= log.high_watermark for log in node.logs.logs())
        )

    def _is_tiered(self) -> bool:
        node = self.owner.node
        if not self.owner.up or node is None:
            return False
        status = node.remote_log_manager.status()
        led = {(one.topic_id, int(one.partition)) for one in status}
        wanted = {key for key, history in self.histories.items() if not history.deleting}
        rolled_end = {
            (log.topic_id, log.partition): max((one.end_offset for one in log.segments() if not one.active), default=0)
            for log in node.logs.logs()
        }
        return wanted <= led and all(
            not one.enabled or (one.tiered_end >= rolled_end.get((one.topic_id, one.partition), 0) and not one.copying)
            for one in status
        )

    async def until(
        self, condition: Callable[[], bool], seconds: float, what: str, invariant: str = "liveness"
    ) -> None:
        """Raises: Violation of ``invariant`` if the time is up."""
        end_s = self.loop.time() + seconds
        while not condition():
            if self.loop.time() > end_s:
                raise Violation(invariant, f"waited {seconds:g} s in vain for {what}")
            await asyncio.sleep(0.2)

    async def _read_all(self) -> None:
        """Read every partition from its start to its end, and hold it against the truth."""
        reader = Consumer(self, "all")
        reader.bytes_choices = (2000, 100_000)
        for history in list(self.histories.values()):
            if history.deleting:
                continue
            for _ in range(40):
                try:
                    if await self._read_one(reader, history):
                        break
                except Unreachable:
                    pass
                await asyncio.sleep(0.5)
            else:
                raise Violation("liveness", f"{history.name} cannot be read to its end")
        self.trace("read all")

    async def _read_offsets(self) -> None:
        """A new member of each group gets its part in time, and reads what was committed."""
        for group_id in self.group_ids:
            member = Member(self, f"{group_id} all", group_id)
            for step in (member.join, member.read_offsets):
                for _ in range(20):
                    try:
                        if await step():
                            break
                    except Unreachable:
                        pass
                    await asyncio.sleep(0.5)
                else:
                    raise Violation("liveness", f"no new member of {group_id} can {step.__name__.replace('_', ' ')}")

    async def _read_shared(self) -> None:
        """New members of the group that the broker assigns get everything, and everything is delivered to share groups."""
        if self.assigned:
            await assigned.settle(self, lambda name: AssignedMember(self, name))
        if self.sharing:
            await sharing.drain(sharing.Worker(self, "last worker"))

    async def _read_committed(self) -> None:
        """Read everything at read_committed: every transaction is there or is not."""
        if not self.transactional:
            return
        reader = CommittedReader(self, "all committed")
        reader.bytes_choices = (2000, 100_000)
        for _ in range(20):
            try:
                seen = await reader.read_all()
            except Unreachable:
                seen = None
            if seen is not None:
                self.transactions.whole(seen)
                return
            await asyncio.sleep(0.5)
        raise Violation("liveness", "what is committed cannot be read to its end")

    async def _read_keyed(self) -> None:
        """The newest of every key is there, and stays when the cleaner has had its turns."""
        reader = KeyedReader(self, "all keyed")
        for _ in range(20):
            with contextlib.suppress(Unreachable):
                if await reader.read_all():
                    return
            await asyncio.sleep(0.5)
        raise Violation("INV-10", "the compacted topic cannot be read to its end")

    async def _read_one(self, reader: Consumer, history: PartitionHistory) -> bool:
        acked = history.log_start_acked
        start = await reader.list_offset(history, -2)
        if start is None or not reader.owns():
            return False
        if start < acked or (start > history.log_start_asked and not history.expires):
            raise Violation(
                "INV-4", f"{history.name} starts at {start}: {acked} was promised, {history.log_start_asked} asked"
            )
        offset, found = start, list[int]()
        known = list(history.bound.values())
        end_s = self.loop.time() + 100
        while self.loop.time() < end_s:
            result = await reader.fetch(history, offset, found)
            if history.deleting or history.rotten_from is not None:
                return True
            if result is None:
                return False
            ends, high_watermark, log_start, moved = result
            if moved is not None:
                return False
            if ends:
                offset = ends[-1]
            elif offset >= high_watermark:
                self.acked_means_kept.finished(history, known, found, log_start)
                return True
        return False


def _internal_topic_configs(topic: topics.InternalTopic, config: BrokerConfig, image: ClusterImage) -> dict[str, str]:
    """As ``topic_configs``, but the segments are as small as all others here, and too small for a setting."""
    return {"cleanup.policy": "compact", "remote.storage.enable": "false"}


def run_seed(
    seed: int,
    *,
    faults: tuple[str, ...] | None = None,
    keep: Callable[[str], None] = lambda _line: None,
    script: Callable[[World], Awaitable[None]] | None = None,
    topic_defaults: TopicConfig | None = None,
    new_level: int = 0,
) -> Outcome:
    """Run one seed to its end, whatever that is. ``keep`` is told every line of the trace. ``new_level``: of the cluster.

    With ``script`` nothing happens by chance once the first broker serves, but what it does.

    Raises: what is no violation, but a bug of the broker or of the simulation.
    """
    Wire._count = 0

    def make(loop: SimLoop) -> World:
        world = World(seed, loop, faults=faults, keep=keep)
        world.script = script
        world.new_level = new_level
        if topic_defaults is not None:
            world.topic_defaults = topic_defaults
        return world

    with mock.patch.object(topics, "topic_configs", _internal_topic_configs):
        world, violation, virtual_s = run_world(seed, make, World.run, stuck="liveness")
    tiered = sum(
        int(world.one_writer.manifest(history.topic_id, history.index).tiered_end)
        for history in world.histories.values()
    )
    return Outcome(
        seed,
        world.trace_hash,
        world.acks,
        world.reads,
        world.restarts,
        tiered,
        virtual_s,
        violation,
        tuple(world.lines),
    )
