"""A broker whose topic is in the bucket, and an HTTP server over it."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from tests.support.broker import RunningBroker


async def tiered(broker: RunningBroker, beyond: int) -> None:
    """Until what was rolled is in the store and has left the local disk, and reaches beyond an offset."""
    log = broker.log("t")
    async with asyncio.timeout(60):
        while log.local_log_start_offset <= beyond or len(log.segments()) > 1:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def http_server(port: int) -> AsyncIterator[str]:
    """The HTTP application on a socket of its own, in the test's loop."""
    app = create_app(HttpSettings(bootstrap=(("127.0.0.1", port),)), clock=SystemClock(), rng=random.Random(2))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(20):
            while not server.started:
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()
