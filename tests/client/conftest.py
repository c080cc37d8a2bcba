"""A scripted broker with a log, and a client on it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from app.client.cluster import ClusterClient
from app.core.units import TimestampMs
from tests.client.scripted import FakeLog, ScriptedBroker, scripted_broker


class TickingClock:
    """One millisecond more at every look."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> TimestampMs:
        self.now += 1
        return TimestampMs(self.now)


@pytest.fixture
def clock() -> TickingClock:
    return TickingClock()


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with scripted_broker(one=1, three=3) as scripted:
        yield scripted


@pytest.fixture
def log(broker: ScriptedBroker) -> FakeLog:
    return FakeLog(broker)


@pytest.fixture
async def cluster(broker: ScriptedBroker) -> AsyncIterator[ClusterClient]:
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1), retry_budget_ms=60_000) as client:
        yield client


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off of a millisecond, so that a test of retries takes none."""

    def quick(attempt: int, rng: random.Random) -> float:
        return 1.0

    for module in ("retry", "producer", "consumer"):
        monkeypatch.setattr(f"app.client.{module}.backoff_ms", quick)
