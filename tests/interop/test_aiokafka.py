"""aiokafka: its producer, its consumer by assignment, its administration."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.interop.serving import COLD_CONFIGS, Served, create_topic, wait_until_cold

aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not here")

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # noqa: E402
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic  # noqa: E402
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType  # noqa: E402
from aiokafka.admin.records_to_delete import RecordsToDelete  # noqa: E402
from aiokafka.errors import KafkaError, OffsetOutOfRangeError  # noqa: E402

pytestmark = pytest.mark.interop

TIMEOUT_S = 60
MIDDAY = 1_700_000_000_000


async def send(firn: Served, topic: str, values: list[bytes], **settings: Any) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=firn.bootstrap, **settings)
    await producer.start()
    try:
        waiting = [
            await producer.send(topic, value, key=b"k%d" % n, timestamp_ms=MIDDAY + n, headers=[("n", b"%d" % n)])
            for n, value in enumerate(values)
        ]
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)
    finally:
        await asyncio.wait_for(producer.stop(), TIMEOUT_S)


@pytest.fixture
async def consumer(quiet: Served) -> AsyncIterator[AIOKafkaConsumer]:
    made = AIOKafkaConsumer(bootstrap_servers=quiet.bootstrap, auto_offset_reset="none")
    await made.start()
    try:
        yield made
    finally:
        await asyncio.wait_for(made.stop(), TIMEOUT_S)


async def read(consumer: AIOKafkaConsumer, topic: str, offset: int, count: int) -> list[Any]:
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, offset)
    return [await asyncio.wait_for(consumer.getone(), TIMEOUT_S) for _ in range(count)]


@pytest.mark.ci
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
async def test_records_come_back_as_they_went(
    quiet: Served, consumer: AIOKafkaConsumer, codec: str | None, idempotent: bool
) -> None:
    topic = f"aio-{codec}-{idempotent}"
    create_topic(quiet.port, topic)
    values = [b"value %d " % n * 10 for n in range(200)]
    await send(quiet, topic, values, compression_type=codec, enable_idempotence=idempotent, linger_ms=5)
    found = await read(consumer, topic, 0, 200)
    assert [(record.offset, record.key, record.value) for record in found] == [
        (n, b"k%d" % n, value) for n, value in enumerate(values)
    ]
    assert [record.timestamp for record in found] == [MIDDAY + n for n in range(200)]
    assert found[7].headers == (("n", b"7"),)


@pytest.mark.parametrize("acks", [0, 1])
async def test_fewer_acks_are_stored_too(quiet: Served, consumer: AIOKafkaConsumer, acks: int) -> None:
    topic = f"aio-acks-{acks}"
    create_topic(quiet.port, topic)
    await send(quiet, topic, [b"a", b"b"], acks=acks)
    assert [record.value for record in await read(consumer, topic, 0, 2)] == [b"a", b"b"]


async def test_history_is_read_and_found_by_time_in_the_store(quiet: Served, consumer: AIOKafkaConsumer) -> None:
    create_topic(quiet.port, "aio-cold", configs=COLD_CONFIGS)
    chance = random.Random(3)
    values = [chance.randbytes(20_000) for _ in range(200)]
    await send(quiet, "aio-cold", values)
    local_start = wait_until_cold(quiet, "aio-cold")
    assert [record.value for record in await read(consumer, "aio-cold", 0, 200)] == values
    partition = TopicPartition("aio-cold", 0)
    assert await consumer.beginning_offsets([partition]) == {partition: 0}
    assert await consumer.end_offsets([partition]) == {partition: 200}
    for n in {0, local_start - 1, local_start, 199}:
        found = await consumer.offsets_for_times({partition: MIDDAY + n})
        assert (found[partition].offset, found[partition].timestamp) == (n, MIDDAY + n)


async def test_an_offset_outside_of_the_log_is_said_to_be_so(quiet: Served, consumer: AIOKafkaConsumer) -> None:
    create_topic(quiet.port, "aio-short")
    partition = TopicPartition("aio-short", 0)
    consumer.assign([partition])
    consumer.seek(partition, 5)
    with pytest.raises(OffsetOutOfRangeError):
        await asyncio.wait_for(consumer.getone(), TIMEOUT_S)


async def test_topics_and_configs_are_administered(quiet: Served) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=quiet.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic("aio-life", 2, 1, topic_configs={"retention.ms": "9000"})])
        assert "aio-life" in await admin.list_topics()
        await admin.create_partitions({"aio-life": NewPartitions(4)})
        (described,) = await admin.describe_topics(["aio-life"])
        assert len(described["partitions"]) == 4
        resource = ConfigResource(ConfigResourceType.TOPIC, "aio-life")
        (answer,) = await admin.describe_configs([resource])
        entries = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert entries["retention.ms"] == "9000"
        changed = ConfigResource(ConfigResourceType.TOPIC, "aio-life", configs={"retention.ms": "8000"})
        await admin.alter_configs([changed])
        assert len((await admin.describe_cluster())["brokers"]) == 1
        await send(quiet, "aio-life", [b"a"] * 40)
        partition = TopicPartition("aio-life", 0)
        await admin.delete_records({partition: RecordsToDelete(before_offset=1)})
        await admin.delete_topics(["aio-life"])
        assert "aio-life" not in await admin.list_topics()
    finally:
        await asyncio.wait_for(admin.close(), TIMEOUT_S)


@pytest.mark.ci
async def test_a_group_that_subscribes_waits_without_wearing_the_broker_out(quiet: Served) -> None:
    create_topic(quiet.port, "aio-group")
    consumer = AIOKafkaConsumer("aio-group", bootstrap_servers=quiet.bootstrap, group_id="g")
    before = quiet.cpu_s()
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.wait([starting], timeout=2)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled() or isinstance(starting.exception(), KafkaError)
    await asyncio.wait_for(consumer.stop(), TIMEOUT_S)
    assert quiet.cpu_s() - before < 1
