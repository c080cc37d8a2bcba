"""The client and Firn's broker, over a real socket."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.client.admin import AdminClient
from app.client.cluster import EARLIEST, LATEST, ClusterClient
from app.client.consumer import Consumer
from app.client.producer import Producer
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicPartition
from app.machine.runtime import SystemClock
from app.records.compression import Codec
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.support.broker import RunningBroker, running_broker


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
async def client(running: RunningBroker) -> AsyncIterator[ClusterClient]:
    async with ClusterClient([("127.0.0.1", running.port)], rng=random.Random(1)) as cluster:
        yield cluster


@pytest.mark.parametrize("codec", Codec)
async def test_what_is_produced_is_consumed(running: RunningBroker, client: ClusterClient, codec: Codec) -> None:
    await running.create_topic("t", 3)
    async with Producer(client, SystemClock(), compression=codec, batch_bytes=2_000) as producer:
        for number in range(500):
            key, headers = b"%d" % (number % 7), (("n", b"%d" % number),)
            await producer.send("t", b"v%d" % number, key=key, headers=headers, timestamp=TimestampMs(1_000 + number))
    partitions = [TopicPartition("t", PartitionIndex(index)) for index in range(3)]
    starts = await client.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(partitions, LATEST))
    found: dict[bytes, list[int]] = {}
    async with Consumer(client) as consumer:
        consumer.assign({partition: Offset(listed.offset) for partition, listed in starts.items()})
        while any(consumer.position(partition) < ends[partition].offset for partition in partitions):
            for batch in await consumer.poll(5_000):
                for record in batch.records():
                    assert record.key is not None
                    number = int(record.headers[0][1] or b"")
                    assert (record.value, record.timestamp) == (b"v%d" % number, 1_000 + number)
                    found.setdefault(record.key, []).append(number)
    assert {key: len(numbers) for key, numbers in found.items()} == {
        b"%d" % key: len(range(key, 500, 7)) for key in range(7)
    }
    assert all(numbers == sorted(numbers) for numbers in found.values())


async def test_topics_are_administered(client: ClusterClient) -> None:
    admin = AdminClient(client)
    created = await admin.create_topic("t", partitions_count=2, configs={"retention.ms": "5000"})
    assert (created.partitions_count, created.replication_factor) == (2, 1)
    with pytest.raises(RequestRejected, match="already exists") as refused:
        await admin.create_topic("t")
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    await admin.create_partitions("t", 4)
    assert len((await admin.describe_topic("t")).partitions) == 4
    changes = [("segment.bytes", ConfigOperation.SET, "2000000"), ("retention.ms", ConfigOperation.DELETE, None)]
    await admin.alter_configs(ConfigResourceType.TOPIC, "t", changes)
    configs = {entry.name: entry for entry in await admin.describe_configs(ConfigResourceType.TOPIC, "t")}
    assert (configs["segment.bytes"].value, configs["segment.bytes"].source) == ("2000000", "DYNAMIC_TOPIC_CONFIG")
    assert configs["retention.ms"].is_default
    with pytest.raises(RequestRejected) as refused:
        await admin.alter_configs(ConfigResourceType.TOPIC, "t", [("nonsense", ConfigOperation.SET, "1")])
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    await admin.delete_topic("t")
    with pytest.raises(RequestRejected, match="no topic t"):
        await admin.describe_topic("t")
    assert "t" not in (await admin.describe_cluster()).topics


async def test_records_are_deleted_up_to_an_offset(running: RunningBroker, client: ClusterClient) -> None:
    await running.create_topic("t")
    async with Producer(client, SystemClock()) as producer:
        for _ in range(10):
            await producer.send("t", b"x")
    partition = TopicPartition("t", PartitionIndex(0))
    assert await AdminClient(client).delete_records(partition, Offset(4)) == 4
    assert (await client.list_offsets({partition: EARLIEST}))[partition].offset == 4


async def test_firns_own_questions_are_answered(running: RunningBroker, client: ClusterClient) -> None:
    await running.create_topic("t", 2)
    async with Producer(client, SystemClock()) as producer:
        await producer.send("t", b"x", partition=1)
    admin = AdminClient(client)
    statuses = await admin.tier_status(["t"])
    assert [(status.partition, status.high_watermark) for status in statuses] == [(0, 0), (1, 1)]
    (segment,) = await admin.tier_segments(TopicPartition("t", PartitionIndex(1)))
    assert (segment.tier, segment.base_offset, segment.end_offset) == ("local", 0, 1)
    metrics = await admin.metrics(await client.any_broker())
    assert "firn_records_in_total" in {sample.name for sample in metrics.samples}
    with pytest.raises(RequestRejected, match="no topic nowhere"):
        await admin.tier_status(["nowhere"])
