"""A topic that a stream writes, as a client sees it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.core.units import Offset, PartitionIndex, TopicPartition
from tests.faults.served import Served

T = TypeVar("T")


@asynccontextmanager
async def clustered(broker: Served) -> AsyncIterator[ClusterClient]:
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        yield cluster


def asked(broker: Served, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    async def ask() -> T:
        async with clustered(broker) as cluster:
            return await work(cluster)

    return asyncio.run(ask())


def committed(broker: Served) -> list[bytes]:
    """Values that a reader at read_committed is given, in order of their numbers."""
    partition = TopicPartition("out", PartitionIndex(0))

    async def read(cluster: ClusterClient) -> list[bytes]:
        found: list[bytes] = []
        end = (await cluster.list_offsets({partition: -1}, read_committed=True))[partition].offset
        async with Consumer(cluster, read_committed=True) as consumer:
            consumer.assign({partition: Offset(0)})
            while consumer.position(partition) < end:
                for batch in await consumer.poll(10_000):
                    found += [record.value or b"" for record in batch.records()]
        return sorted(found, key=lambda value: int(value[1:]))

    return asked(broker, read)
