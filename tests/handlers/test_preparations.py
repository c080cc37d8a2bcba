"""Turns for batches that have to be decompressed: bounded memory, in the order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from app.core.errors import ErrorCode
from app.core.limits import MIB
from app.handlers.state.preparations import Preparations
from app.hot.preparation import DecompressesTooFar
from tests.handlers.conversation import batch

T = TypeVar("T")


class HeldPool:
    """Runs what it is given when the test says so."""

    def __init__(self) -> None:
        self.held: list[asyncio.Future[None]] = []

    async def run(self, work: Callable[[], T]) -> T:
        hold: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append(hold)
        await hold
        return work()


class FreePool:
    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()


class Growing:
    """A log whose batches decompress to ``raw_bytes``."""

    def __init__(self, raw_bytes: int = 0) -> None:
        self.raw_bytes = raw_bytes
        self.allowances: list[int] = []

    def prepare_append(self, records: memoryview, *, raw_bytes_max: int) -> bytearray:
        self.allowances.append(raw_bytes_max)
        if self.raw_bytes > raw_bytes_max:
            raise DecompressesTooFar(raw_bytes_max)
        return bytearray(records)


def connection() -> Any:
    return SimpleNamespace(closed=False, on_close=set())


def lose(one: Any) -> None:
    one.closed = True
    for waiting in tuple(one.on_close):
        waiting.cancel()


RECORDS = memoryview(b"records")


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_batches_beyond_the_bound_wait_and_get_their_turn_in_order() -> None:
    pool = HeldPool()
    turns = Preparations(pool, bytes_max=4 * MIB, batch_bytes_max=8 * MIB)
    tasks = [asyncio.ensure_future(turns.prepare(connection(), Growing(), RECORDS)) for _ in range(5)]
    await settle()
    assert (len(pool.held), turns.claimed_bytes, turns.waiting) == (2, 4 * MIB, 3)
    for done in range(5):
        pool.held[done].set_result(None)
        assert await tasks[done] == RECORDS
        await settle()
        assert len(pool.held) == min(5, done + 3)
    assert (turns.claimed_bytes, turns.waiting) == (0, 0)


async def test_one_batch_gets_its_turn_though_it_alone_is_over_the_bound_and_nobody_passes_it() -> None:
    pool = HeldPool()
    turns = Preparations(pool, bytes_max=3 * MIB, batch_bytes_max=32 * MIB)
    small, large, after = Growing(), Growing(30 * MIB), Growing()
    tasks = [asyncio.ensure_future(turns.prepare(connection(), log, RECORDS)) for log in (small, large, after)]
    await settle()
    for held in range(4):
        assert len(pool.held) == held + 1
        pool.held[held].set_result(None)
        await settle()
    assert [await task for task in tasks] == [RECORDS] * 3
    assert large.allowances == [MIB, 32 * MIB], "the whole limit only after a small allowance was too little"
    assert turns.claimed_bytes == 0


async def test_a_batch_over_the_limit_is_refused_and_gives_back_what_it_claimed() -> None:
    turns = Preparations(FreePool(), bytes_max=3 * MIB, batch_bytes_max=2 * MIB)
    with pytest.raises(DecompressesTooFar, match="more than 2097152 bytes") as refused:
        await turns.prepare(connection(), Growing(3 * MIB), RECORDS)  # type: ignore[arg-type]
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert turns.claimed_bytes == 0


@pytest.mark.parametrize("at", ["waiting", "first", "already gone"])
async def test_a_connection_that_ends_before_its_turn_leaves_the_queue(at: str) -> None:
    pool = HeldPool()
    turns = Preparations(pool, bytes_max=2 * MIB, batch_bytes_max=2 * MIB)
    clients = [connection() for _ in range(4)]
    gone = clients[1 if at == "first" else 2]
    if at == "already gone":
        lose(gone)
    tasks = [asyncio.ensure_future(turns.prepare(client, Growing(), RECORDS)) for client in clients]
    await settle()
    if at == "first":
        pool.held[0].set_result(None)
        lose(gone)  # in the same turn of the loop
    else:
        lose(gone)
    await settle()
    place = clients.index(gone)
    assert tasks[place].cancelled()
    for number in range(3):
        if not pool.held[number].done():
            pool.held[number].set_result(None)
        await settle()
    assert [task.cancelled() for task in tasks] == [client is gone for client in clients]
    assert (turns.claimed_bytes, turns.waiting) == (0, 0)
    assert all(not client.on_close for client in clients if client is not gone)


async def test_records_that_wait_for_their_turn_count_as_memory_of_requests(start, connect) -> None:
    bench = await start(queued_max_request_bytes=1)
    pool = HeldPool()
    bench.server.preparations = Preparations(pool, bytes_max=MIB, batch_bytes_max=MIB)
    from app.configs import TopicConfig

    bench.logs.add("t", config=TopicConfig(compression_type="gzip"))
    client = await connect(bench)
    sent = batch(3, value=bytes(1000))
    client.send_produce(9, [("t", [(0, sent)])])
    async with asyncio.timeout(60):
        while not pool.held:
            await asyncio.sleep(0.001)

    def memory() -> float:
        (sample,) = [one for one in bench.context.registry.samples() if one.name == "firn_request_memory_bytes"]
        return float(sample.value)

    assert memory() == len(sent)
    pool.held[0].set_result(None)
    await client.answer(0, 9)
    assert memory() == 0
