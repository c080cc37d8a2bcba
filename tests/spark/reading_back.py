"""Records that jobs have produced to topics, as a client reads them."""

from __future__ import annotations

import random
from typing import Any

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.core.units import Offset, PartitionIndex, TopicPartition


async def produced(port: int, topic: str, index: int = 0) -> list[Any]:
    """Every record of a partition."""
    partition = TopicPartition(topic, PartitionIndex(index))
    found: list[Any] = []
    async with ClusterClient([("127.0.0.1", port)], rng=random.Random(1)) as cluster:
        end = (await cluster.list_offsets({partition: -1}))[partition].offset
        async with Consumer(cluster) as consumer:
            consumer.assign({partition: Offset(0)})
            while consumer.position(partition) < end:
                for batch in await consumer.poll(10_000):
                    found += batch.records()
    return found
