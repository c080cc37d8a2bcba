"""A broker, the HTTP application on it, and an HTTP client on that, all in the test's loop."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from tests.support.broker import RunningBroker, running_broker


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that a slow machine holds up is not taken for one that is away."""
    names = (
        "gateway.READY_TIMEOUT_S",
        "callers.READY_TIMEOUT_S",
        "gateway.METRICS_TIMEOUT_S",
        "gateway.RESPONSE_TIMEOUT_S",
        "console.asking.BROKER_S",
        "console.asking.ANY_S",
    )
    for name in names:
        monkeypatch.setattr(f"app.http.{name}", 60.0)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=1) as running:
        yield running


@pytest.fixture
async def application(broker: RunningBroker) -> AsyncIterator[FastAPI]:
    settings = HttpSettings(
        bootstrap=(("127.0.0.1", broker.port),),
        record_bytes_max=4_000_000,
        receipts_ahead_max=10,
        retry_budget_ms=300,
        allowed_hosts=("firn",),
        linger_ms=0,
    )
    app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def http(application: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=application, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://firn") as client:
        yield client


@pytest.fixture
async def cluster(http: httpx.AsyncClient) -> str:
    """The path of the cluster."""
    (found,) = (await http.get("/v3/clusters")).json()["data"]
    return f"/v3/clusters/{found['cluster_id']}"


@pytest.fixture
async def allowing(broker: RunningBroker) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that allows pages of another origin."""
    settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),), allowed_origins=("https://ui.example",))
    app = create_app(settings, clock=SystemClock(), rng=random.Random(4))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client,
    ):
        yield client
