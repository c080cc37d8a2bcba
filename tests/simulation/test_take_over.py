"""Take-overs while producers write to both brokers: the old one runs, stands still, or is cut off from the store (ADR 0018).

Each story is told of a store of level 0, which is of one broker, and of a cluster of one broker (ADR 0023, AL3). It ends with one
broker. On the way the old one acknowledges nothing that it was sent after the new one served, but in the cut that the decision
names. The old behaviour, planted back piece by piece, is found within a stated number of seeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from app.configs import TopicConfig
from app.core.errors import ErrorCode, FencedError
from app.handlers.state.acknowledging import AcknowledgementGate
from app.metadata.image.records import LEVEL_MAX
from app.metadata.peers.liveness import BEAT_INTERVAL_MS, SILENCE_MS_MAX
from app.metadata.view.registration import Registration, StartRefused
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.sim.wire import Wire
from tests.simulation.machine import Machine
from tests.simulation.small import SMALL, Client, move
from tests.simulation.world import Outcome, World, run_seed

STORIES = ("running", "suspended", "paused", "paused till asked", "paused again and again", "cut off", "asymmetric")
LEVELS = (0, LEVEL_MAX)
SEEDS = 14
SLOW_SEEDS = 360
SETTINGS: TopicConfig = SMALL
NOTICED_S = BEAT_INTERVAL_MS / 1000 + 10


class Writer(Client):
    """Writes to one machine, whoever leads, and holds what it hears against the rule."""

    def __init__(self, world: World, target: Machine) -> None:
        super().__init__(world, f"to {target.name}")
        self.machine = target
        self.acknowledged = 0

    def connect(self) -> Wire:
        machine = self.machine
        assert machine is not None
        if self.wire is None or not self.wire.open:
            if not machine.up or machine.node is None or machine.process is None or machine.process.dead:
                raise Unreachable
            self.wire = Wire(
                self.world.loop, self.world.new_rng(), machine.process, machine.node.server, self.world.outside, 0.0
            )
            machine.wires.append(self.wire)
        return self.wire

    async def run(self) -> None:
        """Send on, answered or not: what arrives while a broker stands still is served when it goes on."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.1, 0.6))
            self.world._go(self._write())

    async def _write(self) -> None:
        sent_s = self.world.loop.time()
        try:
            async with asyncio.timeout(90):
                code = await self.produce()
        except (Unreachable, ConnectionResetError):
            return
        except TimeoutError:
            self.hang_up()
            return
        if code is ErrorCode.NONE:
            assert self.machine is not None
            self.acknowledged += 1
            if not self.world.brokers_cut_apart:
                self.world.one_acknowledges.acked(self.machine, sent_s)


async def start_unforced(world: World, new: Machine, seconds: float) -> None:
    """Try for some time to start without force."""
    end_s = world.loop.time() + seconds
    while not new.up and world.loop.time() < end_s:
        if new.process is None or new.process.dead:
            new.start()
        await asyncio.sleep(1.5)


async def a_take_over(world: World) -> None:
    rng = world.rng
    story = STORIES[world.seed % len(STORIES)]
    forced = world.seed // len(STORIES) % 2 == 1 or story in ("running", "asymmetric")
    old = world.owner
    assert old.process is not None
    assert old.store is not None
    first = Writer(world, old)
    await first.create()
    new = Machine(world, "b")
    world.machines.append(new)
    second = Writer(world, new)
    second.topic_id = first.topic_id
    world._go(first.run())
    world._go(second.run())
    await asyncio.sleep(rng.uniform(1.0, 12.0))
    before = first.acknowledged
    assert before > 0

    if story in ("cut off", "asymmetric"):
        old.store.cut_off = True
    if story == "asymmetric":
        world.brokers_cut_apart = True
    if story.startswith("paused") or story == "suspended":
        old.process.pause()
    world.paused_hear_nothing = story == "suspended"
    if forced:
        world._go(blinking(world, old) if story == "paused again and again" else nothing())
        if story == "paused till asked":
            world._go(resumed_after(world, old, rng.uniform(0.0, 12.0)))
        await world.bring_up(new)
    else:
        if story == "paused till asked":
            # It goes on at about the time when the other has heard nothing for long enough, asks, registers, and tells.
            world._go(resumed_after(world, old, SILENCE_MS_MAX / 1000 + rng.uniform(-4.0, 14.0)))
        if story == "paused again and again":
            world._go(blinking(world, old))
        await start_unforced(world, new, SILENCE_MS_MAX / 1000 + 25)
    await asyncio.sleep(rng.uniform(0.0, 6.0))
    old.process.resume()
    if story == "cut off" and not forced:
        if not isinstance(new.exit, StartRefused) or "answers at a:" not in str(new.exit):
            raise Violation("the start", f"beside a broker that answers: {new.exit}")
        assert first.acknowledged > before, "cut off from the store only, it goes on"
    await asyncio.sleep(rng.uniform(1.0, 25.0))
    old.store.cut_off = False
    await asyncio.sleep(NOTICED_S + 5)
    world.brokers_cut_apart = False
    if new.up:
        assert isinstance(old.exit, FencedError), old.exit
        await asyncio.sleep(2)
        assert second.acknowledged > 0
    else:
        assert old.up, old.exit


async def nothing() -> None:
    """For whoever has nothing else to do."""


async def resumed_after(world: World, machine: Machine, seconds: float) -> None:
    await asyncio.sleep(seconds)
    assert machine.process is not None
    machine.process.resume()


async def blinking(world: World, machine: Machine) -> None:
    """It stands still, goes on for a moment, stands still."""
    process = machine.process
    assert process is not None
    for _ in range(12):
        await asyncio.sleep(world.rng.uniform(0.5, 9.0))
        process.resume()
        await asyncio.sleep(world.rng.uniform(0.01, 0.8))
        if process.dead:
            return
        process.pause()


def played(seed: int, level: int) -> Outcome:
    return run_seed(seed, script=a_take_over, topic_defaults=SETTINGS, new_level=level)


@pytest.mark.ci
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("start", range(0, SEEDS, len(STORIES)))
def test_after_a_take_over_only_one_broker_acknowledges(start: int, level: int) -> None:
    for seed in range(start, start + len(STORIES)):
        outcome = played(seed, level)
        assert outcome.violation is None, (seed, outcome.violation, outcome.lines[-30:])


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("start", range(10_000, 10_000 + SLOW_SEEDS, 60))
def test_after_hundreds_of_take_overs_only_one_broker_acknowledges(start: int, level: int) -> None:
    for seed in range(start, start + 60):
        outcome = played(seed, level)
        assert outcome.violation is None, (seed, outcome.violation, outcome.lines[-30:])


def never_in_doubt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AcknowledgementGate, "holds", lambda _gate, _connection: False)


def does_not_notice_that_it_stood_still(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("app.handlers.state.acknowledging.STOOD_STILL_S", 1e9)


def tells_nobody(patch: pytest.MonkeyPatch) -> None:
    async def silent(*_: object) -> None: ...

    patch.setattr(Registration, "_tell_replaced", silent)


def asks_nobody(patch: pytest.MonkeyPatch) -> None:
    ask = Registration._ask

    async def only_tells(registration: Registration, cluster_id: str, broker: object, replaced_by: str = "") -> object:
        return await ask(registration, cluster_id, broker, replaced_by) if replaced_by else None  # type: ignore[arg-type]

    patch.setattr(Registration, "_ask", only_tells)


OLD_BEHAVIOUR: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int, str]] = {
    "nothing is held back": (never_in_doubt, 9, "INV-1"),
    "who stood still goes on": (does_not_notice_that_it_stood_still, 9, "INV-1"),
    "the old broker is not told": (tells_nobody, 2, "INV-1"),
    "the old broker is not asked": (asks_nobody, 6, "the start"),
}
"""How each is planted, within how many seeds it is found, and by which rule."""


@pytest.mark.ci
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", OLD_BEHAVIOUR)
def test_the_old_behaviour_is_found(name: str, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, seeds, invariant = OLD_BEHAVIOUR[name]
    plant(monkeypatch)
    for seed in range(seeds):
        violation = played(seed, level).violation
        if violation is not None:
            assert violation.invariant == invariant, violation
            return
    pytest.fail(f"not found in {seeds} seeds")


@pytest.mark.parametrize("level", LEVELS)
def test_the_old_broker_names_the_offsets_that_its_successor_does_not_have_and_no_others(level: int) -> None:
    """Though its successor has tiered records of its own under the same offsets meanwhile."""

    async def story(world: World) -> None:
        old = world.owner
        client = Client(world, "c")
        await client.create()
        for _ in range(5):
            assert await client.produce(size=300) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > 0, 30, "the tier")
        for _ in range(3):
            assert await client.produce(size=300) is ErrorCode.NONE
        old_client = Client(world, "old")
        old_client.topic_id = client.topic_id
        old_client.connect()
        world.brokers_cut_apart = True  # it finds out by its next look
        assert old.store is not None
        old.store.cut_off = True
        await move(world)
        client.hang_up()
        start = int(client.log.log_end_offset)
        for _ in range(2):
            assert await old_client.produce(size=300) is ErrorCode.NONE
        assert old.node is not None
        end = int(old.node.logs.get("t", 0).log_end_offset)  # type: ignore[union-attr,arg-type]
        assert end > start
        writer = Writer(world, world.owner)
        writer.topic_id = client.topic_id
        for _ in range(end - start + 6):
            assert await writer.produce(size=300) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > end, 30, "the successor's own records to be tiered")
        assert old.up
        old.store.cut_off = False
        await world.until(lambda: old.exit is not None, 30, "the old one to end")
        (told,) = [line for line in world.lines if "are only in /data" in line]
        assert told.endswith(f"other records: t-0 [{start}, {end})')"), told

    outcome = run_seed(1, script=story, topic_defaults=SETTINGS, new_level=level)
    assert outcome.violation is None, outcome.violation
