"""A client of REST v2 of the HTTP application on one broker."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.http.rest_v2.clients import Rest
from tests.support.broker import RunningBroker


@pytest.fixture
async def rest(http: httpx.AsyncClient, broker: RunningBroker) -> Rest:
    found = Rest(http, broker)
    async with asyncio.timeout(30):
        while (
            await found.ask("POST", "/consumers/first")
        ).status_code == 503:  # until the topic of groups has a leader
            await asyncio.sleep(0.01)
    return found
