"""Real clients against a whole broker: the shortest proof that the protocol is Kafka's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as RdTopicPartition

from tests.support.broker import running_broker

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
async def test_librdkafka_gets_back_what_it_sent(tmp_path: Path, codec: str, idempotent: bool):
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 3)
        bootstrap = broker.bootstrap

        def work() -> None:
            told: list[object] = []
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "compression.type": codec,
                    "enable.idempotence": idempotent,
                    "linger.ms": 1,
                }
            )
            for n in range(500):
                producer.produce(
                    "t",
                    f"value {n}".encode(),
                    f"key {n}".encode(),
                    partition=n % 3,
                    headers={"h": b"x"},
                    on_delivery=lambda error, _: told.append(error),
                )
                producer.poll(0)
            assert producer.flush(20) == 0
            assert told == [None] * 500
            consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
            consumer.assign([RdTopicPartition("t", n, 0) for n in range(3)])
            found: list[tuple[int, int, bytes, bytes]] = []
            for _ in range(400):
                for message in consumer.consume(500, 0.05):
                    assert message.error() is None
                    assert message.headers() == [("h", b"x")]
                    found.append((message.partition(), message.offset(), message.key(), message.value()))
                if len(found) >= 500:
                    break
            low, high = consumer.get_watermark_offsets(RdTopicPartition("t", 0))
            consumer.close()
            assert (low, high) == (0, 167)
            expected = [(n % 3, n // 3, f"key {n}".encode(), f"value {n}".encode()) for n in range(500)]
            assert sorted(found) == sorted(expected)

        await asyncio.to_thread(work)


async def test_aiokafka_gets_back_what_it_sent(tmp_path: Path):
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
            for n in range(100):
                sent = await producer.send_and_wait("t", f"value {n}".encode(), partition=n % 2)
                assert sent.offset == n // 2
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
        await consumer.start()
        try:
            partitions = [AioTopicPartition("t", n) for n in range(2)]
            consumer.assign(partitions)
            assert await consumer.end_offsets(partitions) == dict.fromkeys(partitions, 50)
            await consumer.seek_to_beginning(*partitions)
            found = []
            async with asyncio.timeout(60):
                while len(found) < 100:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found += [(record.partition, record.offset, record.value) for record in records]
        finally:
            await consumer.stop()
        assert sorted(found) == sorted((n % 2, n // 2, f"value {n}".encode()) for n in range(100))


@pytest.mark.ci
async def test_records_that_librdkafka_sends_without_timestamps_are_not_taken_for_records_of_1970(tmp_path: Path):
    """librdkafka, asked for timestamp -1, says in the batch's header that the greatest timestamp is 0."""
    looks = {"log_retention_check_interval_ms": 100, "remote_log_manager_task_interval_ms": 100}
    async with running_broker(tmp_path, **looks) as broker:
        await broker.create_topic("t", retention_ms="86400000")
        await broker.create_topic("short", retention_ms="1")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1})
        for topic in ("t", "short"):
            for _ in range(3):
                producer.produce(topic, b"v", timestamp=-1)
            assert await asyncio.to_thread(producer.flush, 60) == 0
        async with asyncio.timeout(60):
            while broker.log("short").log_start_offset < 3:
                await asyncio.sleep(0.02)
        assert broker.log("t").log_start_offset == 0, "retention has looked, and has taken what was due"
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False})
        consumer.assign([RdTopicPartition("t", 0, 0)])
        found = await asyncio.to_thread(consumer.consume, 3, 60)
        await asyncio.to_thread(consumer.close)
        assert [(message.value(), message.timestamp()) for message in found] == [(b"v", (1, -1))] * 3
