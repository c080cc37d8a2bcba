"""The virtual loop is itself under test: everything the simulation claims rests on it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.support.virtual_loop import Deadlock, VirtualClock, VirtualLoop, VirtualPool, run_virtual


def test_sleeping_moves_virtual_time_only() -> None:
    async def main(loop: VirtualLoop) -> tuple[float, int]:
        clock = VirtualClock(loop, epoch_ms=1000)
        await asyncio.sleep(86_400)
        return loop.time(), clock.now_ms()

    assert run_virtual(main) == (86_400.0, 86_401_000)


def test_waiting_for_nothing_is_a_deadlock_not_a_hang() -> None:
    async def main(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        run_virtual(main)


def test_endless_retrying_is_found() -> None:
    async def main(loop: VirtualLoop) -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Deadlock):
        run_virtual(main, seconds_max=100)


def test_turning_without_end_at_one_time_is_found() -> None:
    async def main(loop: VirtualLoop) -> None:
        await asyncio.sleep(1)
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Deadlock, match="turns and turns"):
        run_virtual(main)


def test_a_moment_comes_for_two_that_wait_for_it_from_just_before() -> None:
    """By less than the resolution of the clock, so that each timer is run at once."""

    async def wait(loop: VirtualLoop, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        while loop.time() < 1.0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(1.0):
                    await asyncio.Event().wait()

    async def main(loop: VirtualLoop) -> float:
        await asyncio.sleep(1.0 - 1e-11)
        await asyncio.gather(wait(loop, 0), wait(loop, 1))
        return loop.time()

    assert run_virtual(main) == 1.0


def test_pool_work_goes_on_when_its_caller_is_cancelled() -> None:
    done: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        pool = VirtualPool(lambda: 5.0)
        task = loop.create_task(pool.run(lambda: done.append("written")))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(10)

    run_virtual(main)
    assert done == ["written"]


def test_a_task_that_fails_unseen_fails_the_run() -> None:
    async def main(loop: VirtualLoop) -> None:
        def fail() -> None:
            raise ValueError("nobody looks")

        loop.call_soon(fail)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="nobody looks"):
        run_virtual(main)
