from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop

from app.handlers.policy.callers import PLAINTEXT
from app.transport import outlet
from tests.handlers.conversation import Talk, talk
from tests.handlers.fakes import Bench


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The broker's own loop, with the transports that it runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Any]]:
    """``await start(**settings)`` is a listening server with fakes behind it."""
    async with AsyncExitStack() as stack:

        async def begin(**settings: Any) -> Bench:
            bench = Bench(**settings)
            bound = socket.create_server(("127.0.0.1", 0))
            bench.port = await bench.server.listen(bound, bench.server.make, PLAINTEXT)
            stack.push_async_callback(bench.server.close)
            return bench

        yield begin


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Any]]:
    """``await connect(bench)`` is a raw conversation with it."""
    async with AsyncExitStack() as stack:

        async def begin(bench: Bench) -> Talk:
            return await stack.enter_async_context(talk(bench.port))

        yield begin


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each ``sendfile`` has sent."""
    counts: list[int] = []
    sendfile = os.sendfile

    def counted(out: int, file: int, position: int, length: int) -> int:
        counts.append(sendfile(out, file, position, length))
        return counts[-1]

    monkeypatch.setattr(outlet.os, "sendfile", counted)
    return counts
