"""Producers of three clients while a broker drains: none gives up, and what they held back is written once (ADR 0019)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.records.batch import iter_headers
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.ports import free_port
from tests.support.talking import fetch_all
from tests.support.waiting import until

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not here")
aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not here")
kafka_python = pytest.importorskip("kafka", reason="kafka-python is not here")

pytestmark = pytest.mark.interop

HELD_BACK = 3
Send = Callable[[int], Awaitable[Sequence[int]]]
"""Sends so many records one by one and waits for all; the offsets."""


@contextlib.asynccontextmanager
async def librdkafka(bootstrap: str) -> AsyncIterator[Send]:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})

    def send(count: int) -> list[int]:
        offsets: list[int] = []

        def delivered(error: object, message: object) -> None:
            assert error is None, error
            offsets.append(message.offset())  # type: ignore[attr-defined]

        for number in range(count):
            producer.produce("t", b"%d" % number, on_delivery=delivered)
        assert producer.flush(60) == 0
        return offsets

    yield lambda count: asyncio.to_thread(send, count)


@contextlib.asynccontextmanager
async def aiokafka_(bootstrap: str) -> AsyncIterator[Send]:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:

        async def send(count: int) -> list[int]:
            sent = [await producer.send("t", b"%d" % number) for number in range(count)]
            return [(await one).offset for one in sent]

        yield send


@contextlib.asynccontextmanager
async def kafka_python_(bootstrap: str) -> AsyncIterator[Send]:
    producer = await asyncio.to_thread(
        lambda: kafka_python.KafkaProducer(bootstrap_servers=bootstrap, acks="all", retries=100)
    )

    def send(count: int) -> list[int]:
        sent = [producer.send("t", b"%d" % number) for number in range(count)]
        return [one.get(60).offset for one in sent]

    try:
        yield lambda count: asyncio.to_thread(send, count)
    finally:
        await asyncio.to_thread(producer.close)


CLIENTS = (librdkafka, aiokafka_, kafka_python_)


async def held_back(broker: RunningBroker, send: Send) -> asyncio.Task[Sequence[int]]:
    """Records that are sent to a broker that drains, and were refused more than once."""
    refused = broker.node.context.metrics.produce_errors
    before = refused.value
    sending = asyncio.create_task(send(HELD_BACK))  # type: ignore[arg-type]
    await until(lambda: refused.value >= before + 3)
    assert not sending.done()
    return sending


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_producer_waits_while_a_broker_drains_and_goes_on_when_that_is_taken_back(
    client: Callable[[str], contextlib.AbstractAsyncContextManager[Send]], tmp_path: Path
) -> None:
    store = MemoryStore()
    async with running_broker(tmp_path, store=store) as broker:
        await broker.create_topic("t")
        async with client(broker.bootstrap) as send:
            assert list(await send(1)) == [0]
            store.faults = [Fault(FaultKind.UNAVAILABLE)]
            broker.node.context.drain.begin()
            sending = await held_back(broker, send)
            broker.node.context.drain.take_back()
            assert sorted(await sending) == [1, 2, 3]
        assert broker.log("t").log_end_offset == 1 + HELD_BACK
        store.faults = []


@pytest.mark.ci
async def test_a_producer_goes_on_with_a_broker_that_starts_on_an_empty_directory_after_a_drain(tmp_path: Path) -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as clients:
        async with running_broker(tmp_path, listen_port=port) as broker:
            await broker.create_topic("t")
            send = await clients.enter_async_context(librdkafka(broker.bootstrap))
            assert list(await send(5)) == [0, 1, 2, 3, 4]
            broker.node.context.drain.begin()
            sending = asyncio.create_task(send(HELD_BACK))  # type: ignore[arg-type]
            await until(lambda: broker.node.context.drain.sealed)
        shutil.rmtree(tmp_path / "data")
        async with running_broker(tmp_path, listen_port=port, take_over=True) as broker, talk(port) as reader:
            assert list(await sending) == [5, 6, 7]
            data = await fetch_all(reader, "t", end=8)
            assert sum(header.record_count for _, header in iter_headers(data)) == 8
