"""A second broker joins a cluster of one broker (ADR 0023, AL2) while the first is well, cut off, or stands still.

The first leads partitions with one replica, and clients write to it all the time. The second is a broker of its own: it takes the
office where the first cannot hold it, and no record. The checkers of the world see to it that nothing is lost or contradicted that
the first acknowledges, whoever is the controller meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.cluster_simulation.clients import Producer, Reader
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.cluster_simulation.machine import ClusterMachine
    from tests.cluster_simulation.world import World
    from tests.sim.loop import Process

STORIES: Final = {
    "well": 6.0,
    "its clock jumps": 6.0,
    "cut off from the bucket": 8.0,
    "cut off from the bucket and the other": 22.0,
    "paused": 22.0,
    "blinking": 45.0,
    "cut off when it is not alone any more": 6.0,
}
"""What happens to the first broker, and within how many seconds of its start the second is in the cluster. The sign of life of a
broker that cannot be asked has to be 12 s old (C4), and one that stands still again and again gives some."""
SHAPE: Final = {"brokers": 2, "factor": 1, "min_in_sync": 1, "actors": (), "from_0": False, "lag_ms": 30_000}
UNDECIDED: Final = "stayed undecided"
"""How a broker ends whose first entries got no answer from the store in time."""
DEPOSED_S: Final = 8.0
"""A controller that is cut off from the bucket alone is deposed by the other broker within this time (C3, C6)."""


async def a_second_broker(world: World) -> None:
    rng = world.rng
    story = list(STORIES)[world.seed % len(STORIES)]
    first, second = world.machines
    world.trace("story", story)
    second.wanted = False
    first.start()
    await world.until(lambda: first.up, 60, "the first start")
    world.go(world._look())
    await world.topic_comes(first=True)
    for number in range(2):
        world.go(Producer(world, f"p{number}", idempotent=number == 0, acks=(-1, 1)[number]).run())
    world.go(Reader(world, "r").run())
    await asyncio.sleep(rng.uniform(2.0, 25.0))

    if story not in ("well", "its clock jumps"):
        world.disturb([first], 120.0)
    blinks: asyncio.Task[None] | None = None
    match story:
        case "its clock jumps":
            first.clock.skew_ms += rng.choice((-7_200_000, 7_200_000))
        case "cut off from the bucket":
            first.cut_bucket(True)
            await asyncio.sleep(rng.uniform(0.0, 1.5))
        case "cut off from the bucket and the other":
            first.cut_bucket(True)
            world.network.cut([("n1", "n2"), ("n2", "n1")])
        case "paused":
            _process(first).pause()
        case "blinking":
            blinks = world.go(_blinks(world, first))
        case _:
            pass
    acknowledged = world.acks
    begun_s = world.loop.time()
    while not await _joins(world, second, STORIES[story]):
        pass  # its own store did not answer in time, so its start was refused
    world.trace("joined", world.loop.time() - begun_s)
    if story == "cut off when it is not alone any more":
        await asyncio.sleep(rng.uniform(1.5, 4.0))
        first.cut_bucket(True)
        await world.until(
            lambda: world.newest.controller.broker_id == 2, DEPOSED_S, "a controller with a bucket", "AL2"
        )
    await asyncio.sleep(rng.uniform(0.5, 20.0))
    if story.startswith("cut off") and world.acks == acknowledged:
        raise Violation("alive", "a broker with the only copy is cut off from the bucket, and takes no records")

    if blinks is not None:
        blinks.cancel()
    _process(first).resume()
    await world.calm()
    world.go(world._keep_running())
    await world._heal()
    await world._write_all()
    await world._read_all()
    await world.bucket_is_enough.prove()


async def _joins(world: World, second: ClusterMachine, within_s: float) -> bool:
    """Start it. Returns: whether it has joined; False if it has ended, because the store did not answer what it asked."""
    second.start()
    await world.until(
        lambda: second.exit is not None or (second.up and 2 in world.newest.brokers),
        within_s,
        "the second broker to join",
        "AL2",
    )
    if second.exit is None:
        return True
    if UNDECIDED not in str(second.exit):
        raise Violation("AL2", f"the second broker does not join: {second.exit}")
    await world.until(lambda: not second.alive, 10, "the end of the second broker")
    return False


async def _blinks(world: World, machine: ClusterMachine) -> None:
    """It stands still for most of the time."""
    process = _process(machine)
    try:
        while True:
            process.pause()
            await asyncio.sleep(world.rng.uniform(0.5, 9.0))
            process.resume()
            await asyncio.sleep(world.rng.uniform(0.01, 0.8))
    finally:
        process.resume()


def _process(machine: ClusterMachine) -> Process:
    assert machine.process is not None
    return machine.process
