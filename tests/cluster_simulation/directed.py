"""Faults that come one after another in an order, for rules whose schedules are too rare otherwise.

No seed meets them by itself: only runs that name them do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from app.coordinator.topics import CONSUMER_OFFSETS, HTTP_REQUESTS, SHARE_GROUP_STATE
from app.core.errors import ErrorCode, RequestRejected
from app.metadata.image.image import PartitionImage
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from app.wire.apis.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.cluster_simulation.faults import isolate_from
from tests.cluster_simulation.machine import ClusterMachine
from tests.cluster_simulation.truth import ReplicatedHistory
from tests.sim.machine import Unreachable
from tests.sim.network import LATENCY_S
from tests.simulation.sharing import ACCEPT

if TYPE_CHECKING:
    from tests.cluster_simulation.coordinated import RoutedWorker
    from tests.cluster_simulation.world import World

FAR_S: Final = (0.02, 0.05)
"""Latency of a message while markers are slow."""
CUT_OFF_S: Final = 13.0
"""A client waits for 1.5 s for an answer, and then for 10 s for a new connection."""
TRANSACTIONAL_ID: Final = 1
"""A type of coordinator."""
_OF_ACTORS: Final = {
    "groups": CONSUMER_OFFSETS.name,
    "sharing": SHARE_GROUP_STATE.name,
}


def _coordinated(world: World, *, spared: bool = False) -> tuple[ReplicatedHistory, PartitionImage] | None:
    """A partition in which the run's clients are coordinated, with all its replicas in sync. ``spared``: none of these is the
    controller."""
    topics = {_OF_ACTORS[actor] for actor in world.shape.actors if actor in _OF_ACTORS}
    controller = world.newest.controller.broker_id
    found = []
    for history in world.coordinated.internal.values():
        image = world.partition_image(history)
        if history.topic not in topics or image is None or image.leader < 0 or len(image.isr) < len(image.replicas):
            continue
        leader = world.machine(int(image.leader))
        if (spared and controller in image.replicas) or not world.stored_end(leader, history):
            continue
        found.append((history, image))
    return world.rng.choice(found) if found else None


def _followers(world: World, image: PartitionImage) -> list[ClusterMachine]:
    """In the order in which they are elected."""
    return [world.machine(int(one)) for one in image.replicas if one != image.leader]


async def _until_led(world: World, history: ReplicatedHistory, *, not_by: ClusterMachine) -> ClusterMachine | None:
    """The next leader, once it knows; None if something else is wrong."""
    known = world.coordinated
    try:
        async with asyncio.timeout(9.0):
            while True:
                leader, _ = known.led_by(history)
                if leader != not_by.node_id and known.leader_knows(history):
                    return world.machine(leader)
                await asyncio.sleep(0.01)
    except TimeoutError:
        return None


async def coordinator_alone(world: World) -> None:
    """A transaction coordinator loses the other replicas of its log, is asked to commit, and dies. The producer begins anew."""
    producers = world.coordinated.enders
    if not producers:
        return
    producer = world.rng.choice(producers)
    if not await producer.write_everywhere():
        return
    history = world.coordinated.partition_of(TRANSACTIONAL_ID, producer.transactional_id)
    image = world.partition_image(history) if history is not None else None
    if history is None or image is None or image.leader < 0:
        return
    leader = world.machine(int(image.leader))
    async with isolate_from(world, leader, _followers(world, image)):
        asked = world.go(producer.commit_and_forget())
        await asyncio.sleep(0.3)
        world.crash(leader, "kill")
    await asyncio.wait([asked])
    await _until_led(world, history, not_by=leader)
    await producer.begin_anew()


async def slow_markers(world: World) -> None:
    """Producers commit in all partitions and ask for their next transaction while brokers and clients are far apart, so markers
    are under way for longer than a client needs to come again."""
    producers = tuple(world.coordinated.enders)
    world.coordinated.enders.clear()  # each does one thing at a time
    if not producers:
        return
    world.disturb(world.machines, 4.0)
    world.network.latency_s = FAR_S
    try:
        for _ in range(3):
            for producer in producers:
                if await producer.write_everywhere():
                    await producer.commit_and_abort_at_once()
    finally:
        world.network.latency_s = LATENCY_S
        world.coordinated.enders.extend(producers)


async def leaders_move_under_markers(world: World) -> None:
    """Leaders move while markers are under way, so that brokers get markers of partitions that they lead no more. Each producer
    commits in all partitions, and ends its next transaction at once."""
    producers = tuple(world.coordinated.enders)
    world.coordinated.enders.clear()  # each does one thing at a time
    if not producers:
        return
    world.disturb(world.machines, 4.0)
    world.network.latency_s = FAR_S
    try:
        for producer in producers:
            if await producer.write_everywhere():
                await asyncio.gather(producer.commit_and_abort_at_once(), _all_leaders_move(world))
    finally:
        world.network.latency_s = LATENCY_S
        world.coordinated.enders.extend(producers)


async def coordinator_forgets(world: World) -> None:
    """A share coordinator loses the other replicas, is told what was accepted, and dies. When the next one coordinates, the
    partitions that are shared get other leaders."""
    found = _coordinated(world)
    if found is None:
        return
    history, image = found
    leader = world.machine(int(image.leader))
    workers = world.coordinated.crowd
    for worker in workers:
        with suppress(Unreachable):
            await worker.beat()
            worker.move_on()
            for _ in range(4):
                await worker.fetch(max_records=1, max_wait_ms=0)
    async with isolate_from(world, leader, _followers(world, image)):
        accepting = [world.go(_accept_all_but_one(worker)) for worker in workers]
        await asyncio.sleep(0.15)
        world.crash(leader, "kill")
    if await _until_led(world, history, not_by=leader) is not None:
        await _all_leaders_move(world)
    if accepting:
        await asyncio.wait(accepting)
    await asyncio.gather(*map(_take_and_accept, workers))


async def _accept_all_but_one(worker: RoutedWorker) -> None:
    """What it keeps lets nobody forget the others."""
    worker.given = worker.given[1:]
    with suppress(Unreachable):
        while worker.given:
            await worker.say(ACCEPT)


async def coordinator_apart(world: World) -> None:
    """A coordinator is cut off from all other brokers until another one has coordinated for a while. Clients reach both."""
    found = _coordinated(world)
    if found is None:
        return
    history, image = found
    leader = world.machine(int(image.leader))
    async with isolate_from(world, leader, [one for one in world.machines if one is not leader]):
        if await _until_led(world, history, not_by=leader) is not None:
            await asyncio.sleep(world.rng.uniform(0.3, 1.5))
    await _ask_groups(world, 2.0)


async def coordinators_fall(world: World) -> None:
    """One replica gets no records for a while. The coordinator dies; the next one is asked what it has, and dies; then that
    replica leads, and is asked."""
    found = _coordinated(world, spared=True)
    if found is None or len(followers := _followers(world, found[1])) < 2:
        return
    history, image = found
    leader = world.machine(int(image.leader))
    async with isolate_from(world, followers[-1], [leader, *followers[:-1]]):
        await asyncio.sleep(world.rng.uniform(0.2, 0.6))
        world.crash(leader, "kill")
        next_leader = await _until_led(world, history, not_by=leader)
        if next_leader is None or next_leader is followers[-1]:
            return
        await _ask_groups(world)
        world.crash(next_leader, "kill")
    if await _until_led(world, history, not_by=next_leader) is not None:
        await _ask_groups(world)


async def _ask_groups(world: World, seconds: float = 0.5) -> None:
    """Read what the groups have committed, again and again."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                for member in world.coordinated.onlookers:
                    with suppress(Unreachable):
                        await member.read_offsets()
                await asyncio.sleep(0.02)
    except TimeoutError:
        return


async def leader_sleeps(world: World) -> None:
    """The leader of a shared partition gives records out and stands still. The next leader gives them out too, and some are
    accepted. When the first one goes on, the time of what it gave out is up. Then all leaders move."""
    history = world.any_history()
    image = world.partition_image(history) if history is not None else None
    if history is None or image is None or image.leader < 0:
        return
    leader = world.machine(int(image.leader))
    process = leader.process
    if process is None or process.dead or process.paused:
        return
    workers = world.coordinated.crowd
    await asyncio.gather(*(_take_singly(worker, leader) for worker in workers))
    if process.dead or process.paused:  # another fault met it meanwhile
        return
    world.disturb([leader], 9.0)
    world.trace("pause", process.name)
    process.pause()
    try:
        next_leader = await _until_led(world, history, not_by=leader)
        if next_leader is not None:
            await asyncio.gather(*(_take_singly(worker, next_leader) for worker in workers))
            await asyncio.gather(*map(_accept_all_but_one, workers))
    finally:
        world.trace("resume", process.name)
        process.resume()
    await asyncio.sleep(0.2)
    await _all_leaders_move(world)
    await asyncio.gather(*map(_take_and_accept, workers))


async def _take_singly(worker: RoutedWorker, leader: ClusterMachine) -> None:
    """Be given some records of a broker, one by one."""
    with suppress(Unreachable):
        await worker.beat()
    worker.given = []
    worker.move_to(leader.node_id)
    with suppress(Unreachable):
        for _ in range(4):
            await worker.fetch(max_records=1, max_wait_ms=0)


async def room_at_times(world: World) -> None:
    """Producers lose their connections to a leader that has stored what they sent and not answered. It has no room when they send
    that again, and has room before they have sent all of it."""
    history = world.any_history()
    image = world.partition_image(history) if history is not None else None
    if history is None or image is None or image.leader < 0:
        return
    leader = world.machine(int(image.leader))
    node = leader.node
    log = node.logs.get(history.topic, history.index) if leader.up and node is not None else None
    if log is None:
        return
    errors = leader.node.server.context.metrics.produce_errors
    for _ in range(6):
        await _until_soon(lambda: log.log_end_offset > log.high_watermark)
        for number in range(world.shape.producers):
            world.network.reset((f"p{number}", f"n{leader.node_id}"))
        refused = errors.value + world.rng.randint(1, 3)
        log.pause(RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, "no room"))
        try:
            await _until_soon(lambda refused=refused: errors.value >= refused)  # type: ignore[misc]
        finally:
            log.go_on()
        await asyncio.sleep(0.1)


async def _until_soon(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        await asyncio.sleep(0.0005)


async def leaders_move(world: World) -> None:
    """Another replica of a partition becomes the preferred leader, and leads; nobody dies."""
    history = world.any_history()
    if history is not None:
        await move_leader(world, history)


async def workers_come_together(world: World) -> None:
    """A partition gets another leader, and several members of the share group ask it for records at the same moment."""
    workers, history = world.coordinated.crowd, world.any_history()
    if not workers or history is None:
        return
    place = (history.topic_id, history.index)
    for worker in workers:
        with suppress(Unreachable):
            await worker.beat()
    before = world.coordinated.led_by(history)
    await move_leader(world, history)
    try:
        async with asyncio.timeout(3.0):
            while world.coordinated.led_by(history) == before or not world.coordinated.leader_knows(history):
                await asyncio.sleep(0.01)
    except TimeoutError:
        return
    together = [worker for worker in workers if place in worker.places]
    for worker in together:
        worker.move_to(world.coordinated.led_by(history)[0])
        with suppress(Unreachable):
            await worker.session_connection()
    await asyncio.gather(*map(_take_and_accept, together))


async def _take_and_accept(worker: RoutedWorker) -> None:
    with suppress(Unreachable):
        await worker.fetch(max_records=100, max_wait_ms=0)
        while worker.given:
            await worker.say(ACCEPT)


async def _all_leaders_move(world: World) -> None:
    for history in list(world.histories.values()):
        if not history.deleting:
            await move_leader(world, history)


async def move_leader(world: World, history: ReplicatedHistory) -> None:
    """Another replica that is in sync becomes the preferred leader, and leads."""
    image = world.partition_image(history)
    if image is None:
        return
    alive = [one for one in image.replicas if one in image.isr and one != image.leader]
    if not alive:
        return
    await _reassign(world, history, [alive[0], *(one for one in image.replicas if one != alive[0])])
    await world.elect(history, unclean=False)


async def _reassign(world: World, history: ReplicatedHistory, replicas: Iterable[int]) -> None:
    topic = ReassignableTopic(
        name=history.topic,
        partitions=[ReassignablePartition(partition_index=history.index, replicas=[int(one) for one in replicas])],
    )
    request = AlterPartitionReassignmentsRequest(timeout_ms=3000, topics=[topic])
    with suppress(Unreachable):
        await world.administrator.ask_any(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)


async def results_move(world: World) -> None:
    """The partitions with the results of keyed requests get other leaders, one after the other; nobody dies."""
    for history in list(world.coordinated.internal.values()):
        if history.topic == HTTP_REQUESTS.name:
            await move_leader(world, history)
            await asyncio.sleep(world.rng.uniform(0.0, 0.1))


async def leaders_gather(world: World) -> None:
    """One broker comes to lead all that keyed requests need, so that it can take all their steps by itself (ADR 0043, EO19)."""
    up = [one for one in world.machines if one.up]
    if not up:
        return
    leader = world.rng.choice(up).node_id
    topics: dict[str, list[ReassignablePartition]] = {}
    for history in world.all_histories():
        image = world.partition_image(history)
        if image is None or history.deleting or leader not in image.isr or image.leader == leader:
            continue
        replicas = [leader, *(int(one) for one in image.replicas if one != leader)]
        moved = ReassignablePartition(partition_index=history.index, replicas=replicas)
        topics.setdefault(history.topic, []).append(moved)
    world.trace("gather", leader, *topics)
    with suppress(Unreachable):
        await world.administrator.ask_any(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            AlterPartitionReassignmentsRequest(
                timeout_ms=3000, topics=[ReassignableTopic(name=one, partitions=parts) for one, parts in topics.items()]
            ),
        )
        await world.administrator.ask_any(
            ApiKey.ELECT_LEADERS,
            ElectLeadersRequest(
                election_type=0,
                topic_partitions=[
                    TopicPartitions(topic=one, partitions=[part.partition_index for part in parts])
                    for one, parts in topics.items()
                ],
                timeout_ms=3000,
            ),
        )


async def http_cut_off(world: World) -> None:
    """An HTTP process is cut off from all brokers as it asks for the end of a transaction, for longer than it asks again."""
    keyed = world.coordinated.keyed
    if keyed is None:
        return
    process = world.rng.choice(keyed.processes)
    await process.next_end()
    await asyncio.sleep(world.rng.choice((0.0, 0.0005, 0.002)))
    ways = [way for one in world.machines for way in ((process.name, one.name), (one.name, process.name))]
    world.trace("cut", process.name)
    world.network.cut(ways)
    try:
        await asyncio.sleep(CUT_OFF_S)
    finally:
        world.network.heal(ways)


DIRECTED: Final[dict[str, Callable[[World], Awaitable[None]]]] = {
    "coordinator alone": coordinator_alone,
    "coordinator forgets": coordinator_forgets,
    "coordinator apart": coordinator_apart,
    "coordinators fall": coordinators_fall,
    "slow markers": slow_markers,
    "leaders move under markers": leaders_move_under_markers,
    "leader sleeps": leader_sleeps,
    "leaders move": leaders_move,
    "room at times": room_at_times,
    "workers come together": workers_come_together,
    "results move": results_move,
    "http cut off": http_cut_off,
    "leaders gather": leaders_gather,
}
"""By name."""
