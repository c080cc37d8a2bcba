"""Waits until an end of a log has passed an offset."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest

from app.core.errors import StorageUnavailable
from app.hot.offset_queue import OffsetQueue, failed_wait


def _done(waits: dict[int, Any]) -> list[int]:
    return sorted(name for name, wait in waits.items() if wait.done())


async def test_an_end_completes_the_waits_that_it_has_passed_and_no_other() -> None:
    queue = OffsetQueue()
    waits: dict[int, Any] = {offset_end: queue.wait(offset_end) for offset_end in (3, 6, 9)}
    queue.reached(2)
    assert _done(waits) == []
    queue.reached(6)
    assert (_done(waits), len(queue)) == ([3, 6], 1)
    queue.reached(100)
    assert (_done(waits), len(queue)) == ([3, 6, 9], 0)


async def test_a_cut_ends_the_waits_above_it_and_no_other() -> None:
    queue = OffsetQueue()
    waits: dict[int, Any] = {offset_end: queue.wait(offset_end) for offset_end in (3, 6, 9)}
    queue.fail_above(6, StorageUnavailable("Cut."))
    assert (_done(waits), len(queue)) == ([9], 2)
    with pytest.raises(StorageUnavailable, match="Cut"):
        await waits[9]
    queue.reached(6)
    assert (_done(waits), len(queue)) == ([3, 6, 9], 0)


@pytest.mark.parametrize("seed", range(20))
async def test_waits_in_any_order_end_exactly_when_their_offset_is_passed(seed: int) -> None:
    rng = random.Random(seed)
    queue, end = OffsetQueue(), 0
    waits: list[tuple[int, Any]] = []
    for _ in range(200):
        if rng.random() < 0.7:
            offset_end = rng.randint(end + 1, end + 20)
            waits.append((offset_end, queue.wait(offset_end)))
        else:
            end += rng.randint(0, 10)
            queue.reached(end)
        assert all(wait.done() == (offset_end <= end) for offset_end, wait in waits)
    assert len(queue) == sum(offset_end > end for offset_end, _ in waits)


async def test_a_failure_ends_all_present_waits_with_their_own_errors_and_later_waits_go_on() -> None:
    queue, error = OffsetQueue(), StorageUnavailable("The directory is offline.")
    first, second = queue.wait(3), queue.wait(6)
    queue.fail(error)
    raised = await asyncio.gather(first, second, return_exceptions=True)
    assert [str(one) for one in raised] == ["The directory is offline."] * 2
    assert len({id(one) for one in (*raised, error)}) == 3
    later = queue.wait(9)
    queue.reached(9)
    await later


async def test_a_cancelled_wait_disturbs_no_other() -> None:
    queue = OffsetQueue()
    first: Any = queue.wait(3)
    second = queue.wait(3)
    first.cancel()
    queue.reached(3)
    await second
    assert first.cancelled()


async def test_a_failed_wait_that_no_caller_looks_at_is_no_fault_of_the_loop() -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    queue = OffsetQueue()
    queue.wait(3)
    queue.fail(StorageUnavailable("The directory is offline."))
    gc.collect()
    assert reported == []


async def test_a_wait_after_the_failure_raises_it() -> None:
    with pytest.raises(StorageUnavailable, match="is offline"):
        await failed_wait(StorageUnavailable("The directory is offline."))
