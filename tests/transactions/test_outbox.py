"""Requests to other brokers: one at a time, what comes meanwhile together, and nobody waits for a dead one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import BrokerUnavailable, RequestRejected
from app.transactions.outbox import Outbox


class Network:
    """Brokers 1 and 2, whose requests are answered when ``go`` is set."""

    def __init__(self) -> None:
        self.image = self.with_brokers(1, 2)
        self.requests: list[tuple[int, list[str]]] = []
        self.go = asyncio.Event()
        self.error: BrokerUnavailable | None = None
        self.outbox: Outbox[str, str] = Outbox(self.send, lambda: self.image)

    @staticmethod
    def with_brokers(*alive: int) -> Any:
        return SimpleNamespace(
            brokers={number: SimpleNamespace(broker_id=number, fenced=number not in alive) for number in (1, 2)}
        )

    async def send(self, to: Any, items: Sequence[str]) -> Sequence[str]:
        self.requests.append((to.broker_id, list(items)))
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return [item.upper() for item in items]


@asynccontextmanager
async def running() -> AsyncIterator[Network]:
    network = Network()
    task = asyncio.create_task(network.outbox.run())
    await turns()
    try:
        yield network
    finally:
        task.cancel()
        await asyncio.wait([task])


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_comes_meanwhile_goes_together() -> None:
    async with running() as network:
        answers = [network.outbox.put(1, "a")]
        await turns()
        answers += [network.outbox.put(1, "b"), network.outbox.put(2, "c"), network.outbox.put(1, "d")]
        await turns()
        assert network.requests == [(1, ["a"]), (2, ["c"])]
        network.go.set()
        assert await asyncio.gather(*answers) == ["A", "B", "C", "D"]
        assert network.requests[2:] == [(1, ["b", "d"])]


async def test_an_error_is_of_its_request_alone() -> None:
    async with running() as network:
        network.error = BrokerUnavailable("no answer")
        first = network.outbox.put(1, "a")
        network.go.set()
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await first
        network.error = None
        assert await network.outbox.put(1, "b") == "B"


async def test_nobody_waits_for_a_broker_that_is_fenced() -> None:
    async with running() as network:
        sent = network.outbox.put(1, "a")
        await turns()
        waiting, other = network.outbox.put(1, "b"), network.outbox.put(2, "c")
        network.outbox.follow(network.with_brokers(2))
        for answer in (sent, waiting):
            with pytest.raises(BrokerUnavailable):
                await answer
        network.go.set()
        assert await other == "C"
        assert ["b"] not in [items for _, items in network.requests]


async def test_nothing_is_sent_before_it_runs_and_what_waits_is_refused_when_it_ends() -> None:
    network = Network()
    with pytest.raises(RequestRejected):
        network.outbox.put(1, "a")
    async with running() as network:
        answers = [network.outbox.put(1, "a")]
        await turns()
        answers.append(network.outbox.put(1, "b"))
    for answer in answers:
        with pytest.raises(BrokerUnavailable):
            await answer
