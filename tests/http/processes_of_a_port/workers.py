"""Workers of one port in the test's own loop: applications on one broker that meet at Unix sockets."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
from fastapi import FastAPI

from app.core.metrics import Registry
from app.http.application import create_app, refusal_of
from app.http.consumers.names import owner_of
from app.http.gateway import HttpSettings
from app.http.processes.answering import Answering
from app.http.processes.worker import Worker
from app.machine.runtime import SystemClock


class Served:
    """One worker, and a client whose connection it has."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient, running: AsyncExitStack) -> None:
        self.app = app
        self.client = client
        self._running = running

    async def end(self) -> None:
        """End it for the other workers."""
        await self._running.aclose()


@asynccontextmanager
async def workers(settings: HttpSettings, directory: Path, count: int = 2) -> AsyncIterator[list[Served]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(_worker(settings, Worker(index, count, 0, str(directory))))
            for index in range(count)
        ]


@asynccontextmanager
async def _worker(settings: HttpSettings, worker: Worker) -> AsyncIterator[Served]:
    registry = Registry()
    app = create_app(
        replace(settings, worker=worker), clock=SystemClock(), rng=random.Random(worker.index), registry=registry
    )
    transport = httpx.ASGITransport(app=app, client=("192.0.2.7", 1234))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://firn") as client,
        AsyncExitStack() as running,
    ):
        answering = Answering(app, registry, lambda: refusal_of(app))
        await answering.start(worker)
        running.push_async_callback(answering.wait_closed)
        running.callback(answering.close)
        yield Served(app, client, running)


def name_for(owner: int, group: str, count: int = 2) -> str:
    """A name of a consumer instance that this worker has."""
    return next(name for name in (f"c{number}" for number in range(1_000)) if owner_of(group, name, count) == owner)
