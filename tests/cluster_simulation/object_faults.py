"""What goes wrong in a run with topics of object durability, beside all else: their write-ahead logs, and any number of disks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from app.metadata.log import layout
from app.objectstore.memory import Fault, FaultKind
from tests.cluster_simulation.faults import _store, _victim

if TYPE_CHECKING:
    from tests.cluster_simulation.objects import Objects
    from tests.cluster_simulation.world import World

PUT: Final = "put_if_absent"


def _objects(world: World) -> Objects:
    assert world.objects is not None
    return world.objects


async def disks_lost(world: World) -> None:
    """Any number of disks at once, all of them too."""
    count = world.rng.randint(1, len(world.machines))
    for machine in world.rng.sample(world.machines, count):
        world.lose_disk(machine)


async def stop_and_lose(world: World) -> None:
    """A broker stops in order, and its disk goes with it."""
    machine = _victim(world)
    world.disturb([machine], 12.0)
    starts = machine.starts
    machine.stop()
    try:
        async with asyncio.timeout(10):
            while machine.alive and machine.starts == starts:
                await asyncio.sleep(0.05)
    except TimeoutError:
        return  # something else is wrong with it
    world.lose_disk(machine)


async def to_zero(world: World) -> None:
    await _objects(world).stop_all(lost=world.rng.choice((0.0, 0.5, 1.0)))


async def join(world: World) -> None:
    _objects(world).join()


async def wal_answers_lost(world: World) -> None:
    """Puts into write-ahead logs take effect, and nobody hears of it."""
    kinds = world.rng.sample((FaultKind.LOST_ANSWER, FaultKind.APPLIED_LATE, FaultKind.HANG_APPLIED), 2)
    share = world.rng.choice((0.2, 0.5, 0.9))
    late = (1, world.rng.choice((50, 1500, 5000)))
    faults = [Fault(one, PUT, layout.WAL_PREFIX, probability=share, latency_ms=late) for one in kinds]
    await _store(world, faults, world.rng.uniform(0.5, 5.0))


async def wal_out_of_order(world: World) -> None:
    """Puts into write-ahead logs take very different times."""
    late = (0, world.rng.choice((300, 1500)))
    faults = [Fault(FaultKind.LATENCY, PUT, layout.WAL_PREFIX, probability=0.7, latency_ms=late)]
    await _store(world, faults, world.rng.uniform(1.0, 6.0))


async def wal_away(world: World) -> None:
    await _store(
        world, [Fault(FaultKind.UNAVAILABLE, key_prefix=layout.WAL_PREFIX)], world.rng.choice((0.5, 2.0, 5.0, 12.0))
    )


async def wal_lies(world: World) -> None:
    kinds = [FaultKind.FLIPPED_BYTE, FaultKind.TORN_READ, FaultKind.SHORT_ANSWER]
    share = world.rng.choice((0.1, 0.3))
    faults = [Fault(one, key_prefix=layout.WAL_PREFIX, probability=share) for one in kinds]
    await _store(world, faults, world.rng.uniform(0.5, 3.0))


async def tier_away(world: World) -> None:
    """Segments cannot be put, while write-ahead logs go on: these grow."""
    await _store(world, [Fault(FaultKind.UNAVAILABLE, key_prefix=layout.DATA_PREFIX)], world.rng.uniform(1.0, 8.0))


async def alter_durability(world: World) -> None:
    history = world.any_history()
    if history is None:
        return
    before = "disk" if world.shape.disk else "memory"
    durability = (
        before if history.by_log and world.rng.random() < 0.9 else world.rng.choice(("object", "object", before))
    )
    await _objects(world).alter(history.topic, durability)


OBJECT_FAULTS: Final[dict[str, Callable[[World], Awaitable[None]]]] = {
    "alter durability": alter_durability,
    "disks lost": disks_lost,
    "join": join,
    "stop and lose": stop_and_lose,
    "tier away": tier_away,
    "to zero": to_zero,
    "wal answers lost": wal_answers_lost,
    "wal away": wal_away,
    "wal lies": wal_lies,
    "wal out of order": wal_out_of_order,
}
"""By name."""
