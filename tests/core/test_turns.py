"""Portions of long work (INV-15): when one is spent, and that others run in between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from app.core.turns import PORTION_S, STRIDE, Portion, each, ordered, run, whole
from tests.support.counted_loop import count_turns, on_counted_loop, work


@on_counted_loop
async def test_a_portion_is_spent_by_cpu_time_and_begins_again_after_a_rest() -> None:
    portion = Portion()
    work(PORTION_S * 0.9)
    assert not portion.spent()
    work(PORTION_S * 0.2)
    assert portion.spent()
    await portion.rest()
    assert not portion.spent()


@on_counted_loop
async def test_cheap_elements_look_at_the_clock_once_in_a_while() -> None:
    portion = Portion()
    work(2 * PORTION_S)
    assert [portion.spent_by() for _ in range(STRIDE)] == [False] * (STRIDE - 1) + [True]


@on_counted_loop
async def test_waiting_alone_does_not_spend_a_portion() -> None:
    portion = Portion()
    await asyncio.sleep(2 * PORTION_S)
    assert not portion.spent()


@on_counted_loop
async def test_one_piece_of_long_work_goes_on_in_each_turn_and_others_run_in_between() -> None:
    done: list[str] = []
    turns = 0

    async def long(name: str) -> None:
        portion = Portion()
        for _ in range(3):
            work(PORTION_S)
            done.append(f"{name}{turns}")
            await portion.rest()

    async def short() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.ensure_future(short())
    await asyncio.gather(*[long(name) for name in "abc"])
    others.cancel()
    # All begin at once, which is bounded by those who begin them. After that, each is alone in its turn.
    later = [one[1:] for one in done[3:]]
    assert [one[0] for one in done] == list("abcabcabc")
    assert len(set(later)) == len(later)


@on_counted_loop
async def test_urgent_work_goes_on_in_each_turn_however_much_other_work_waits() -> None:
    async def long() -> None:
        portion = Portion()
        for _ in range(20):
            work(PORTION_S)
            await portion.rest_if_spent()

    async def urgent() -> None:
        portion = Portion(urgent=True)
        for _ in range(10):
            work(PORTION_S)
            await portion.rest_if_spent()

    others = [asyncio.create_task(long()) for _ in range(5)]
    await asyncio.sleep(0)
    assert await count_turns(urgent()) <= 12
    assert not any(one.done() for one in others)
    await asyncio.gather(*others)


@on_counted_loop
async def test_a_cancelled_wait_for_a_portion_holds_up_no_other() -> None:
    async def long() -> str:
        portion = Portion()
        await portion.rest()
        return "done"

    first, second = asyncio.ensure_future(long()), asyncio.ensure_future(long())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "done"
    assert first.cancelled()


def steps(count: int, seconds: float) -> Generator[None, None, int]:
    for _ in range(count):
        work(seconds)
        yield
    return count


@on_counted_loop
async def test_a_generator_is_run_in_portions_and_its_result_returned() -> None:
    assert await run(steps(40, PORTION_S / 4)) == 40
    assert await count_turns(run(steps(40, PORTION_S / 4))) >= 9


@on_counted_loop
async def test_a_generator_that_fails_raises_its_error_and_is_closed() -> None:
    closed = []

    def failing() -> Generator[None, None, int]:
        try:
            yield
            raise ValueError("no")
        finally:
            closed.append(True)

    with pytest.raises(ValueError, match="no"):
        await run(failing())
    assert closed


@on_counted_loop
async def test_a_generator_run_at_once_gives_the_same() -> None:
    assert whole(steps(40, PORTION_S)) == 40


@on_counted_loop
async def test_items_are_worked_on_in_order_and_sorted_in_portions() -> None:
    seen: list[int] = []
    await each(seen.append, range(100))
    assert seen == list(range(100))
    numbers = [(7 * one) % 5_003 for one in range(5_003)]
    assert await ordered(numbers, Portion(), key=lambda one: one) == sorted(numbers)
