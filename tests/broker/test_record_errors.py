"""KIP-467 through whole brokers: of a refused batch the client learns which records are at fault."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from app.records.validation import NO_KEY
from tests.interop.java_programs import running
from tests.support.broker import running_broker

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_librdkafka_tells_each_message_its_own_error(tmp_path: Path, codec: str) -> None:
    """As librdkafka's own test 0011 asks: INVALID_RECORD for records without keys, INVALID_DIFFERENT_RECORD for the others."""
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", cleanup_policy="compact", remote_storage_enable="false")
        told: dict[bytes, int] = {}

        def delivered(error: KafkaError | None, message: Message) -> None:
            told[message.value()] = 0 if error is None else error.code()

        def send(*numbers: int) -> dict[bytes, int]:
            told.clear()
            producer = Producer(
                {
                    "bootstrap.servers": broker.bootstrap,
                    "linger.ms": 200,
                    "batch.num.messages": 1000,
                    "compression.type": codec,
                }
            )
            for number in numbers:
                key = b"key" if number % 3 else None
                producer.produce("t", b"%d" % number, key, on_delivery=delivered)
            assert producer.flush(30) == 0
            return dict(told)

        mixed = await asyncio.to_thread(send, *range(10))
        assert mixed == {
            b"%d" % number: KafkaError._INVALID_DIFFERENT_RECORD if number % 3 else KafkaError.INVALID_RECORD
            for number in range(10)
        }
        assert broker.log("t").log_end_offset == 0, "nothing of the batch was stored"
        assert await asyncio.to_thread(send, 1, 2, 4) == {b"1": 0, b"2": 0, b"4": 0}
        assert broker.log("t").log_end_offset == 3


@pytest.mark.slow
async def test_the_java_client_tells_each_record_its_own_error(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", cleanup_policy="compact", remote_storage_enable="false")

        def work() -> list[str]:
            with running("RecordErrors.java") as java:
                return java.ask(broker.bootstrap, "t", 6).split("|")

        told = await asyncio.to_thread(work)
        others = "KafkaException:Failed to append record because it was part of a batch which had one more more invalid records"
        assert [one == f"InvalidRecordException:{NO_KEY}" for one in told] == [number % 3 == 0 for number in range(6)]
        assert {one for number, one in enumerate(told) if number % 3} == {others}
        assert broker.log("t").log_end_offset == 0
