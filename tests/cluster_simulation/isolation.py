"""What happens to brokers that hear less than all, and what has to follow (ADR 0040). Each run meets one scenario, once.

Probes are clients that stay where they are answered. They look for their coordinator or leader at the broker that answered last,
and go on to the next one only when it refuses. So they are lost at a broker that is cut off from all others and does not say so.
Listeners are clients that never go on by themselves. They know the brokers of the last Metadata, as librdkafka does, and are
connected to those that they were sent to. So they are lost at an isolated broker that names no other one.
Of readers of the kind ``LastAsked`` each asks the broker that it has sent to last, and believes no older leader epoch.
Four checkers judge:

- **gets on**: each probe is served by a broker that is not cut off, in time from the beginning of the fault.
- **not isolated**: a broker that has one of the three signs of life is never isolated.
- **old image**: a broker that was isolated serves only by an image that is as new as what it has heard.
- **one list**: while a broker is cut off, a listener that has forgotten it is not told of it again. Each time librdkafka ends a
  broker and begins it anew. Where two lists take turns it does so a hundred times a second, and may stand still for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from app.coordinator.topics import CONSUMER_OFFSETS
from app.core.errors import ErrorCode
from app.objectstore.memory import Fault, FaultKind
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from app.wire.apis.elect_leaders import ElectLeadersRequest
from app.wire.apis.elect_leaders import TopicPartitions as ElectedPartitions
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from app.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.cluster_simulation.clients import Client
from tests.cluster_simulation.machine import ClusterMachine
from tests.cluster_simulation.truth import ReplicatedHistory
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World

GETS_ON: Final = "gets on"
NOT_ISOLATED: Final = "not isolated"
OLD_IMAGE: Final = "old image"
ONE_LIST: Final = "one list"
"""Names of the checkers."""

GETS_ON_S: Final = 15.0
OF_TWO_S: Final = 25.0
"""Where the controller of two brokers is cut off."""
FAULT_S: Final = 20.0
HEALED_S: Final = 10.0
LOOK_S: Final = 0.05
PROBE_S: Final = 0.1
STEADY_S: Final = 60.0
"""At most, until everything is as it should be before the fault."""


# --- probes -----------------------------------------------------------------------------------------------------------


class Probe:
    """A client that stays at the broker that answers it."""

    def __init__(self, world: World, name: str, at: int) -> None:
        self.world, self.name = world, name
        self.client = Client(world, name)
        self.at = at
        """Where it looks for what it needs."""
        self.served_by = -1
        self.served_s = -1.0
        """When the last request was sent that was served."""

    async def run(self) -> None:
        while True:
            asked_s = self.world.loop.time()
            served_by = None
            with suppress(Unreachable):
                served_by = await self.turn()
            if served_by is None:
                self.at = self.at % len(self.world.machines) + 1
            else:
                self.served_by, self.served_s = served_by, asked_s
            await asyncio.sleep(PROBE_S)

    async def turn(self) -> int | None:
        """Returns: who served it; None if it was refused. Raises: Unreachable."""
        raise NotImplementedError


class GroupProbe(Probe):
    """It asks its coordinator for what its group has committed."""

    async def turn(self) -> int | None:
        found = await self.client.ask(
            self.at, ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key_type=0, coordinator_keys=[self.name]), 4
        )
        coordinator = found.coordinators[0]
        if coordinator.error_code:
            return None
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.name)])
        answer = await self.client.ask(coordinator.node_id, ApiKey.OFFSET_FETCH, request, 8)
        return None if answer.groups[0].error_code else int(coordinator.node_id)


class ReaderProbe(Probe):
    """It asks the leader of a partition for its end."""

    def __init__(self, world: World, name: str, at: int, history: ReplicatedHistory) -> None:
        super().__init__(world, name, at)
        self.history = history

    def follow(self, answer: MetadataResponse) -> None:
        """Brokers and leaders were told."""

    def sent_to(self, leader: int) -> None:
        """A leader is asked now."""

    def _partition(self, answer: MetadataResponse) -> MetadataResponsePartition | None:
        return next(
            (
                one
                for topic in answer.topics
                for one in topic.partitions
                if one.partition_index == self.history.index and not one.error_code
            ),
            None,
        )

    def led_by(self, answer: MetadataResponse) -> int:
        """The leader to ask; -1 if none is known."""
        told = self._partition(answer)
        return -1 if told is None else int(told.leader_id)

    async def turn(self) -> int | None:
        history = self.history
        request = MetadataRequest(topics=[MetadataRequestTopic(name=history.topic)], allow_auto_topic_creation=False)
        answer = await self.client.ask(self.at, ApiKey.METADATA, request, 12)
        self.follow(answer)
        leader = self.led_by(answer)
        if leader < 0:
            return None
        self.sent_to(leader)
        topics = [ListOffsetsTopic(name=history.topic, partitions=[ListOffsetsPartition(history.index, timestamp=-1)])]
        offsets = await self.client.ask(
            leader, ApiKey.LIST_OFFSETS, ListOffsetsRequest(replica_id=-1, topics=topics), 7
        )
        code = offsets.topics[0].partitions[0].error_code
        return leader if code in (ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE) else None


class Listener(ReaderProbe):
    """A reader that asks for the brokers and its leader at one of the brokers that it is connected to, at random."""

    def __init__(self, world: World, name: str, at: int, history: ReplicatedHistory) -> None:
        super().__init__(world, name, at, history)
        self.rng = world.new_rng()
        self.known: set[int] = set()
        """The brokers of the last list."""
        self.connected = {at}
        self.forgotten: set[int] = set()
        """Brokers that lists have lacked since the beginning of the fault."""
        self.told_again: set[int] = set()
        """Those among them that a later list had."""

    async def run(self) -> None:
        while True:
            asked_s = self.world.loop.time()
            self.at = self.rng.choice(sorted(self.connected))
            try:
                served_by = await self.turn()
            except Unreachable:
                self.connected.discard(self.at)
                self.connected = self.connected or {self.rng.choice(self.world.machines).node_id}
            else:
                if served_by is not None:
                    self.served_by, self.served_s = served_by, asked_s
            await asyncio.sleep(PROBE_S)

    def follow(self, answer: MetadataResponse) -> None:
        listed = {int(one.node_id) for one in answer.brokers}
        self.forgotten |= self.known - listed
        self.told_again |= self.forgotten & (listed - self.known)
        self.known = listed
        self.connected = self.connected & listed or listed

    def sent_to(self, leader: int) -> None:
        if leader in self.known:
            self.connected.add(leader)


class LastAsked(ReaderProbe):
    """A reader that asks the broker of its last request for Metadata, and ignores leaders of an older epoch than it knows.

    librdkafka does both (2.16: the least idle broker, and the cached epoch of each partition).
    """

    def __init__(self, world: World, name: str, at: int, history: ReplicatedHistory) -> None:
        super().__init__(world, name, at, history)
        self.rng = world.new_rng()
        self.leader = self.epoch = -1

    async def run(self) -> None:
        while True:
            asked_s = self.world.loop.time()
            try:
                served_by = await self.turn()
            except Unreachable:
                self.at = self.rng.choice(self.world.machines).node_id
            else:
                if served_by is not None:
                    self.served_by, self.served_s = served_by, asked_s
            await asyncio.sleep(PROBE_S)

    def led_by(self, answer: MetadataResponse) -> int:
        told = self._partition(answer)
        if told is not None and (told.leader_epoch < 0 or told.leader_epoch >= self.epoch):
            self.leader, self.epoch = int(told.leader_id), told.leader_epoch
        return self.leader

    def sent_to(self, leader: int) -> None:
        self.at = leader


# --- judging ----------------------------------------------------------------------------------------------------------


def _isolated(machine: ClusterMachine) -> bool:
    node = machine.node
    return machine.up and node is not None and node.partitions.table.isolated


async def _watch_nobody_isolated(world: World, machines: Collection[ClusterMachine]) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        for machine in machines:
            if _isolated(machine):
                raise Violation(NOT_ISOLATED, f"{machine.name} is isolated, although it has a sign of life")


@asynccontextmanager
async def _nobody_isolated(world: World, machines: Collection[ClusterMachine]) -> AsyncIterator[None]:
    watching = world.go(_watch_nobody_isolated(world, machines))
    try:
        yield
    finally:
        watching.cancel()


async def _steady(world: World) -> tuple[list[Probe], list[ReplicatedHistory]]:
    """Everything is led and in sync; each probe is served. Returns: the probes, and what they are about."""
    groups = [GroupProbe(world, f"group {number}", 1) for number in range(3)]
    histories = [one for one in world.histories.values() if not one.deleting and one.topic.startswith("t")]
    readers = [ReaderProbe(world, f"reader of {one.name}", 1, one) for one in histories]
    listeners = [Listener(world, f"listener of {one.name}", 1, one) for one in histories]
    probes: list[Probe] = [*groups, *readers, *listeners]
    for probe in probes:
        world.go(probe.run())

    def is_steady() -> bool:
        topic = world.newest.topic(CONSUMER_OFFSETS.name)
        return (
            topic is not None
            and all(len(one.isr) == len(one.replicas) == min(3, len(world.machines)) for one in topic.partitions)
            and world._all_in_sync()
            and all(probe.served_by > 0 for probe in probes)
        )

    await world.until(is_steady, STEADY_S, "everything to be steady before the fault")
    return probes, histories


def _settle(probes: Sequence[Probe], at: int) -> None:
    """All of them look at one broker from now on, as long as it answers."""
    for probe in probes:
        probe.at = at
        if isinstance(probe, Listener):
            probe.connected = {at}
            probe.forgotten.clear()
            probe.told_again.clear()


async def _get_on(
    world: World,
    probes: Sequence[Probe],
    cut: Collection[ClusterMachine],
    began_s: float,
    within_s: float = GETS_ON_S,
) -> None:
    away = {one.node_id for one in cut}

    def have_got_on() -> bool:
        return all(probe.served_by not in away and probe.served_s > began_s for probe in probes)

    left_s = began_s + within_s - world.loop.time()
    lost = lambda: [probe.name for probe in probes if probe.served_by in away or probe.served_s <= began_s]  # noqa: E731
    try:
        await world.until(have_got_on, left_s, "")
    except Violation:
        raise Violation(GETS_ON, f"{lost()} did not get on within {within_s:g} s") from None
    for probe in probes:
        if isinstance(probe, Listener) and probe.told_again & away:
            raise Violation(
                ONE_LIST, f"{probe.name} forgot brokers {probe.told_again & away}, and was told of them again"
            )


@asynccontextmanager
async def _cut(
    world: World, apart: Sequence[ClusterMachine], others: Sequence[ClusterMachine], *, bucket: bool
) -> AsyncIterator[None]:
    """Between ``apart`` and ``others`` nothing passes; with ``bucket`` nor between ``apart`` and the bucket."""
    ways = [way for one in apart for two in others for way in ((one.name, two.name), (two.name, one.name))]
    world.disturb(world.machines, FAULT_S + HEALED_S)
    world.trace("cut off", [one.name for one in apart], bucket)
    world.network.cut(ways)
    for one in apart:
        one.cut_bucket(bucket)
    try:
        yield
    finally:
        world.network.heal(ways)
        for one in apart:
            one.cut_bucket(False)


async def _elect(world: World, history: ReplicatedHistory, wanted: ClusterMachine, *, at: ClusterMachine) -> None:
    """Ask a broker to make another one the leader of a partition."""
    image = world.partition_image(history)
    assert image is not None
    replicas = [wanted.node_id, *(int(one) for one in image.replicas if one != wanted.node_id)]
    preferred = ReassignableTopic(history.topic, [ReassignablePartition(history.index, replicas)])
    elected = [ElectedPartitions(topic=history.topic, partitions=[history.index])]
    with suppress(Unreachable):
        request = AlterPartitionReassignmentsRequest(timeout_ms=3000, topics=[preferred])
        await world.administrator.ask(at.node_id, ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
        await world.administrator.ask(
            at.node_id, ApiKey.ELECT_LEADERS, ElectLeadersRequest(election_type=0, topic_partitions=elected)
        )


def _others(world: World, *apart: ClusterMachine) -> list[ClusterMachine]:
    return [one for one in world.machines if one not in apart]


def _controller(world: World) -> ClusterMachine:
    return world.machine(int(world.newest.controller.broker_id))


def _any_but_controller(world: World) -> ClusterMachine:
    return world.rng.choice(_others(world, _controller(world)))


# --- scenarios --------------------------------------------------------------------------------------------------------


async def cut_off(world: World) -> None:
    """One broker is cut off from all others and from the bucket, and clients reach it."""
    probes, _ = await _steady(world)
    victim = world.rng.choice(world.machines)
    _settle(probes, victim.node_id)
    began_s = world.loop.time()
    async with (
        _cut(world, [victim], _others(world, victim), bucket=True),
        _nobody_isolated(world, _others(world, victim)),
    ):
        await _get_on(world, probes, [victim], began_s)
        await asyncio.sleep(max(0.0, began_s + FAULT_S - world.loop.time()))
    await world.until(lambda: not _isolated(victim), HEALED_S, f"{victim.name} to serve again", GETS_ON)


async def cut_off_as_it_is_elected(world: World) -> None:
    """One broker is cut off, and then elected by a controller that has not missed it yet. Clients hear that from others, ask it,
    and ask it for its leader."""
    probes, histories = await _steady(world)
    victim, controller = _any_but_controller(world), _controller(world)
    asking = [LastAsked(world, f"client of {one.name}", controller.node_id, one) for one in histories]
    async with (
        _cut(world, [victim], _others(world, victim), bucket=True),
        _nobody_isolated(world, _others(world, victim)),
    ):
        began_s = world.loop.time()
        for history in histories:
            await _elect(world, history, victim, at=controller)
        for probe in asking:
            image = world.partition_image(probe.history)
            assert image is not None
            probe.at, probe.leader, probe.epoch = victim.node_id, int(image.leader), image.leader_epoch
            world.go(probe.run())
        await _get_on(world, [*probes, *asking], [victim], began_s)
        await asyncio.sleep(max(0.0, began_s + FAULT_S - world.loop.time()))
    await world.until(lambda: not _isolated(victim), HEALED_S, f"{victim.name} to serve again", GETS_ON)


async def controller_of_two_cut_off(world: World) -> None:
    """Of two brokers the controller is cut off, and clients reach it. The other one lists it until it has taken over."""
    probes, _ = await _steady(world)
    victim = _controller(world)
    _settle(probes, victim.node_id)
    began_s = world.loop.time()
    async with _cut(world, [victim], _others(world, victim), bucket=True):
        await _get_on(world, probes, [victim], began_s, OF_TWO_S)
    await world.until(lambda: not _isolated(victim), HEALED_S, f"{victim.name} to serve again", GETS_ON)


async def pair_cut_off(world: World) -> None:
    """The controller and another broker hear each other alone."""
    probes, _ = await _steady(world)
    pair = [_controller(world), _any_but_controller(world)]
    _settle(probes, pair[0].node_id)
    began_s = world.loop.time()
    async with _cut(world, pair, _others(world, *pair), bucket=True):
        await _get_on(world, probes, pair, began_s)


async def machine_cut_off(world: World) -> None:
    """Of five brokers three have one host (``HOSTS``), which is cut off."""
    probes, _ = await _steady(world)
    together = [one for one in world.machines if HOSTS[one.node_id] == HOSTS[1]]
    _settle(probes, together[0].node_id)
    began_s = world.loop.time()
    async with _cut(world, together, _others(world, *together), bucket=True):
        await asyncio.sleep(GETS_ON_S)
        for one in together:
            if not _isolated(one):
                raise Violation(GETS_ON, f"{one.name} is not isolated {world.loop.time() - began_s:g} s after the cut")


async def bucket_alone_away(world: World) -> None:
    """The bucket refuses, or does not answer, and brokers hear each other."""
    await _steady(world)
    world.disturb(world.machines, FAULT_S + HEALED_S)
    fault = Fault(world.rng.choice((FaultKind.UNAVAILABLE, FaultKind.HANG)))
    world.bucket.faults.append(fault)
    try:
        async with _nobody_isolated(world, world.machines):
            await asyncio.sleep(FAULT_S)
    finally:
        world.bucket.faults.remove(fault)


async def network_alone_cut(world: World) -> None:
    """One broker hears the bucket alone."""
    await _steady(world)
    victim = world.rng.choice(world.machines)
    async with _cut(world, [victim], _others(world, victim), bucket=False), _nobody_isolated(world, world.machines):
        await asyncio.sleep(FAULT_S)


async def controller_alone_heard(world: World) -> None:
    """One broker hears the controller alone."""
    await _steady(world)
    victim, controller = _any_but_controller(world), _controller(world)
    others = _others(world, victim, controller)
    async with _cut(world, [victim], others, bucket=True), _nobody_isolated(world, world.machines):
        await asyncio.sleep(FAULT_S)


async def healed_in_part(world: World) -> None:
    """The controller is cut off, and reaches the others again but not the bucket. It does not serve by its old image."""
    probes, _ = await _steady(world)
    victim = _controller(world)
    others = _others(world, victim)
    began_s = world.loop.time()
    async with _cut(world, [victim], others, bucket=True):
        await _get_on(world, probes, [victim], began_s)
        await world.until(lambda: _isolated(victim), GETS_ON_S, f"{victim.name} to be isolated", GETS_ON)
        decided = world.newest.sequence
    victim.cut_bucket(True)
    try:
        for _ in range(int(HEALED_S / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            node = victim.node
            if victim.up and node is not None and not _isolated(victim) and node.cluster.image.sequence < decided:
                raise Violation(OLD_IMAGE, f"{victim.name} serves by entry {node.cluster.image.sequence} of {decided}")
    finally:
        victim.cut_bucket(False)
    await world.until(lambda: not _isolated(victim), HEALED_S, f"{victim.name} to serve again", GETS_ON)


async def paused(world: World) -> None:
    """A process stands still for longer than two session time-outs, and goes on."""
    await _steady(world)
    victim = world.rng.choice(world.machines)
    process = victim.process
    assert process is not None
    world.disturb(world.machines, FAULT_S + HEALED_S)
    process.pause()
    await asyncio.sleep(FAULT_S / 2)
    process.resume()
    async with _nobody_isolated(world, [victim]):
        await asyncio.sleep(HEALED_S)


HOSTS: Final = {1: "one", 2: "one", 3: "one", 4: "two", 5: "three"}
"""By broker, for ``machine_cut_off``."""

_Scenario = Callable[["World"], Awaitable[None]]


def _once(scenario: _Scenario) -> _Scenario:
    async def run(world: World) -> None:
        if not world.scenario_begun:
            world.scenario_begun = True
            await scenario(world)
            world.trace("scenario over")
            world.scenario_over = True

    return run


ISOLATION: Final[dict[str, _Scenario]] = {
    "cut off": _once(cut_off),
    "cut off as it is elected": _once(cut_off_as_it_is_elected),
    "controller of two cut off": _once(controller_of_two_cut_off),
    "pair cut off": _once(pair_cut_off),
    "machine cut off": _once(machine_cut_off),
    "bucket alone away": _once(bucket_alone_away),
    "network alone cut": _once(network_alone_cut),
    "controller alone heard": _once(controller_alone_heard),
    "healed in part": _once(healed_in_part),
    "paused for long": _once(paused),
}
"""By name. A run names exactly one of them."""

SHAPE: Final = {
    "seconds": 90.0,
    "pause_s": 1.0,
    "producers": 1,
    "partitions": 2,
    "tiered": False,
    "unclean": False,
    "disk": False,
    "min_in_sync": 1,
    "factor": 3,
    "actors": (),
    "from_0": False,
    "brokers": 3,
}

BROKERS: Final = {
    "controller of two cut off": 2,
    "pair cut off": 5,
    "machine cut off": 5,
    "controller alone heard": 5,
}
"""How many brokers a scenario needs, if not three."""


def shape_of(scenario: str) -> dict[str, Any]:
    """The shape of a run of this scenario."""
    brokers = BROKERS.get(scenario, 3)
    return SHAPE | {"brokers": brokers, "factor": min(3, brokers)}
