"""One run: a cluster of three to five whole brokers, their network, disks, bucket and clients, and everything that goes wrong.

All of it follows from the seed: the shape of the run, every latency, every fault and its moment. ``run_seed`` gives the outcome;
the same seed gives the same trace, whose hash is a part of the outcome.

Every broker is a whole ``Node`` in a ``Process`` of the virtual loop. The bytes between brokers, and between clients and brokers,
go through ``network.py`` to the brokers' real connections and handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock
from uuid import UUID

from app.configs import TierCompression, TopicConfig
from app.core.errors import ErrorCode
from app.core.units import TopicId
from app.hot import manager, truncating
from app.hot.recovery import LoadedLog, load_log
from app.metadata.image.image import ClusterImage, PartitionImage
from app.metadata.image.records import LEVEL_MAX
from app.metadata.image.wal_ranges import PartitionDurability
from app.metadata.log import layout
from app.metadata.log.log_format import Entry
from app.replication.in_sync import InSync
from app.wire.apikeys import ApiKey
from app.wire.apis.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.cluster_simulation.bumping import BumpingProducer
from tests.cluster_simulation.checkers import Calm, Members, OneOrder, Prompt, Replication
from tests.cluster_simulation.clients import FOUND_BY_ITSELF, Administrator, Producer, Reader
from tests.cluster_simulation.conditional_faults import CONDITIONAL
from tests.cluster_simulation.coordinated import ACTORS, Coordinated
from tests.cluster_simulation.directed import DIRECTED
from tests.cluster_simulation.faults import FAULTS
from tests.cluster_simulation.isolation import ISOLATION
from tests.cluster_simulation.levels import Levels, programs
from tests.cluster_simulation.machine import ClusterMachine
from tests.cluster_simulation.object_faults import OBJECT_FAULTS
from tests.cluster_simulation.objects import SEEDS_FROM, Objects, ObjectShape, hurried, shaped
from tests.cluster_simulation.slow import SLOW
from tests.cluster_simulation.truth import ReplicatedHistory
from tests.sim.bucket import Bucket
from tests.sim.loop import SimLoop
from tests.sim.machine import Unreachable
from tests.sim.network import Network
from tests.sim.violation import Violation
from tests.sim.world import WorldOfBrokers, run_world
from tests.simulation.checkers import Bounded, BucketIsEnough, OneWriter
from tests.support.virtual_loop import VirtualClock

ALL_FAULTS: Final = FAULTS | DIRECTED | OBJECT_FAULTS | ISOLATION | SLOW | CONDITIONAL
LOOK_S = 0.05
TIERED_SHARE = 0.6
"""Of runs whose topics are tiered."""
AFTER_S = 6.0
"""After something has happened to a broker, it may be fenced for it."""
HEALED_S = 60.0
"""After the last fault, until every partition has its leader and all its replicas in sync."""
WRITTEN_S = 15.0
"""After that, until an acks=all write succeeds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    trace_hash: str
    acks: int
    reads: int
    leaders: int
    """Leaderships that began."""
    faults: frozenset[str]
    virtual_s: float
    violation: Violation | None
    lines: tuple[str, ...]
    """The end of the trace."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of run a seed stands for."""

    brokers: int
    seconds: float
    pause_s: float
    faults: tuple[str, ...]
    producers: int
    partitions: int
    factor: int
    min_in_sync: int
    disk: bool
    tiered: bool
    unclean: bool
    lag_ms: int
    anywhere: bool
    """Whether readers ask any replica."""
    actors: tuple[str, ...] = ()
    """Of ``ACTORS``: what coordinators are asked for, and whether programs are upgraded."""
    from_0: bool = False
    """The cluster begins as one broker of level 0."""
    prompt: bool = False
    """Nothing that disturbs a broker is met, so leaders that change are to be followed soon."""
    bumping: bool = False
    """Producers are as librdkafka's (``bumping.py``)."""
    pulses: bool = False
    """Brokers send pulses (ADR 0023, L6): the cluster begins at the newest level."""
    objects: ObjectShape | None = None
    """Topics of object durability; None if there are none."""
    holes: bool = False
    """Recovery takes each log for a compacted one, whose holes compaction or a loss of power may have made (ADR 0024, A6)."""

    @classmethod
    def of(cls, rng: random.Random, faults: Sequence[str] | None) -> Shape:
        brokers = rng.choice((3, 3, 3, 4, 5))
        chosen = tuple(faults) if faults is not None else tuple(rng.sample(sorted(FAULTS), rng.randint(1, 6)))
        return cls(
            brokers=brokers,
            seconds=rng.choice((5.0, 10.0, 15.0)),
            pause_s=rng.choice((0.5, 1.5, 3.0)),
            faults=chosen,
            producers=rng.randint(1, 3),
            partitions=rng.randint(1, 3),
            factor=rng.choice((2, 3, 3, 3)),
            min_in_sync=rng.choice((1, 2, 2)),
            disk=rng.random() < 0.4,
            tiered=rng.random() < TIERED_SHARE,
            unclean=rng.random() < 0.1,
            lag_ms=rng.choice((1000, 3000, 30_000)),
            anywhere=False,
        )


LOG_KEY: Final = b64encode(bytes(range(32))).decode()
"""Brokers of every other seed prove what they write into the cluster log (ADR 0036)."""


class World(WorldOfBrokers):
    """See the module."""

    found_by_itself = FOUND_BY_ITSELF

    def __init__(
        self,
        seed: int,
        loop: SimLoop,
        *,
        faults: Sequence[str] | None,
        shape: Mapping[str, Any],
        keep: Callable[[str], None],
    ) -> None:
        super().__init__(seed, loop, "cluster rngs", keep)
        self.rng = random.Random(f"cluster {seed}")
        self.shape = replace(Shape.of(self.rng, faults), **{"anywhere": seed % 4 == 3} | dict(shape))
        if faults is None and "actors" not in shape:
            self.shape = replace(self.shape, **actors_of(seed))
        if seed >= SEEDS_FROM or self.shape.objects is not None:
            self.shape = replace(shaped(seed, self.shape, faults), actors=without_upgrades(self.shape.actors))
        self.objects = Objects(self, self.shape.objects) if self.shape.objects is not None else None
        self.log_key = LOG_KEY if seed % 2 else None
        self.clock = VirtualClock(loop)
        self.bucket = Bucket(self.clock, self.new_rng())
        self.histories: dict[tuple[UUID, int], ReplicatedHistory] = {}
        self.starts: dict[UUID, int] = {}
        rng = self.rng
        self.filler_bytes = rng.choice((20, 200))
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
            message_timestamp_after_max_ms=2**62,  # clocks are hours apart
        )
        self.usual_pool_latency_s = self._pool_latency_s
        self.network = Network(loop, self.new_rng(), self.outside, self._machine_named)
        self.one_order = OneOrder(self)
        self.members = Members(self)
        self.calm_checker = Calm(self)
        self.replication = Replication(self, self.one_order)
        self.prompt = Prompt(self)
        self.one_writer = OneWriter(self)  # type: ignore[arg-type] # needs of a world what this one has
        self.bucket_is_enough = BucketIsEnough(self)  # type: ignore[arg-type]
        self.bounded = Bounded()
        self.bucket.watchers.append(self)
        self.machines = [ClusterMachine(self, node_id) for node_id in range(1, self.shape.brokers + 1)]
        for machine in self.machines:
            machine.clock.skew_ms = rng.choice((0, 0, -5000, 400, 3_600_000))
        self.levels = Levels(self)
        self.coordinated = Coordinated(self, self.shape.actors)
        self.transactions = self.coordinated.transactions
        self.committed_offsets = self.coordinated.committed_offsets
        self.one_owner = self.coordinated.one_owner
        self.shared_once = self.coordinated.shared_once
        self.codec = 0
        self.administrator = Administrator(self, "admin")
        self.producing = True
        self.acks = self.reads = self.leaders = 0
        self.faults_met: set[str] = set()
        self.scenario_begun = self.scenario_over = False
        """Of a run with a scenario of ``isolation.py`` or ``slow.py``."""
        self._disturbed: dict[str, float] = {}
        self.script: Callable[[World], Coroutine[Any, Any, None]] | None = None
        """What happens instead of the usual run."""
        self._restart_s: dict[str, float] = {}
        self._producer_ids: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._troubles: list[asyncio.Task[None]] = []
        self._topics = 0

    # --- small things -------------------------------------------------------------------------------------------------

    def trace(self, *parts: object) -> None:
        super().trace(*parts)
        if parts[0] == "leads":
            self.leaders += 1

    def machine(self, node_id: int) -> ClusterMachine:
        return self.machines[node_id - 1]

    def _machine_named(self, name: str) -> ClusterMachine | None:
        return next((one for one in self.machines if one.name == name), None)

    # --- the truth ----------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> ClusterImage:
        """What the cluster log durably says."""
        return self.one_order.newest

    def partition_image(self, history: ReplicatedHistory) -> PartitionImage | None:
        topic = self.newest.topics_by_id.get(TopicId(history.topic_id))
        return topic.partitions[history.index] if topic is not None else None

    def broker_epochs(self) -> dict[int, int]:
        return {int(broker_id): one.broker_epoch for broker_id, one in self.newest.brokers.items()}

    def all_histories(self) -> list[ReplicatedHistory]:
        """Those of internal topics too."""
        return [*self.histories.values(), *self.coordinated.internal.values()]

    def any_history(self) -> ReplicatedHistory | None:
        alive = [one for one in self.histories.values() if not one.deleting]
        return self.rng.choice(alive) if alive else None

    def know_topic(self, name: str, topic_id: UUID, partitions: int, *, disk: bool, unclean: bool) -> None:
        for index in range(partitions):
            history = self.histories[topic_id, index] = ReplicatedHistory(name, topic_id, index, disk, False)
            history.unclean = unclean
            image = self.partition_image(history)
            if image is not None:
                history.replicas = tuple(int(one) for one in image.replicas)
                history.note_image(image, self.broker_epochs())

    def deleting(self, name: str) -> None:
        for history in self.histories.values():
            if history.topic == name:
                history.deleting = True

    def producer_id_given(self, producer_id: int) -> None:
        if producer_id in self._producer_ids:
            raise Violation("INV-13", f"producer id {producer_id} was given twice")
        self._producer_ids.add(producer_id)

    def is_deleted_prefix(self, prefix: str) -> bool:
        return any(
            history.deleting and layout.manifest_prefix(history.topic_id, history.index) == prefix  # type: ignore[arg-type]
            for history in self.histories.values()
        )

    def stored_end(self, machine: ClusterMachine, history: ReplicatedHistory) -> int | None:
        """What a replica has stored, dead or alive; None if that cannot be told now."""
        node = machine.node
        if machine.alive and node is not None and node.load_report is not None:
            log = node.logs.get(history.topic, history.index)
            if log is not None and log.topic_id == history.topic_id:
                if log.offline_error is not None:
                    return None
                # By its setting a record has to be synced by now. What was committed before the setting changed need not be: the
                # rule of before counts until the switch (J42).
                newest = self.partition_image(history)
                changes = newest is not None and newest.durability is PartitionDurability.TO_OBJECT
                return int(log.log_end_offset) if changes and not self.shape.disk else machine.stored_end_of(log)
        return machine.ends.get((history.topic_id, history.index))

    # --- watching the bucket ------------------------------------------------------------------------------------------

    def stored(self, key: str, data: bytes, before: bytes | None) -> None:
        with self.judging():
            self.one_writer.stored(key, data, before)
            changed = self.one_order.stored(key, data)
            if changed is not None:
                self._changed(*changed)
            self.bucket_is_enough.stored(key, data, before)
            if self.objects is not None:
                self.objects.logs.stored(key, data)

    def removed(self, key: str, data: bytes) -> None:
        with self.judging():
            self.one_writer.removed(key, data)
            self.bucket_is_enough.removed(key, data)
            if self.objects is not None:
                self.objects.logs.removed(key)

    def _changed(self, before: ClusterImage, image: ClusterImage, entry: Entry) -> None:
        """An entry of the cluster log is durable."""
        self.calm_checker.entry(is_seal=entry.is_seal)
        self.levels.entry(entry.records, before, image)
        registered: set[int] = set()
        if before.brokers is not image.brokers:
            for machine in self.machines:
                if machine.node is not None and machine.node.claimed:
                    incarnation = machine.node.membership.view.identity.incarnation
                    self.starts.setdefault(incarnation, machine.starts)
            for broker_id, new in image.brokers.items():
                old = before.brokers.get(broker_id)
                if old is not None and old is not new:
                    if old.broker_epoch != new.broker_epoch:
                        registered.add(int(broker_id))
                    self.members.changed(old, new)
                    self.calm_checker.changed(old, new)
        epochs = self.broker_epochs()
        self.coordinated.changed(before, image, epochs)
        for history in self.histories.values():
            topic = image.topics_by_id.get(TopicId(history.topic_id))
            old_topic = before.topics_by_id.get(TopicId(history.topic_id))
            if topic is None or (topic is old_topic and not registered):
                continue
            partition = topic.partitions[history.index]
            if old_topic is not None:
                before_it = old_topic.partitions[history.index]
                self.replication.entered(self, history, partition, before_it, frozenset(registered))
            if topic is old_topic:
                continue
            self.trace("image", history.name, *partition[1:])
            excused = history.excused
            history.note_image(partition, epochs)
            self.coordinated.noticed(history, excused=excused)

    # --- trouble ------------------------------------------------------------------------------------------------------

    def disturb(self, machines: Iterable[ClusterMachine], seconds: float) -> None:
        """Something happens to these machines, for so long."""
        for machine in machines:
            until_s = self.loop.time() + seconds
            self._disturbed[machine.name] = max(until_s, self._disturbed.get(machine.name, 0.0))

    def was_disturbed(self, machine: ClusterMachine) -> bool:
        return not machine.up or self.loop.time() < self._disturbed.get(machine.name, 0.0) + AFTER_S

    def crash(self, machine: ClusterMachine, how: str) -> None:
        if machine.alive:
            if machine.paused:
                return
            machine.crash(how)
            self.crashed(machine, how)

    def crash_within(self, machine: ClusterMachine, changes: int, how: str) -> None:
        if machine.alive:
            machine.crash_within(changes, how)

    def crashed(self, machine: ClusterMachine, how: str) -> None:
        """A machine went down: somebody will start it again."""
        self.disturb([machine], 0.0)
        if how == "power":
            self._damaged(machine, [one for one in self.all_histories() if not one.disk])
        self._restart_s[machine.name] = self.loop.time() + self.rng.choice((0.05, 0.5, 2.0, 5.0))

    def delay_start(self, machine: ClusterMachine, seconds: float) -> None:
        """A machine that is down is not started again for so long."""
        self._restart_s[machine.name] = self.loop.time() + seconds

    def lose_disk(self, machine: ClusterMachine) -> None:
        if machine.paused:
            return
        if machine.alive:
            machine.crash("kill")
            self.crashed(machine, "kill")
        machine.lose_disk()
        self._damaged(machine, self.all_histories())

    def _damaged(self, machine: ClusterMachine, histories: Sequence[ReplicatedHistory]) -> None:
        """What this machine had stored of these partitions is lost."""
        registered = self.newest.brokers.get(machine.node_id)  # type: ignore[call-overload]
        for history in histories:
            excused = history.excused
            image = self.partition_image(history)
            history.note_damage(
                machine.node_id,
                registered.broker_epoch if registered is not None else -1,
                int(image.leader_epoch) if image is not None else -1,
            )
            self.coordinated.noticed(history, excused=excused)

    async def _keep_running(self) -> None:
        """Whoever supervises brokers: start those again that are down."""
        while True:
            await asyncio.sleep(0.1)
            for machine in self.machines:
                if machine.up and machine.node is not None and machine.node.logs.offline_reason is not None:
                    raise Violation("liveness", f"offline without need: {machine.node.logs.offline_reason}")
                if self.objects is not None and self.objects.to_zero:
                    continue
                if not machine.alive and self.loop.time() >= self._restart_s.get(machine.name, 0.0):
                    self.disturb([machine], 2.0)
                    self._restart_s[machine.name] = self.loop.time() + 0.5
                    machine.start()

    async def _make_trouble(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.3, 1.7) * self.shape.pause_s)
            kind = self.rng.choice(self.shape.faults)
            self.trace("fault", kind)
            self.faults_met.add(kind)
            self._troubles = [one for one in self._troubles if not one.done()]
            if len(self._troubles) < 6:
                self._troubles.append(self.go(ALL_FAULTS[kind](self)))

    async def calm(self) -> None:
        """No more trouble."""
        self.trace("calm")
        for task in self._troubles:
            task.cancel()
        if self._troubles:
            await asyncio.wait(self._troubles)
        self.bucket.faults = []
        self.network.heal_all()
        for machine in self.machines:
            machine._die_after = None
            machine.cut_bucket(False)
            self._restart_s.pop(machine.name, None)
        self.disturb(self.machines, 8.0)
        self.producing = False

    # --- administration -----------------------------------------------------------------------------------------------

    async def topic_comes(self, *, first: bool = False) -> None:
        self._topics += 1
        shape = self.shape
        name = f"{'t' if first else 'x'}{self._topics}"
        configs = {
            "min.insync.replicas": str(shape.min_in_sync),
            "firn.durability": "disk" if shape.disk else "memory",
            "remote.storage.enable": "true" if shape.tiered else "false",
        }
        if self.objects is not None:
            configs.update(self.objects.topic_configs(name))
        if shape.unclean:
            configs["unclean.leader.election.enable"] = "true"
        for _ in range(30):
            with contextlib.suppress(Unreachable):
                factor = min(shape.factor, shape.brokers, max(1, len(self.newest.brokers)))
                made = await self.administrator.create_topic(
                    name,
                    shape.partitions if first else 1,
                    factor,
                    configs,
                    disk=shape.disk,
                    unclean=shape.unclean,
                    once=not first,
                )
                if made or not first:
                    return
            await asyncio.sleep(0.2)

    async def elect(self, history: ReplicatedHistory, *, unclean: bool) -> bool:
        """Whether there was an answer."""
        request = ElectLeadersRequest(
            election_type=int(unclean),
            topic_partitions=[TopicPartitions(topic=history.topic, partitions=[history.index])],
            timeout_ms=3000,
        )
        with contextlib.suppress(Unreachable):
            answer = await self.administrator.ask_any(ApiKey.ELECT_LEADERS, request)
            self.trace("elect", history.name, unclean, ErrorCode(answer.error_code).name)
            return True
        return False

    # --- the run ------------------------------------------------------------------------------------------------------

    def go(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def guard() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - told to whoever runs the seed
                self.fail(error)

        task = self.loop.create_task(guard())
        self._tasks.append(task)
        return task

    async def run(self) -> None:
        """Everything. Raises: whatever failed."""
        script = self.go(self._script() if self.script is None else self.script(self))
        failed = self.go(self._failed_set())
        await asyncio.wait([script, failed], return_when=asyncio.FIRST_COMPLETED)
        if self.failure is not None:
            raise self.failure

    async def _failed_set(self) -> None:
        await self._failed.wait()

    async def _script(self) -> None:
        shape = self.shape
        if shape.from_0:
            self.machines[0].program = self.rng.choice((0, LEVEL_MAX))
        self.machines[0].start()
        await self.until(lambda: self.machines[0].up, 60, "the first start")
        self.go(self._keep_running())
        self.go(self._look())
        if not shape.from_0:
            await self.until(self._all_unfenced, 60, "all brokers to join")
        await self.topic_comes(first=True)
        for _ in range(shape.objects.topics if shape.objects is not None else 0):
            await self.topic_comes(first=True)
        for number in range(shape.producers):
            idempotent, acks = self.rng.choice(((True, -1), (True, -1), (False, -1), (False, 1)))
            name = f"p{number}"
            if shape.bumping:
                self.go(BumpingProducer(self, name).run())
            else:
                self.go(Producer(self, name, idempotent=idempotent, acks=acks).run())
        for number in range(2):
            self.go(Reader(self, f"r{number}", anywhere=shape.anywhere and number > 0).run())
        if shape.from_0:
            await self.levels.rise_from_0()
            await self.levels.spread()
        await self.coordinated.begin()
        upgrade = self.go(self.levels.upgrade()) if "upgrade" in shape.actors else None
        trouble = self.go(self._make_trouble())
        end_s = self.loop.time() + shape.seconds
        while self.loop.time() < end_s and not self.scenario_over:
            await asyncio.sleep(min(1.0, end_s - self.loop.time()))
        for task in (trouble, upgrade):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await self.calm()
        await self._heal()
        await self._write_all()
        await self._read_all()
        if self.objects is not None and self.objects.shape.all_lost:
            await self.objects.lose_all()
            await self._heal()
            await self._write_all()
            await self._read_all()
        await self.coordinated.finish()
        if upgrade is not None:
            await self.levels.finish()
        await self.bucket_is_enough.prove()

    async def _look(self) -> None:
        turns = 0
        while True:
            await asyncio.sleep(LOOK_S)
            turns += 1
            for machine in self.machines:
                node = machine.node
                if node is None or not machine.alive or machine.paused:
                    continue
                if node.load_report is not None and node.claimed:
                    self.one_order.look(machine)
                    self.replication.look(machine)
                    if self.shape.prompt and self.producing:
                        self.prompt.look(machine)
                if machine.up and turns % 10 == 0:
                    self.bounded.look(machine)  # type: ignore[arg-type] # as a machine of the other simulation

    def _all_unfenced(self) -> bool:
        brokers = self.newest.brokers
        return len(brokers) == len(self.machines) and all(
            not one.fenced and not one.stopping for one in brokers.values()
        )

    # --- afterwards ---------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], seconds: float, what: str, invariant: str = "alive") -> None:
        """Raises: Violation of ``invariant`` if the time is up."""
        end_s = self.loop.time() + seconds
        while not condition():
            if self.loop.time() > end_s:
                raise Violation(invariant, f"waited {seconds:g} s in vain for {what}")
            await asyncio.sleep(0.1)

    async def _heal(self) -> None:
        """Everything works again within a stated time."""
        await self.until(lambda: all(one.up for one in self.machines), HEALED_S, "all brokers to serve")
        await self.until(self._all_unfenced, HEALED_S, "all brokers to be unfenced")
        self.go(self._elect_where_all_is_lost())
        await self.until(self._all_in_sync, HEALED_S, "every partition to have a leader and all replicas in sync")

    async def _elect_where_all_is_lost(self) -> None:
        """Nobody has all records: an operator says that any may lead, until somebody does."""
        while not self._all_in_sync():
            for history in self.all_histories():
                image = self.partition_image(history)
                if (
                    image is not None
                    and not history.by_log
                    and not (image.isr or image.eligible or image.last_known_eligible)
                ):
                    await self.elect(history, unclean=True)
            await asyncio.sleep(1.0)

    def _all_in_sync(self) -> bool:
        for history in self.all_histories():
            image = self.partition_image(history)
            if history.deleting or image is None:
                continue
            missing = set(image.replicas) - set(image.isr)
            if image.leader < 0 or missing or image.adding or image.removing:
                return False
        return True

    def _states(self) -> list[object]:
        return [
            (history.name, self.partition_image(history)) for history in self.histories.values() if not history.deleting
        ]

    async def _write_all(self) -> None:
        producer = Producer(self, "last", idempotent=True, acks=-1)
        for history in list(self.histories.values()):
            if history.deleting:
                continue
            end_s = self.loop.time() + WRITTEN_S
            while True:
                with contextlib.suppress(Unreachable):
                    if await producer.produce(history):
                        break
                if self.loop.time() > end_s:
                    raise Violation("alive", f"{history.name} takes no acks=all write after everything has healed")
                await asyncio.sleep(0.1)

    async def _read_all(self) -> None:
        reader = Reader(self, "all")
        for history in list(self.histories.values()):
            if history.deleting:
                continue
            for _ in range(40):
                with contextlib.suppress(Unreachable):
                    if await reader.read_all(history):
                        break
                await asyncio.sleep(0.5)
            else:
                raise Violation("alive", f"{history.name} cannot be read to its end")
        self.trace("read all")


def without_upgrades(actors: tuple[str, ...]) -> tuple[str, ...]:
    """Topics of object durability need a level that is as high as it gets."""
    return tuple(one for one in actors if one != "upgrade")


def actors_of(seed: int) -> dict[str, Any]:
    """What the shape of a seed has beside plain clients: one of each in the first seeds, nothing in every other run after them."""
    if seed <= len(ACTORS):
        return {"actors": ACTORS[seed : seed + 1], "from_0": seed == len(ACTORS)}
    rng = random.Random(f"cluster actors {seed}")
    actors = tuple(rng.sample(ACTORS, rng.choice((0, 0, 0, 1, 1, 2))))
    return {"actors": actors, "from_0": rng.random() < 0.15}


def _chance(seed: int, shape: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    if "keyed" not in shape.get("actors", ()):
        return nullcontext()
    from tests.cluster_simulation.keyed import chance  # it brings the framework of HTTP, which no other run needs

    return chance(seed)


@contextlib.contextmanager
def _holes(shape: Mapping[str, Any]) -> Iterator[None]:
    if not shape.get("holes"):
        yield
        return

    def load(*given: Any, **named: Any) -> LoadedLog:
        return load_log(*given, **named | {"cleaned": True})

    with mock.patch.object(manager, "load_log", load), mock.patch.object(truncating, "load_log", load):
        yield


def run_seed(
    seed: int,
    *,
    faults: Sequence[str] | None = None,
    shape: Mapping[str, Any] | None = None,
    keep: Callable[[str], None] = lambda _line: None,
    script: Callable[[World], Coroutine[Any, Any, None]] | None = None,
) -> Outcome:
    """Run one seed to its end, whatever that is. ``keep`` is told every line of the trace. ``faults``: what the run may meet, more
    often what is named more often; with None the seed says it, as it says what is not in ``shape``. With ``script`` nothing happens
    but what it does.

    Raises: what is no violation, but a bug of the broker or of the simulation.
    """
    defaults = InSync.__init__.__kwdefaults__

    def make(loop: SimLoop) -> World:
        world = World(seed, loop, faults=faults, shape=shape or {}, keep=keep)
        defaults["lag_ms_max"] = world.shape.lag_ms
        world.script = script
        return world

    hurry = hurried(seed) if seed >= SEEDS_FROM or (shape or {}).get("objects") else nullcontext()
    with programs(), hurry, _chance(seed, shape or {}), _holes(shape or {}), mock.patch.dict(defaults):
        world, violation, virtual_s = run_world(seed, make, World.run, stuck="alive")
    return Outcome(
        seed,
        world.trace_hash,
        world.acks,
        world.reads,
        world.leaders,
        frozenset(world.faults_met),
        virtual_s,
        violation,
        tuple(world.lines),
    )
