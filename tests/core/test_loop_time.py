"""The clock of the running loop."""

from __future__ import annotations

import asyncio

import pytest

from app.core.loop_time import loop_time_ms, loop_time_s
from tests.support.virtual_loop import run_virtual


def test_time_is_the_time_of_the_running_loop_and_of_no_other() -> None:
    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        began_s = loop_time_s()
        assert began_s == loop.time()
        await asyncio.sleep(2.5)
        assert loop_time_s() - began_s == pytest.approx(2.5)

    run_virtual(scenario)
    with pytest.raises(RuntimeError):
        loop_time_s()


def test_a_millisecond_that_came_by_a_division_is_whole() -> None:
    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        for timer_ms in range(1, 3000):
            await asyncio.sleep(timer_ms / 1000 - loop.time())
            assert loop_time_ms() == timer_ms

    run_virtual(scenario)
