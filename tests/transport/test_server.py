"""A server, the requests that wait in it, and the connections that it closes in portions (INV-15)."""

from __future__ import annotations

import asyncio
import socket
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from app.transport.admission import AdmissionLimits
from tests.handlers.fakes import Bench
from tests.support.counted_loop import TurnCounts, on_looked_at_loop

MANY = 2_000
CLOSED_IN_A_TURN_MAX = 400
"""Ten looks at the clock of the test's loop, and 32 connections between two of them."""


class Silent:
    """A connection whose client does nothing."""

    waits_for_peer = True
    active_s = -1e9

    def __init__(self, bench: Bench, closed: TurnCounts) -> None:
        self.core: Any = SimpleNamespace(listener="PLAINTEXT")
        self._bench = bench
        self._closed = closed

    def abort(self) -> None:
        self._closed.note()
        self._bench.server.lost(cast(Any, self))

    def close(self) -> None:
        self.abort()


@asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[Bench]:
    bench = Bench(**settings)
    bound = socket.create_server(("127.0.0.1", 0))
    await bench.server.listen(bound, lambda: asyncio.Protocol(), "PLAINTEXT")
    try:
        yield bench
    finally:
        await bench.server.close()


def admit_many(bench: Bench, closed: TurnCounts) -> list[Silent]:
    """Connections of clients that do nothing."""
    many = [Silent(bench, closed) for _ in range(MANY)]
    for connection in many:
        transport: Any = SimpleNamespace(get_extra_info=lambda _name: ("127.0.0.1", 1))
        assert bench.server.admit(cast(Any, connection), transport, connection)
        connection.active_s = -1e9
        bench.server.opened(cast(Any, connection))
    return many


async def all_closed(closed: TurnCounts, count: int) -> None:
    async with asyncio.timeout(60):
        while closed.all < count:
            await asyncio.sleep(0)


@on_looked_at_loop
async def test_connections_that_are_idle_together_are_closed_in_portions() -> None:
    closed = TurnCounts()
    async with listening(connections_max_idle_ms=50) as bench:
        admit_many(bench, closed)
        await all_closed(closed, MANY)
        assert max(closed.counts) <= CLOSED_IN_A_TURN_MAX
        assert bench.counter("firn_connections_idle_closed_total") == MANY


@on_looked_at_loop
async def test_a_connection_that_is_used_or_ends_while_idle_ones_are_closed_is_left() -> None:
    closed = TurnCounts()
    async with listening(connections_max_idle_ms=50) as bench:
        many = admit_many(bench, closed)
        async with asyncio.timeout(60):
            while not closed.all:
                await asyncio.sleep(0)
        left = [one for one in many if one in bench.server._connections]
        assert len(left) >= MANY - CLOSED_IN_A_TURN_MAX
        left[0].active_s = left[1].active_s = asyncio.get_running_loop().time() + 1e6
        bench.server.lost(cast(Any, left[2]))
        await all_closed(closed, MANY - 3)
        await asyncio.sleep(0)
        assert bench.server._connections == {left[0], left[1]}


@on_looked_at_loop
async def test_connections_above_a_lowered_limit_are_closed_in_portions() -> None:
    closed = TurnCounts()
    async with listening() as bench:
        admit_many(bench, closed)
        bench.server.limit_connections(AdmissionLimits(10))
        await all_closed(closed, MANY - 10)
        assert max(closed.counts) <= CLOSED_IN_A_TURN_MAX
        assert closed.all == bench.counter("firn_connections_made_room_total") == MANY - 10


async def test_a_request_that_is_dropped_before_its_first_step_leaves_no_coroutine_behind() -> None:
    async def answer() -> None: ...

    async def finish(work: Any) -> None:
        await work

    bench = Bench()
    server = bench.server
    server.attach()
    inner = answer()
    server.spawn(finish(inner), cast(Any, None), inner)
    await server.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del inner  # a coroutine that was neither awaited nor closed complains here
