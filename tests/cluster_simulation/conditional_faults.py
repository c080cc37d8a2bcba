"""Faults that come one after another in an order, for callers of conditional appends. Only runs that name them meet them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from app.core.errors import FirnError
from app.metadata.image.image import PartitionImage
from tests.cluster_simulation.clients import Producer
from tests.cluster_simulation.conditional import Asked, ConditionalCaller
from tests.cluster_simulation.directed import move_leader
from tests.cluster_simulation.faults import isolate_from
from tests.cluster_simulation.machine import ClusterMachine
from tests.cluster_simulation.truth import ReplicatedHistory
from tests.sim.machine import Unreachable

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World

GONE_S: Final = 12.0
"""How long a leader is away whose records are lost."""
LOST_AT_LEAST: Final = 2
TRIES: Final = 100


def _pair(world: World) -> tuple[ReplicatedHistory, PartitionImage, ClusterMachine, ClusterMachine] | None:
    """A partition with two replicas in sync, its leader and the other one, of which the second is no controller."""
    controller = world.newest.controller.broker_id
    found = []
    for history in world.histories.values():
        image = world.partition_image(history)
        if image is None or image.leader < 0 or len(image.replicas) != 2 or len(image.isr) != 2:
            continue
        (other,) = (one for one in image.replicas if one != image.leader)
        if controller not in image.replicas:
            found.append((history, image, world.machine(int(image.leader)), world.machine(int(other))))
    return world.rng.choice(found) if found else None


async def _until(holds: Callable[[], bool], seconds: float) -> bool:
    for _ in range(int(seconds / 0.01)):
        if holds():
            return True
        await asyncio.sleep(0.01)
    return False


def _log_end(machine: ClusterMachine, history: ReplicatedHistory) -> int:
    node = machine.node
    log = node.logs.get(history.topic, history.index) if machine.up and node is not None else None
    return -1 if log is None else int(log.log_end_offset)


async def _read(caller: ConditionalCaller, history: ReplicatedHistory, beyond: int) -> Asked | None:
    """An append at an end that is not below an offset."""
    for _ in range(TRIES):
        with suppress(Unreachable, FirnError):
            asked = await caller.read(history)
            if asked is not None and asked.seen.end >= beyond:
                return asked
        await asyncio.sleep(0.02)
    return None


async def end_is_lost(world: World) -> None:
    """A leader without its follower takes records, which a caller reads. It dies, the follower is elected without them, and others
    write up to the offset that the caller has read to. All the while it tries to append there."""
    checker, found = world.coordinated.behind_seen, _pair(world)
    if checker is None or found is None:
        return
    history, _, leader, follower = found
    process = follower.process
    if process is None or process.dead or process.paused:
        return
    caller = ConditionalCaller(world, "patient", checker)
    world.disturb(world.machines, GONE_S)
    world.trace("pause", process.name)
    process.pause()
    try:
        if not await _until(lambda: _in_sync(world, history) == {leader.node_id}, 9.0):
            return
        asked = await _read(caller, history, _log_end(leader, history) + LOST_AT_LEAST)
    finally:
        world.trace("resume", process.name)
        process.resume()
    if asked is None:
        return
    world.crash(leader, "kill")
    world.delay_start(leader, GONE_S)
    if not await _until(lambda: world.coordinated.led_by(history)[0] == follower.node_id, GONE_S):
        return
    while _log_end(follower, history) <= asked.seen.end and world.producing:
        with suppress(FirnError):
            await caller.append(Asked(world.next_number(), history, asked.seen, asked.last))
        await asyncio.sleep(0.002)


def _in_sync(world: World, history: ReplicatedHistory) -> set[int]:
    image = world.partition_image(history)
    return set() if image is None else {int(one) for one in image.isr}


async def refusal_before_a_death(world: World) -> None:
    """A leader has a batch that its follower lacks. The follower is elected, takes another producer's batch, and is asked for a
    repeat of the first one. It dies, and the first leader leads again, with the batch that the follower lacked."""
    checker, found = world.coordinated.behind_seen, _pair(world)
    if checker is None or found is None:
        return
    history, _, leader, follower = found
    first = ConditionalCaller(world, "first", checker)
    read = await _read(first, history, 0)
    if read is None or not leader.up or not follower.up:
        return
    async with isolate_from(world, leader, [follower]):
        begun = _log_end(leader, history)
        one = asyncio.ensure_future(_try(first, read))
        if await _until(lambda: _log_end(leader, history) > begun, 1.0):
            await asyncio.gather(move_leader(world, history), _write_soon(world, history, follower))
            await _until(lambda: read.refused, 1.0)
            world.crash(follower, "kill")
            world.delay_start(follower, 3.0)
    await asyncio.wait([one])


async def _write_soon(world: World, history: ReplicatedHistory, machine: ClusterMachine) -> None:
    """Write a batch to a broker as soon as it leads, before all others."""
    producer = Producer(world, "soon", idempotent=False, acks=1)
    begun = _log_end(machine, history)
    for _ in range(10 * TRIES):
        with suppress(Unreachable):
            await producer.produce_to(machine.node_id, history)
        if _log_end(machine, history) > begun:
            return
        await asyncio.sleep(0.002)


async def _try(caller: ConditionalCaller, asked: Asked) -> None:
    with suppress(FirnError):
        await caller.append(asked)


CONDITIONAL: Final[dict[str, Callable[[World], Awaitable[None]]]] = {
    "end is lost": end_is_lost,
    "refusal before a death": refusal_before_a_death,
}
"""By name."""
