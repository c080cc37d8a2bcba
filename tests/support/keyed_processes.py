"""HTTP processes and real brokers for tests of requests that are stored whole (ADR 0043)."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.client.cluster import EARLIEST, LATEST, ClusterClient
from app.client.consumer import Consumer
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.image.records import REQUESTS_LEVEL
from tests.support.broker import RunningBroker, running_broker
from tests.support.several import unfenced
from tests.support.waiting import until

RECORD = {"value": {"type": "JSON", "data": {"flight": 1545}}}
BATCH = {
    "entries": [
        {"id": "a", "partition_id": 0, "value": {"data": 1}},
        {"id": "b", "partition_id": 1, "value": {"data": 2}},
        {"id": "c", "partition_id": 0, "value": {"data": 3}, "timestamp": 1_000},
        {"id": "d", "key": {"type": "STRING", "data": "x"}, "value": {"data": 4}},
    ]
}


@asynccontextmanager
async def broker_on(path: Path, **settings: Any) -> AsyncIterator[RunningBroker]:
    settings = {"new_level": REQUESTS_LEVEL, "num_partitions": 1} | settings
    async with running_broker(path, **settings) as running:
        await until(lambda: settings["new_level"] == 0 or unfenced(running))
        yield running


class Process:
    """An HTTP process, and a client that asks it."""

    def __init__(self, http: httpx.AsyncClient, cluster_id: str, app: Any) -> None:
        self.http = http
        self.base = f"/v3/clusters/{cluster_id}/topics"
        self.gateway = app.state.gateway

    async def post(
        self, key: str | None, content: Any = RECORD, *, route: str = "t/records", **headers: str
    ) -> httpx.Response:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        named = {} if key is None else {"idempotency-key": key}
        named |= {"content-type": "application/json"} | {name.replace("_", "-"): one for name, one in headers.items()}
        return await self.http.post(f"{self.base}/{route}", content=body, headers=named)

    async def batch(self, key: str | None, content: Any = BATCH, **headers: str) -> httpx.Response:
        return await self.post(key, content, route="t/records:batch", **headers)


@asynccontextmanager
async def process_of(broker: RunningBroker) -> AsyncIterator[Process]:
    settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),), allowed_hosts=("firn",), linger_ms=0)
    app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://firn", timeout=60) as http,
    ):
        yield Process(http, broker.node.context.image.cluster_id, app)


async def committed(broker: RunningBroker, topic: str = "t") -> list[tuple[int, int, bytes | None]]:
    """Partition, offset and value of each record that a reader with read_committed gets."""
    found: list[tuple[int, int, bytes | None]] = []
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as client:
        view = await client.topic(topic)
        for index in range(len(view.partitions)):
            partition = TopicPartition(topic, PartitionIndex(index))
            end = (await client.list_offsets({partition: LATEST}, read_committed=True))[partition].offset
            start = (await client.list_offsets({partition: EARLIEST}))[partition].offset
            async with Consumer(client, read_committed=True) as consumer:
                consumer.assign({partition: Offset(start)})
                while consumer.position(partition) < end:
                    for batch in await consumer.poll(5_000):
                        found += [(index, record.offset, record.value) for record in batch.records()]
    return found


async def settled(broker: RunningBroker) -> None:
    """Wait until no transaction is open in any partition."""
    await until(lambda: not any(one.log.producers.open_transactions for one in broker.node.partitions.table.all_led()))
