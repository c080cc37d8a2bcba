"""Whole brokers whose loops stand while their threads for pulses go on (ADR 0023: L6, C10). Each run meets one scenario, once.

Four checkers judge:

- **kept**: a broker is not fenced, and the controller is not deposed.
- **fenced**: a broker whose loop does not come back is.
- **not isolated in spite of pulses**: pulses of a controller whose loop stands keep no other broker from being isolated (ADR 0040).
- **answers**: a broker whose loop stood for longer than a session time-out answers nothing until it has read the cluster log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from tests.cluster_simulation import isolation
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.cluster_simulation.machine import ClusterMachine
    from tests.cluster_simulation.world import World

KEPT: Final = "kept"
FENCED: Final = "fenced"
IN_SPITE_OF_PULSES: Final = "not isolated in spite of pulses"
ANSWERS: Final = "answers"
"""Names of the checkers."""

LOOK_S: Final = 0.05
BACK_S: Final = 10.0
STOPPED_S: Final = 3.8
"""Within which a broker that sends nothing is fenced: its last heartbeat, a session time-out, and a look."""


@asynccontextmanager
async def _stands(world: World, machine: ClusterMachine, seconds: float, *, thread: bool) -> AsyncIterator[None]:
    """The loop stands for so long from here on; the thread goes on, or stands too."""
    process, pulses = machine.process, machine.pulses
    assert process is not None
    assert pulses is not None
    end_s = world.loop.time() + seconds
    world.disturb(world.machines, seconds + 20.0)
    world.trace("stands", process.name, seconds, thread)
    process.pause()
    if not thread:
        pulses.process.pause()
    try:
        yield
        await asyncio.sleep(max(end_s - world.loop.time(), 0.0))
    finally:
        world.trace("turns", process.name)
        process.resume()
        if not thread:
            pulses.process.resume()


def _fenced(world: World, machine: ClusterMachine) -> bool:
    return world.newest.brokers[machine.node_id].fenced  # type: ignore[index]


async def _kept(world: World, machine: ClusterMachine, seconds: float) -> None:
    before = world.newest
    async with _stands(world, machine, seconds, thread=True):
        pass
    await asyncio.sleep(BACK_S)
    newest, mine = world.newest, machine.node_id
    if newest.controller != before.controller:
        raise Violation(KEPT, f"broker {before.controller.broker_id} is not the controller any more")
    if newest.brokers[mine].changed_at != before.brokers[mine].changed_at:  # type: ignore[index]
        raise Violation(KEPT, f"{machine.name} was fenced")


async def slow_broker(world: World) -> None:
    """A broker alone is starved for 4 or 8 s."""
    await isolation._steady(world)
    await _kept(world, isolation._any_but_controller(world), world.rng.choice((4.0, 8.0)))


async def slow_controller(world: World) -> None:
    """The controller alone is starved for 4 or 8 s."""
    await isolation._steady(world)
    await _kept(world, isolation._controller(world), world.rng.choice((4.0, 8.0)))


async def hangs(world: World) -> None:
    """The loop of a broker, or of the controller, does not turn for 14 s: clients get on."""
    probes, _ = await isolation._steady(world)
    victim = world.rng.choice(world.machines)
    isolation._settle(probes, victim.node_id)
    async with _stands(world, victim, 14.0, thread=True):
        # The longest: the controller is deposed after 9 s, and its successor fences it after one session time-out (C5).
        await world.until(lambda: _fenced(world, victim), 13.5, f"{victim.name} to be fenced", FENCED)
    await world.until(lambda: not _fenced(world, victim), BACK_S, f"{victim.name} to be back", FENCED)


async def stops(world: World) -> None:
    """A process stands still, and its thread with it: it is fenced as soon as without pulses."""
    await isolation._steady(world)
    victim = isolation._any_but_controller(world)
    async with _stands(world, victim, 8.0, thread=False):
        await world.until(lambda: _fenced(world, victim), STOPPED_S, f"{victim.name} to be fenced", FENCED)


async def hears_pulses_alone(world: World) -> None:
    """A broker reaches nothing but the controller, whose loop stands and whose thread goes on: it is isolated."""
    await isolation._steady(world)
    controller = isolation._controller(world)
    victim = isolation._any_but_controller(world)
    others = isolation._others(world, controller, victim)
    ways = [way for one in others for way in ((victim.name, one.name), (one.name, victim.name))]
    async with _stands(world, controller, 16.0, thread=True):
        world.network.cut(ways)
        victim.cut_bucket(True)
        try:
            await world.until(
                lambda: isolation._isolated(victim), 12.0, f"{victim.name} to be isolated", IN_SPITE_OF_PULSES
            )
        finally:
            world.network.heal(ways)
            victim.cut_bucket(False)


async def slow_and_cut_off(world: World) -> None:
    """The loop of a leader stands for 5 s, and it is cut off from the bucket when it goes on. Its thread was heard all the time."""
    await isolation._steady(world)
    victim = isolation._any_but_controller(world)
    async with _stands(world, victim, 5.0, thread=True):
        victim.cut_bucket(True)
    try:
        for _ in range(int(4.0 / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            node = victim.node
            assert node is not None
            gate = node.context.gate
            if not gate.shut and not gate.holds(None):
                raise Violation(ANSWERS, f"{victim.name} answers, and has not read the cluster log")
    finally:
        victim.cut_bucket(False)
    node = victim.node
    assert node is not None
    await world.until(lambda: not node.context.gate.shut, BACK_S, f"{victim.name} to answer again", ANSWERS)


_Scenario = Callable[["World"], Awaitable[None]]

SLOW: Final[dict[str, _Scenario]] = {
    "slow broker": isolation._once(slow_broker),
    "slow controller": isolation._once(slow_controller),
    "loop hangs": isolation._once(hangs),
    "process stops": isolation._once(stops),
    "pulses alone heard": isolation._once(hears_pulses_alone),
    "slow and cut off": isolation._once(slow_and_cut_off),
}
"""By name. A run names exactly one of them."""

SHAPE: Final = isolation.SHAPE | {"pulses": True}
