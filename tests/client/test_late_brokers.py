"""Brokers that do not respond in time, as ``ClusterClient`` counts them. Loop time stands still unless a test moves it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from app.client.cluster import TRIED_AGAIN, BrokerAddress, ClusterClient, KnownCluster
from app.core.errors import BrokerUnavailable
from app.core.units import BrokerId
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataResponse
from tests.client.scripted import ScriptedBroker, scripted_broker

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


async def until_turns(holds: Callable[[], object]) -> None:
    """Let the loop turn until a state holds. Its time may stand still."""
    while not holds():
        await asyncio.sleep(0)


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


class Slow:
    """A scripted broker that answers requests for metadata once ``answers`` is set."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.answers = asyncio.Event()

        @broker.on(ApiKey.METADATA)
        async def answer(header: object, body: object) -> MetadataResponse:
            await self.answers.wait()
            return MetadataResponse(cluster_id="c", controller_id=-1)

    @property
    def asked(self) -> int:
        return len(self.broker.requests(ApiKey.METADATA))


@asynccontextmanager
async def slow_brokers(count: int) -> AsyncIterator[tuple[ClusterClient, list[Slow]]]:
    async with AsyncExitStack() as stack:
        slow = [Slow(await stack.enter_async_context(scripted_broker())) for _ in range(count)]
        addresses = [("127.0.0.1", one.broker.port) for one in slow]
        yield (
            await stack.enter_async_context(ClusterClient(addresses, rng=random.Random(1), patience_s=PATIENCE_S)),
            slow,
        )


async def test_a_late_request_for_metadata_is_shared_while_no_other_broker_could_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with slow_brokers(1) as (client, [slow]):
        time = LoopTime(monkeypatch)
        refreshing = []
        for _ in range(4):
            refreshing.append(asyncio.create_task(client.refresh()))
            await until_turns(lambda: slow.asked)
            time.now_s += 10 * PATIENCE_S
        slow.answers.set()
        await asyncio.gather(*refreshing)
        assert slow.asked == 1


async def test_two_requests_for_the_same_metadata_are_under_way_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow_brokers(3) as (client, [first, second, third]):
        time = LoopTime(monkeypatch)
        refreshing = []
        for asked in (first, second, second, second):
            refreshing.append(asyncio.create_task(client.refresh(["t"])))
            await until_turns(lambda asked=asked: asked.asked)
            time.now_s += 2 * PATIENCE_S
        for slow in (first, second, third):
            slow.answers.set()
        await asyncio.gather(*refreshing)
        assert [first.asked, second.asked, third.asked] == [1, 1, 0]
