"""``/metrics`` of brokers, as Prometheus scrapes it, with the times that a test gives."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from tests.support.broker import RunningBroker
from tests.support.promql import Scrapes

NAME: Final = re.compile(r"(?:firn|process|python|kafka)_\w+")


def minutes(first: int, last: int) -> range:
    """The times of scrapes, in seconds."""
    return range(first * 60, last * 60 + 1, 60)


class Prometheus:
    """Scrapes the HTTP process, and evaluates the alerts."""

    def __init__(self, http: httpx.AsyncClient, read: str) -> None:
        self._http = http
        self.scrapes = Scrapes()
        self._read = set(NAME.findall(read))

    async def scrape(self, *times_s: float) -> None:
        """Scrape the present state once, as if at each of these times."""
        lines = (await self.page()).splitlines()
        text = "\n".join(line for line in lines if self._is_read(line)) + "\n"
        for at_s in times_s:
            self.scrapes.add(text, at_s)

    def _is_read(self, line: str) -> bool:
        found = NAME.search(line)
        return found is not None and found[0] in self._read

    async def page(self) -> str:
        return (await self._http.get("/metrics")).text

    async def value(self, name: str) -> float:
        """The sum of the samples of a name, now."""
        families = text_string_to_metric_families(await self.page())
        return sum(one.value for family in families for one in family.samples if one.name == name)

    def firing(self, alert: str, at_s: float) -> list[dict[str, str]]:
        return self.scrapes.firing(alert, at_s)


def scraped(*brokers: RunningBroker, read: str) -> AbstractAsyncContextManager[Prometheus]:
    """The HTTP process of some brokers. ``read``: a text with the names of the metrics that count; others are not parsed."""
    return scraped_at(*[one.port for one in brokers], read=read)


@asynccontextmanager
async def scraped_at(*ports: int, read: str) -> AsyncIterator[Prometheus]:
    """The HTTP process of the brokers at some ports of this machine. ``read``: as ``scraped``."""
    settings = HttpSettings(bootstrap=tuple(("127.0.0.1", port) for port in ports))
    application = create_app(settings, clock=SystemClock(), rng=random.Random(3))
    transport = httpx.ASGITransport(app=application)
    async with (
        application.router.lifespan_context(application),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        yield Prometheus(http, read)
