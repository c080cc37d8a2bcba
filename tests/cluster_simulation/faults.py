"""What goes wrong in a run. Each fault is a coroutine that ends, or undoes, what it began; many of them overlap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from app.broker.peers.control_link import KafkaControlLink
from app.core.errors import ErrorCode, FirnError
from app.objectstore.memory import Fault, FaultKind
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.cluster_simulation.machine import ClusterMachine, last_fetches
from tests.sim.machine import Unreachable
from tests.sim.network import LATENCY_S

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World


def _any(world: World) -> ClusterMachine:
    return world.rng.choice(world.machines)


def _controller(world: World) -> ClusterMachine:
    return world.machine(int(world.newest.controller.broker_id))


def _leader(world: World) -> ClusterMachine:
    """The leader of some partition."""
    led = [
        image
        for history in world.histories.values()
        if (image := world.partition_image(history)) is not None and image.leader >= 0
    ]
    return world.machine(int(world.rng.choice(led).leader)) if led else _any(world)


def _victim(world: World) -> ClusterMachine:
    return world.rng.choice((_any, _any, _leader, _controller))(world)


# --- processes and machines -------------------------------------------------------------------------------------------


async def kill(world: World) -> None:
    world.crash(_victim(world), "kill")


async def kill_leader(world: World) -> None:
    world.crash(_leader(world), "kill")


async def kill_controller(world: World) -> None:
    world.crash(_controller(world), "kill")


async def power(world: World) -> None:
    world.crash(_victim(world), "power")


async def power_of_all(world: World) -> None:
    for machine in world.machines:
        if world.rng.random() < 0.8:
            world.crash(machine, "power")


async def kill_within(world: World) -> None:
    world.crash_within(_victim(world), world.rng.choice((1, 2, 3, 8, 20, 60)), "kill")


async def power_within(world: World) -> None:
    world.crash_within(_victim(world), world.rng.choice((1, 2, 3, 8, 20, 60)), "power")


async def disk_lost(world: World) -> None:
    world.lose_disk(_victim(world))


async def restart(world: World) -> None:
    """Stop in order; it is started again."""
    machine = _victim(world)
    world.disturb([machine], 12.0)
    machine.stop()


async def rolling_restart(world: World) -> None:
    for machine in list(world.machines):
        world.disturb([machine], 15.0)
        starts = machine.starts
        machine.stop()
        try:
            async with asyncio.timeout(15):
                while machine.starts == starts or not machine.up:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return  # something else is wrong with it


async def pause(world: World) -> None:
    """The process stands still while all others go on."""
    await _pause(world, _victim(world), world.rng.choice((0.3, 1.0, 2.5, 4.0, 8.0)))


async def pause_controller(world: World) -> None:
    await _pause(world, _controller(world), world.rng.choice((1.0, 3.5, 6.0)))


async def pause_leader(world: World) -> None:
    await _pause(world, _leader(world), world.rng.choice((1.0, 3.5, 6.0)))


async def _pause(world: World, machine: ClusterMachine, seconds: float) -> None:
    process = machine.process
    if process is None or process.dead or process.paused:
        return
    world.disturb([machine], seconds)
    world.trace("pause", process.name, seconds)
    process.pause()
    try:
        await asyncio.sleep(seconds)
    finally:
        world.trace("resume", process.name)
        process.resume()


async def slow_disk(world: World) -> None:
    world.disturb(world.machines, 4.0)
    world._pool_latency_s = world.rng.choice(((0.01, 0.2), (0.0001, 0.7)))
    try:
        await asyncio.sleep(world.rng.uniform(0.5, 4.0))
    finally:
        world._pool_latency_s = world.usual_pool_latency_s


async def clock(world: World) -> None:
    _any(world).clock.skew_ms += world.rng.choice((-3_600_000, -3000, -1, 1, 5000, 3_600_000))


# --- the network ------------------------------------------------------------------------------------------------------


async def cut_one_way(world: World) -> None:
    one, other = world.rng.sample(world.machines, 2)
    await _cut(world, [(one.name, other.name)], [one, other])


async def cut_both_ways(world: World) -> None:
    one, other = world.rng.sample(world.machines, 2)
    await _cut(world, [(one.name, other.name), (other.name, one.name)], [one, other])


async def isolate(world: World) -> None:
    """One machine is cut off from all others; clients reach it."""
    one = _victim(world)
    ways = [way for other in world.machines if other is not one for way in _both(one, other)]
    await _cut(world, ways, world.machines)


async def partition(world: World) -> None:
    machines = world.rng.sample(world.machines, len(world.machines))
    at = world.rng.randrange(1, len(machines))
    await _cut(world, [way for one in machines[:at] for other in machines[at:] for way in _both(one, other)], machines)


def _both(one: ClusterMachine, other: ClusterMachine) -> list[tuple[str, str]]:
    return [(one.name, other.name), (other.name, one.name)]


async def _cut(world: World, ways: list[tuple[str, str]], machines: list[ClusterMachine]) -> None:
    seconds = world.rng.choice((0.3, 1.5, 4.0, 9.0))
    world.disturb(machines, seconds)
    world.trace("cut", ways, seconds)
    world.network.cut(ways)
    try:
        await asyncio.sleep(seconds)
    finally:
        world.network.heal(ways)


@asynccontextmanager
async def isolate_from(world: World, one: ClusterMachine, others: list[ClusterMachine]) -> AsyncIterator[None]:
    """Within it, nothing passes between one machine and these others."""
    ways = [way for other in others for way in _both(one, other)]
    world.disturb([one, *others], 3.0)
    world.trace("cut", ways)
    world.network.cut(ways)
    try:
        yield
    finally:
        world.network.heal(ways)


async def reset(world: World) -> None:
    one, other = world.rng.sample(world.machines, 2)
    world.network.reset((one.name, other.name))


async def answers_lost(world: World) -> None:
    """What the controller has done is answered late, and its connections break again and again."""
    controller = _controller(world)
    world.disturb(world.machines, 3.0)
    world.network.latency_s = (0.05, 0.2)
    try:
        for _ in range(6):
            await asyncio.sleep(world.rng.uniform(0.2, 0.6))
            for other in world.machines:
                world.network.reset((controller.name, other.name))
    finally:
        world.network.latency_s = LATENCY_S


async def late_requests(world: World) -> None:
    """What a process sent last arrives after its successor has registered: the network had held it, or has doubled it."""
    machine = _any(world)
    node, link = machine.node, machine.link
    if node is None or link is None or not machine.up or machine.paused or node.followers is None:
        return
    epoch = node.followers.broker_epoch()
    sent = [*link.sent, *last_fetches(node)]
    world.disturb(world.machines, 6.0)
    world.crash(machine, world.rng.choice(("kill", "power")))
    late = KafkaControlLink(dial=world.network.dialer(machine.name, None))
    world.network.latency_s = world.rng.choice((LATENCY_S, (0.05, 0.3), (0.2, 0.3)))
    try:
        await late.connection(machine.controller(), "beat")
        async with asyncio.timeout(20):
            while (found := world.newest.brokers.get(machine.node_id)) is None or found.broker_epoch == epoch:  # type: ignore[call-overload]
                await asyncio.sleep(0.001)
        await asyncio.sleep(world.rng.choice((0.0, 0.0, 0.5)))
        for send in sent:
            try:
                world.trace("late", machine.name, await send(late))
            except FirnError as error:
                world.trace("late", machine.name, str(error))
        await asyncio.sleep(1.0)
    except (TimeoutError, FirnError):
        return  # something else is wrong with it
    finally:
        world.network.latency_s = LATENCY_S
        await late.close()


async def slow_network(world: World) -> None:
    world.disturb(world.machines, 4.0)
    world.network.latency_s = world.rng.choice(((0.01, 0.05), (0.0001, 0.4), (0.1, 0.3)))
    try:
        await asyncio.sleep(world.rng.uniform(0.5, 4.0))
    finally:
        world.network.latency_s = LATENCY_S


# --- the bucket -------------------------------------------------------------------------------------------------------


async def bucket_cut(world: World) -> None:
    """One machine is cut off from the bucket."""
    machine = _victim(world)
    seconds = world.rng.choice((0.5, 2.5, 6.0))
    world.disturb(world.machines if machine is _controller(world) else [machine], seconds)
    machine.cut_bucket(True)
    try:
        await asyncio.sleep(seconds)
    finally:
        machine.cut_bucket(False)


async def bucket_away(world: World) -> None:
    await _store(world, [Fault(FaultKind.UNAVAILABLE)], world.rng.uniform(0.3, 5.0))


async def bucket_flaky(world: World) -> None:
    kinds = world.rng.sample(
        (FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.APPLIED_LATE, FaultKind.LATENCY), 2
    )
    faults = [
        Fault(one, probability=world.rng.choice((0.1, 0.3, 0.6)), latency_ms=(1, world.rng.choice((50, 1500))))
        for one in kinds
    ]
    await _store(world, faults, world.rng.uniform(0.5, 3.0))


async def bucket_hangs(world: World) -> None:
    one = world.rng.choice((FaultKind.HANG, FaultKind.HANG_APPLIED))
    await _store(world, [Fault(one, probability=world.rng.choice((0.1, 0.5)))], world.rng.uniform(0.5, 3.0))


async def bucket_lies(world: World) -> None:
    kinds = [FaultKind.FLIPPED_BYTE, FaultKind.TORN_READ, FaultKind.SHORT_ANSWER]
    await _store(
        world, [Fault(one, probability=world.rng.choice((0.1, 0.4))) for one in kinds], world.rng.uniform(0.5, 3.0)
    )


async def _store(world: World, faults: list[Fault], seconds: float) -> None:
    world.disturb(world.machines, seconds)
    world.bucket.faults += faults
    try:
        await asyncio.sleep(seconds)
    finally:
        world.bucket.faults = [one for one in world.bucket.faults if one not in faults]


# --- administration ---------------------------------------------------------------------------------------------------


async def reassign(world: World) -> None:
    """Give a partition other replicas."""
    history = world.any_history()
    if history is None:
        return
    image = world.partition_image(history)
    if image is None:
        return
    brokers = [machine.node_id for machine in world.machines]
    replicas = world.rng.sample(brokers, len(history.replicas))
    if world.rng.random() < 0.2 and image.adding:
        wanted: list[int] | None = None  # cancel
    else:
        wanted = replicas
    topic = ReassignableTopic(
        name=history.topic, partitions=[ReassignablePartition(partition_index=history.index, replicas=wanted)]
    )
    request = AlterPartitionReassignmentsRequest(timeout_ms=3000, topics=[topic])
    try:
        answer = await world.administrator.ask_any(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
    except Unreachable:
        return
    code = answer.responses[0].partitions[0].error_code if answer.responses else answer.error_code
    world.trace("reassign", history.name, wanted, ErrorCode(code).name)


async def elect_preferred(world: World) -> None:
    history = world.any_history()
    if history is not None:
        await world.elect(history, unclean=False)


async def create_and_delete(world: World) -> None:
    """A topic comes, and some of those that came go again."""
    await world.topic_comes()
    await asyncio.sleep(world.rng.uniform(0.5, 6.0))
    gone = [one.topic for one in world.histories.values() if not one.deleting and one.topic.startswith("x")]
    if gone:
        try:
            await world.administrator.delete_topic(world.rng.choice(gone))
        except Unreachable:
            return


async def min_in_sync(world: World) -> None:
    history = world.any_history()
    if history is None:
        return
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=2,
                resource_name=history.topic,
                configs=[AlterableConfig(name="min.insync.replicas", value=str(world.rng.randint(1, 2)))],
            )
        ]
    )
    try:
        await world.administrator.ask_any(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
    except Unreachable:
        return


FAULTS: Final[dict[str, Callable[[World], Awaitable[None]]]] = {
    "kill": kill,
    "kill leader": kill_leader,
    "kill controller": kill_controller,
    "power": power,
    "power of all": power_of_all,
    "kill within": kill_within,
    "power within": power_within,
    "disk lost": disk_lost,
    "restart": restart,
    "rolling restart": rolling_restart,
    "pause": pause,
    "pause controller": pause_controller,
    "pause leader": pause_leader,
    "slow disk": slow_disk,
    "clock": clock,
    "cut one way": cut_one_way,
    "cut both ways": cut_both_ways,
    "isolate": isolate,
    "partition": partition,
    "reset": reset,
    "answers lost": answers_lost,
    "late requests": late_requests,
    "slow network": slow_network,
    "bucket cut": bucket_cut,
    "bucket away": bucket_away,
    "bucket flaky": bucket_flaky,
    "bucket hangs": bucket_hangs,
    "bucket lies": bucket_lies,
    "reassign": reassign,
    "elect preferred": elect_preferred,
    "create and delete": create_and_delete,
    "min in-sync": min_in_sync,
}
"""By name. ``Shape.faults`` says which of them a run meets."""
