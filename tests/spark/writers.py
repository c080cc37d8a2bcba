"""A broker with a topic for writers, and rows for it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.core.units import Offset, PartitionIndex, TopicPartition
from pyspark_firn.writing import (
    WriteOptions,
    parse_write_options,
)
from tests.support.broker import RunningBroker, running_broker

SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def rows(start: int, end: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([{"key": str(n), "value": b"v%d" % n} for n in range(start, end)])


@asynccontextmanager
async def served(path: Path, **settings: object) -> AsyncIterator[tuple[RunningBroker, WriteOptions]]:
    async with running_broker(path, **settings) as broker:
        await broker.create_topic("out", 1)
        given = {"bootstrap": broker.bootstrap, "topic": "out", "transactionTimeout": "60000"}
        yield broker, parse_write_options(given, SCHEMA)


async def committed(broker: RunningBroker) -> list[bytes | None]:
    """Values that a reader at read_committed is given, up to the last stable offset."""
    partition = TopicPartition("out", PartitionIndex(0))
    found: list[bytes | None] = []
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        end = (await cluster.list_offsets({partition: -1}, read_committed=True))[partition].offset
        async with Consumer(cluster, read_committed=True) as consumer:
            consumer.assign({partition: Offset(0)})
            while consumer.position(partition) < end:
                for batch in await consumer.poll(10_000):
                    found += [record.value for record in batch.records()]
    return found


def values(start: int, end: int) -> list[bytes]:
    return [b"v%d" % n for n in range(start, end)]
