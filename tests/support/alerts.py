"""Alerts that tests cause on running brokers: ``causes`` says which ones, and holds the test to it."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from app.broker.peers.control_link import KafkaControlLink
from app.client.connection import KafkaConnection
from app.core.errors import StorageUnavailable
from app.core.metrics import Registry
from app.machine.runtime import SystemClock, ThreadPool
from app.metadata.image.image import BrokerImage
from app.metadata.peers.control import NotSent
from app.objectstore.memory import MemoryStore
from app.objectstore.metered import MeteredStore
from tests.support import scraping
from tests.support.broker import RunningBroker, running_broker
from tests.support.promql import ANSWERS, RULES
from tests.support.scraping import Prometheus

P = ParamSpec("P")
T = TypeVar("T")
FIRED_AND_ENDED: Final = re.compile(r"0+1+0+")
"""Whether an alert fired, each time that a test asked."""
TIERED: Final = {"segment_bytes": "16777216", "local_retention_ms": "0", "retention_ms": "-1"}


def causes(*alerts: str) -> Callable[[Callable[P, Awaitable[None]]], Callable[P, Awaitable[None]]]:
    """Of a test: it sees these alerts silent before their fault, firing in it, and silent after it."""

    def of(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
        @functools.wraps(test)
        async def run(*args: P.args, **kwargs: P.kwargs) -> None:
            answers: list[tuple[str, bool]] = []
            ANSWERS.set(answers)
            await test(*args, **kwargs)
            for alert in alerts:
                seen = "".join(str(int(fires)) for name, fires in answers if name == alert)
                assert FIRED_AND_ENDED.fullmatch(seen), f"{alert} was seen to fire so: {seen}"

        return run

    return of


def scraped(*brokers: RunningBroker) -> AbstractAsyncContextManager[Prometheus]:
    return scraped_at(*[one.port for one in brokers])


def scraped_at(*ports: int) -> AbstractAsyncContextManager[Prometheus]:
    return scraping.scraped_at(*ports, read=RULES.read_text())


async def until_counted(prometheus: Prometheus, name: str, least: float = 1) -> None:
    """Until a counter has counted so much."""
    async with asyncio.timeout(60):
        while await prometheus.value(name) < least:
            await asyncio.sleep(0)


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """A port where connections are accepted, and nothing is answered."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for one in writers:
            one.close()


class Storing:
    """A store in memory that can fail, metered and watched as the store process does it."""

    def __init__(self, memory: MemoryStore | None = None) -> None:
        self.memory = memory if memory is not None else MemoryStore(clock=SystemClock())
        self.registry = Registry()
        self.store = MeteredStore(self.memory, self.registry)

    def broker(self, path: Path, **settings: Any) -> AbstractAsyncContextManager[RunningBroker]:
        return running_broker(path, store=self.store, store_registry=self.registry, **settings)


class Cut(KafkaControlLink):
    """The way from a broker to the others, where nothing passes on some lanes."""

    cut: Collection[str] = ()

    async def connection(self, to: BrokerImage, lane: str) -> KafkaConnection:
        if lane in self.cut:
            raise NotSent(f"Broker {to.broker_id} is cut off.")
        return await super().connection(to, lane)


class CutThreads(ThreadPool):
    """The threads of a store of one broker, which does not reach it while ``cut`` is set."""

    cut = False

    async def run(self, work: Callable[[], T]) -> T:
        if self.cut:
            raise StorageUnavailable("The store is cut off.")
        return await super().run(work)
