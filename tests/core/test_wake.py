"""Waits for one moment."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from app.core.wake import Wake


def test_each_callback_is_called_once_in_the_order_of_arrival() -> None:
    wake = Wake()
    called: list[str] = []
    for name in "abc":
        wake.add(partial(called.append, name))
    assert len(wake) == 3
    wake.wake()
    wake.wake()
    assert (called, len(wake)) == (["a", "b", "c"], 0)


def test_a_cancelled_callback_is_not_called_and_a_second_cancel_ends_no_other_wait() -> None:
    wake = Wake()
    called: list[str] = []
    cancel = wake.add(lambda: called.append("first"))
    cancel()
    wake.add(lambda: called.append("second"))
    cancel()
    wake.wake()
    assert called == ["second"]


def test_a_callback_that_waits_again_is_called_at_the_next_wake() -> None:
    wake = Wake()
    called: list[int] = []

    def again() -> None:
        called.append(len(called))
        wake.add(again)

    wake.add(again)
    wake.wake()
    assert called == [0]
    wake.wake()
    assert called == [0, 1]


async def test_all_tasks_that_wait_go_on_and_a_cancelled_one_leaves_nothing() -> None:
    wake = Wake()
    tasks = [asyncio.create_task(wake.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(wake) == 3
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert len(wake) == 2
    wake.wake()
    await asyncio.gather(*tasks[1:])
    assert len(wake) == 0
