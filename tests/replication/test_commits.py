"""The queue of those who wait for commits of a partition."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from app.core.errors import FirnError, NotLeader, StorageUnavailable
from app.core.units import BrokerId, LeaderEpoch
from app.replication.commits import NEVER_S, CommitQueue, FutureWaiter, Waiter


class Told(Waiter):
    def __init__(self, heard: list[str], offset_end: int, due_s: float = NEVER_S) -> None:
        self.offset_end, self.due_s = offset_end, due_s
        self._heard = heard

    def committed(self) -> None:
        self._heard.append(f"{self.offset_end} committed")

    def failed(self, error: FirnError) -> None:
        self._heard.append(f"{self.offset_end} {type(error).__name__}")

    def out_of_time(self) -> None:
        self._heard.append(f"{self.offset_end} late")


async def test_a_commit_tells_those_that_it_reaches_in_order_and_once():
    queue, heard = CommitQueue(), []
    for offset_end in (3, 6, 6, 9):
        queue.add(Told(heard, offset_end))
    queue.reached(2)
    assert heard == []
    queue.reached(6)
    queue.reached(6)
    assert heard == ["3 committed", "6 committed", "6 committed"]
    queue.reached(100)
    assert heard[3:] == ["9 committed"]
    assert queue.empty


async def test_a_duplicate_waits_for_its_original_and_not_for_what_came_later():
    queue, heard = CommitQueue(), []
    for offset_end in (3, 6, 9, 3, 6):
        queue.add(Told(heard, offset_end))
    queue.reached(6)
    assert heard == ["3 committed", "3 committed", "6 committed", "6 committed"]


async def test_who_may_wait_no_longer_is_told_why():
    queue, heard = CommitQueue(), []
    queue.add(Told(heard, 3))
    waiter = FutureWaiter(6)
    queue.add(waiter)
    queue.fail(NotLeader("another leads", BrokerId(2), LeaderEpoch(5)))
    assert (heard, queue.empty) == (["3 NotLeader"], True)
    with pytest.raises(NotLeader):
        await waiter.future


async def test_a_future_that_was_cancelled_is_left_alone():
    queue = CommitQueue()
    first, second = FutureWaiter(3), FutureWaiter(6)
    for waiter in (first, second):
        queue.add(waiter)
        waiter.future.cancel()
    queue.reached(3)
    queue.fail(StorageUnavailable("gone"))
    assert first.future.cancelled()
    assert second.future.cancelled()


async def test_those_whose_time_is_up_are_told_and_the_others_go_on_waiting():
    queue, heard = CommitQueue(), []
    now_s = asyncio.get_running_loop().time()
    for offset_end, due_s in ((3, now_s + 60), (6, now_s), (9, NEVER_S), (12, now_s)):
        queue.add(Told(heard, offset_end, due_s))
    while len(heard) < 2:
        await asyncio.sleep(0)
    assert heard == ["6 late", "12 late"]
    queue.reached(12)
    assert heard[2:] == ["3 committed", "9 committed"]


def test_those_whose_time_is_up_when_they_come_are_told_on_the_brokers_own_loop():
    """Produce with a time-out of 0 ms. uvloop's handle of a wait that rounds to 0 ms does not say when it is due."""

    async def come() -> None:
        queue, heard = CommitQueue(), []
        now_s = asyncio.get_running_loop().time
        for offset_end in (3, 6, 9):
            queue.add(Told(heard, offset_end, now_s()))
        async with asyncio.timeout(30):
            while not queue.empty:
                await asyncio.sleep(0)
        assert heard == ["3 late", "6 late", "9 late"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(come())
