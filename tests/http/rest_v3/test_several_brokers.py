"""Records are read from whichever broker leads their partition, also when the leader changes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from tests.support.broker import RunningBroker
from tests.support.several import cluster_on


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[list[RunningBroker]]:
    async with cluster_on(tmp_path, 2) as running:
        yield running


@pytest.fixture
async def application(brokers: list[RunningBroker]) -> AsyncIterator[FastAPI]:
    bootstrap = tuple(("127.0.0.1", broker.port) for broker in brokers)
    settings = HttpSettings(bootstrap=bootstrap, retry_budget_ms=60_000, allowed_hosts=("firn",))
    app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def topic(http: httpx.AsyncClient, cluster: str, brokers: list[RunningBroker]) -> str:
    """The path of a topic. Each broker leads one of its two partitions."""
    body = {"topic_name": "t", "replicas_assignments": {"0": [1, 2], "1": [2, 1]}}
    created = await http.post(f"{cluster}/topics", json=body)
    assert created.status_code == 201, created.text
    return f"{cluster}/topics/t"


async def produce(http: httpx.AsyncClient, topic: str, partition: int, *texts: str) -> None:
    """Store a record for each text. A leader that is not ready yet is asked again."""
    for text in texts:
        record = {"partition_id": partition, "value": {"type": "STRING", "data": text}}
        while (answer := (await http.post(f"{topic}/records", json=record)).json())["error_code"] != 200:
            assert answer["error_code"] in (50003, 50302), answer


async def read(http: httpx.AsyncClient, topic: str, partition: int) -> list[Any]:
    answer = await http.get(f"{topic}/partitions/{partition}/records?isolation=read_uncommitted")
    assert answer.status_code == 200, answer.text
    return [record["value"]["data"] for record in answer.json()["data"]]


async def leader(http: httpx.AsyncClient, topic: str, partition: int) -> str | None:
    """The id of the leader."""
    found = (await http.get(f"{topic}/partitions/{partition}")).json()["leader"]
    return found and found["related"].rpartition("/")[2]


async def test_each_partition_is_read_from_its_own_leader(http: httpx.AsyncClient, topic: str) -> None:
    await produce(http, topic, 0, "a", "b")
    await produce(http, topic, 1, "c")
    assert [await read(http, topic, partition) for partition in (0, 1)] == [["a", "b"], ["c"]]
    assert [await leader(http, topic, partition) for partition in (0, 1)] == ["1", "2"]


async def test_a_stream_goes_on_when_another_broker_leads_its_partition(
    http: httpx.AsyncClient, topic: str, brokers: list[RunningBroker]
) -> None:
    await produce(http, topic, 1, "a", "b")
    records = f"{topic}/partitions/1/records?count=4"
    following = asyncio.create_task(http.get(records, headers={"accept": "text/event-stream"}, timeout=60))
    brokers[1].node.request_stop()
    await brokers[1].ended.wait()

    while await leader(http, topic, 1) != "1":
        pass
    await produce(http, topic, 1, "c", "d")
    lines = [line for line in (await following).text.splitlines() if line.startswith("data: ")]
    assert [json.loads(line.removeprefix("data: "))["value"]["data"] for line in lines] == ["a", "b", "c", "d"]
