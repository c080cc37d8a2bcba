"""The listening socket."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from app.core.faults import Faults
from app.transport.listener import Listener


class Accepted(asyncio.Protocol):
    """Tells of the connection that it is made for."""

    def __init__(self, told: asyncio.Future[asyncio.BaseTransport]) -> None:
        self._told = told

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._told.set_result(transport)


async def test_the_kernel_probes_accepted_connections_that_are_idle() -> None:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    told: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()
    listener = Listener(bound, lambda: Accepted(told), Faults(lambda line: None), "PLAINTEXT")
    await listener.start()
    _, writer = await asyncio.open_connection(*bound.getsockname())
    transport = cast(asyncio.Transport, await told)
    accepted = cast(socket.socket, transport.get_extra_info("socket"))
    probes = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    transport.abort()
    writer.transport.abort()
    listener.close()
    assert probes == 1
