"""Brokers that do not respond in time, as ``ClusterClient`` counts them. Loop time stands still unless a test moves it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from app.client.cluster import TRIED_AGAIN, BrokerAddress, ClusterClient, KnownCluster
from app.core.errors import BrokerUnavailable
from app.core.units import BrokerId

ONE = BrokerId(1)
ADDRESS = ("127.0.0.1", 9)
PATIENCE_S = 0.5


class LoopTime:
    """Loop time that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)


@pytest.fixture
async def time(monkeypatch: pytest.MonkeyPatch) -> LoopTime:
    return LoopTime(monkeypatch)


def client_with(dial: Any) -> ClusterClient:
    client = ClusterClient([ADDRESS], rng=random.Random(1), patience_s=PATIENCE_S, dial=dial)
    client.view = KnownCluster(brokers={ONE: BrokerAddress(ONE, *ADDRESS, None)})
    return client


async def test_a_broker_that_refused_a_connection_at_once_is_not_silent(time: LoopTime) -> None:
    async def refused(*_: object) -> Any:
        raise ConnectionRefusedError

    async with client_with(refused) as client:
        with pytest.raises(BrokerUnavailable):
            await client.broker(ONE)
        time.now_s += 2 * PATIENCE_S
        assert not client.is_silent(ONE)


async def test_a_broker_that_took_no_connection_in_time_is_silent_until_it_is_tried_again(time: LoopTime) -> None:
    dialled = asyncio.Semaphore(0)

    async def hangs(*_: object) -> Any:
        dialled.release()
        await asyncio.Event().wait()

    async with client_with(hangs) as client:
        for _ in range(2):
            connecting = asyncio.create_task(client.broker(ONE))
            await dialled.acquire()
            assert not client.is_silent(ONE)
            time.now_s += PATIENCE_S
            assert client.is_silent(ONE)
            connecting.cancel()
            await asyncio.wait([connecting])
            assert client.is_silent(ONE)
            time.now_s += TRIED_AGAIN * PATIENCE_S
            assert not client.is_silent(ONE)
