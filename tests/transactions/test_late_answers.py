"""A request of a broker to add partitions: a log that stores nothing takes no time from the others (ADR 0026, XV6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import ErrorCode
from app.handlers.apis.transactions import ADDED_WITHIN_S, ENDED_AT_ONCE, handle_add_partitions
from app.wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from app.wire.schema import ZERO_UUID
from tests.support.virtual_loop import VirtualLoop

MANY = 4 * ENDED_AT_ONCE
STORED_S = 2.3


class Logs:
    """Two logs of a coordinator. That of ids that begin with ``slow`` stores nothing."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.added: list[str] = []
        self.left = 0

    def add_partitions(self, transactional_id: str, *_: Any) -> Awaitable[Any]:
        self.added.append(transactional_id)
        stored: asyncio.Future[Any] = self.loop.create_future()
        if not transactional_id.startswith("slow"):
            self.loop.call_later(STORED_S, lambda: stored.done() or stored.set_result(None))
        return self._wait(stored)

    async def _wait(self, stored: asyncio.Future[Any]) -> None:
        await stored

    def epoch_of(self, _: str) -> int:
        return 1


def context_of(logs: Logs) -> Any:
    topic = SimpleNamespace(partitions=[None], topic_id=ZERO_UUID, is_internal=False)
    return SimpleNamespace(image=SimpleNamespace(topic=lambda _: topic), transactions=logs, authorizer=None)


def asked(*names: str) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic("t", [0])]
    return AddPartitionsToTxnRequest([AddPartitionsToTxnTransaction(name, 1, 0, False, topics) for name in names])


def codes_of(answer: Any) -> dict[str, int]:
    return {
        one.transactional_id: one.topic_results[0].results_by_partition[0].partition_error_code
        for one in answer.results_by_transaction
    }


def serve(loop: VirtualLoop, logs: Logs, *names: str) -> asyncio.Task[Any]:
    request: Any = SimpleNamespace(api_version=5)
    return loop.create_task(handle_add_partitions(context_of(logs), request, asked(*names)))


@pytest.fixture
def loop() -> Any:
    loop = VirtualLoop(seconds_max=100)
    yield loop
    loop.close()


def test_a_slow_item_is_told_after_the_time_of_one_item_and_the_others_are_added(loop: VirtualLoop) -> None:
    names = [f"{'slow' if place % ENDED_AT_ONCE == 0 else 'quick'}{place}" for place in range(MANY)]
    logs = Logs(loop)
    codes = codes_of(loop.run_until_complete(serve(loop, logs, *names)))
    assert loop.time() == pytest.approx(ADDED_WITHIN_S)
    late = {name for name, code in codes.items() if code == ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert late == {name for name in names if name.startswith("slow")}
    assert {code for name, code in codes.items() if name not in late} == {ErrorCode.NONE}
    assert logs.added == names


def test_items_that_all_wait_for_one_put_are_answered_after_one(loop: VirtualLoop) -> None:
    names = [f"quick{place}" for place in range(MANY)]
    codes = codes_of(loop.run_until_complete(serve(loop, Logs(loop), *names)))
    assert loop.time() == pytest.approx(STORED_S)
    assert set(codes.values()) == {ErrorCode.NONE}


def test_a_request_whose_connection_has_closed_leaves_nothing_behind(loop: VirtualLoop) -> None:
    names = [f"slow{place}" for place in range(MANY)]
    work = serve(loop, Logs(loop), *names)

    async def leave() -> None:
        await asyncio.sleep(1.0)
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    loop.run_until_complete(leave())
