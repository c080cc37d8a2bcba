"""The gate that responses pass: shut while it is in doubt whether another broker has this one's place (ADR 0018)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from app.core.errors import FencedError, StorageUnavailable
from app.handlers.state.acknowledging import TICK_S, TOLD_INTERVAL_S, AcknowledgementGate
from app.metadata.peers.place import ASK_S, STOOD_STILL_S
from tests.support.virtual_loop import VirtualLoop, run_virtual

HERE, THERE = set[object](), set[object]()


class Suspendable:
    """A boot clock over a loop's time: ``skip`` is time that passes while nothing runs."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.skip_s = 0.0

    def __call__(self) -> float:
        return self._loop.time() + self.skip_s


class Gate:
    """A gate that runs, and what its look does."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = Suspendable(loop)
        self.lines: list[str] = []
        self.looks = 0
        self.opened = 0
        self.failure: Exception | None = None
        self.during_look: Callable[[], None] = lambda: None
        self.gate = AcknowledgementGate(self.clock, self.lines.append)
        self.gate.on_open(self._count)

    def _count(self) -> None:
        self.opened += 1

    async def look(self) -> None:
        await asyncio.sleep(0.05)
        self.looks += 1
        self.during_look()
        if self.failure is not None:
            raise self.failure

    def holds(self, connection: object = HERE) -> bool:
        """As a connection asks it."""
        return self.clock() > self.gate.sure_until_s and self.gate.holds(connection)


def run(story: Callable[[Gate], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        gate = Gate(loop)
        async with running(gate):
            await story(gate)

    run_virtual(main)


@asynccontextmanager
async def running(gate: Gate) -> AsyncIterator[None]:
    task = asyncio.create_task(gate.gate.run(gate.look))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_a_broker_that_runs_never_looks_however_long_it_runs() -> None:
    async def story(gate: Gate) -> None:
        for _ in range(1000):
            await asyncio.sleep(TICK_S * 1.7)
            assert not gate.holds()
        assert (gate.looks, gate.lines) == (0, [])

    run(story)


def test_after_standing_still_nothing_leaves_until_the_cluster_log_was_read() -> None:
    async def story(gate: Gate) -> None:
        gate.clock.skip_s += STOOD_STILL_S + 0.1
        assert gate.holds(), "whoever writes first notices it"
        assert gate.gate.shut
        assert "stood still for 3." in gate.lines[0]
        while gate.gate.shut:
            assert gate.holds()
            await asyncio.sleep(0.01)
        assert (gate.looks, gate.opened) == (1, 1)
        assert not gate.holds()

    run(story)


def test_the_tick_notices_it_if_nobody_writes() -> None:
    async def story(gate: Gate) -> None:
        gate.clock.skip_s += STOOD_STILL_S + 0.1
        await asyncio.sleep(TICK_S * 1.5)
        assert gate.looks == 1

    run(story)


def test_a_short_pause_is_none() -> None:
    async def story(gate: Gate) -> None:
        gate.clock.skip_s += STOOD_STILL_S - TICK_S - 0.1
        assert not gate.holds()
        await asyncio.sleep(5)
        assert gate.looks == 0

    run(story)


def test_while_the_store_is_away_the_doubt_stays_and_is_told_once() -> None:
    async def story(gate: Gate) -> None:
        gate.failure = StorageUnavailable("the store is away")
        gate.clock.skip_s += 60
        for _ in range(100):
            await asyncio.sleep(1)
            assert gate.holds()
        assert len([line for line in gate.lines if "held back" in line]) == 1
        gate.failure = None
        await asyncio.sleep(1)
        assert not gate.holds()
        assert "can be read again" in gate.lines[-1]

    run(story)


def test_a_look_that_was_paused_in_its_midst_does_not_count() -> None:
    async def story(gate: Gate) -> None:
        def pause_once() -> None:
            if gate.looks == 1:
                gate.clock.skip_s += 60

        gate.during_look = pause_once
        gate.clock.skip_s += 60
        assert gate.holds()
        await asyncio.sleep(0.06)
        assert gate.looks == 1
        assert gate.holds(), "what it read may be older than the pause"
        await asyncio.sleep(1)
        assert gate.looks == 2
        assert not gate.holds()

    run(story)


def test_a_look_that_began_before_somebody_told_does_not_count() -> None:
    async def story(gate: Gate) -> None:
        gate.clock.skip_s += 60
        assert gate.holds()
        await asyncio.sleep(0.02)
        assert gate.gate.be_told(HERE)
        await asyncio.sleep(0.04)
        assert gate.looks == 1
        assert gate.holds(THERE)
        await asyncio.sleep(0.06)
        assert gate.looks == 2
        assert not gate.holds(THERE)

    run(story)


def test_who_is_told_answers_the_teller_and_nobody_else_before_it_has_looked() -> None:
    async def story(gate: Gate) -> None:
        assert gate.gate.be_told(HERE)
        assert gate.holds(THERE)
        assert not gate.holds(HERE)
        assert gate.holds(HERE), "once"
        await asyncio.sleep(0.1)
        assert not gate.holds(THERE)

    run(story)


def test_forged_messages_cost_a_look_now_and_then_and_no_more() -> None:
    async def story(gate: Gate) -> None:
        for _ in range(1000):
            gate.gate.be_told(HERE)
            await asyncio.sleep(0.01)
        assert gate.looks <= 10 / TOLD_INTERVAL_S + 1
        assert not gate.holds()

    run(story)


def test_a_broker_that_was_replaced_never_answers_again() -> None:
    async def main(loop: VirtualLoop) -> None:
        gate = Gate(loop)
        gate.failure = FencedError("taken over")
        task = asyncio.create_task(gate.gate.run(gate.look))
        await asyncio.sleep(0)
        gate.clock.skip_s += 60
        assert gate.holds()
        await asyncio.wait([task])
        errors = task.exception()
        assert isinstance(errors, BaseExceptionGroup)
        assert errors.subgroup(FencedError) is not None
        assert gate.holds()
        assert gate.opened == 0

    run_virtual(main)


def test_who_asks_waits_longer_than_a_broker_may_stand_still_without_looking() -> None:
    assert STOOD_STILL_S + TICK_S < ASK_S
