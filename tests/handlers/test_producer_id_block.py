"""A broker's block of producer ids: who waits for one waits for a bounded time, and the office may pass meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected, StorageUnavailable
from app.handlers.apis.producer_ids import handle
from app.handlers.state.producer_id_block import TAKEN_WITHIN_S, ProducerIds
from app.metadata.controller.controller import not_controller
from app.wire.apis.init_producer_id import InitProducerIdRequest
from tests.support.virtual_loop import VirtualLoop, run_virtual


class FakeController:
    """Grants blocks of two, after what ``before`` does for each call."""

    def __init__(self, before: Callable[[int], Any]) -> None:
        self.calls = 0
        self._before = before

    async def allocate_producer_ids(self) -> range:
        self.calls += 1
        await self._before(self.calls)
        return range(10 * self.calls, 10 * self.calls + 2)


def ids_of(before: Callable[[int], Any]) -> ProducerIds:
    return ProducerIds(FakeController(before))  # type: ignore[arg-type]


async def refusal_of(ids: ProducerIds) -> RequestRejected:
    with pytest.raises(RequestRejected) as refused:
        await ids.take()
    return refused.value


def test_that_the_office_passes_is_not_told_to_clients() -> None:
    async def before(call: int) -> None:
        if call < 3:
            raise not_controller()

    async def main(_: VirtualLoop) -> None:
        ids = ids_of(before)
        assert [await ids.take() for _ in range(3)] == [30, 31, 40]

    run_virtual(main)


def test_all_who_wait_for_a_block_are_answered_in_time() -> None:
    granted = asyncio.Event()

    async def main(loop: VirtualLoop) -> None:
        ids = ids_of(lambda _: granted.wait())
        refused = await asyncio.gather(*(refusal_of(ids) for _ in range(5)))
        assert {one.code for one in refused} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert loop.time() <= TAKEN_WITHIN_S + 1
        granted.set()
        assert await ids.take() >= 10, "a later block serves"

    run_virtual(main)


def test_a_controller_that_is_never_found_is_told_in_a_code_on_which_clients_ask_again() -> None:
    async def for_ever(call: int) -> None:
        raise not_controller()

    async def no_bucket(call: int) -> None:
        raise StorageUnavailable("the bucket is gone")

    async def main(_: VirtualLoop) -> None:
        for before in (for_ever, no_bucket):
            context: Any = type("Context", (), {"producer_ids": ids_of(before)})
            answer = handle(context, None, InitProducerIdRequest(transactional_id=None))  # type: ignore[arg-type]
            with pytest.raises(RequestRejected) as refused:
                await answer  # type: ignore[misc]
            assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    run_virtual(main)
