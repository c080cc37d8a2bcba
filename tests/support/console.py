"""An HTTP client of the console over one broker."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx

from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from tests.support.broker import RunningBroker

HTML: Final = {"accept": "text/html"}


@asynccontextmanager
async def served_by(*brokers: RunningBroker) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an HTTP process of these brokers' cluster."""
    settings = HttpSettings(
        bootstrap=tuple(("127.0.0.1", one.port) for one in brokers), retry_budget_ms=30_000, linger_ms=0
    )
    app = create_app(settings, clock=SystemClock(), rng=random.Random(5))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1", headers=HTML, timeout=60
        ) as http,
    ):
        yield http
