"""A broker that lost the records of its transaction coordinator decides by markers, and gives new producer ids (ADR 0037, J46)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.configs import InternalDurability
from app.coordinator.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from app.errors import ErrorCode, StorageUnavailable
from app.transactions.markers import Marker, MarkerWriter
from app.units import TopicPartition
from app.wire.apikeys import ApiKey
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from tests.broker.test_internal_durability import SETTINGS, One
from tests.broker.test_object_durability import alone, create, led
from tests.broker.test_transactions import AGAIN, FIRST_PROTOCOL, SECOND_PROTOCOL, Producer
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker
from tests.support.several import until

BOTH = pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])


class OnDisk(One):
    """Its internal topics are on the disk alone, and the records of ``t`` are in the bucket."""

    async def up(self, *, again: bool) -> RunningBroker:
        stack = self._stacks[1] = AsyncExitStack()
        settings = {**SETTINGS, "firn_internal_durability": InternalDurability.DISK}
        broker = self.brokers[1] = await stack.enter_async_context(alone(self.path, take_over=again, **settings))
        return broker


@asynccontextmanager
async def on_disk(path: Path) -> AsyncIterator[OnDisk]:
    made = OnDisk(path)
    try:
        broker = await made.up(again=False)
        kept = {"local_retention_ms": "-1", "retention_ms": "-1", "segment_ms": str(1 << 62)}
        await create(broker, "t", 3, message_timestamp_before_max_ms=str(1 << 62), **kept)
        async with talk(broker.port) as client:
            for key_type in (0, 1):
                await client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="x", key_type=key_type))
        for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            await until(lambda topic=topic: broker.node.cluster.image.topic(topic.name) is not None)
            await led(broker, topic.name, 2)
            assert broker.node.cluster.image.topics_by_name[topic.name].configs["firn.durability"] == "disk"
        yield made
    finally:
        await made.close()


class Kept:
    """Keeps the markers of some partitions from being written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: set[TopicPartition] = set()
        writes = MarkerWriter.write

        def write(writer: MarkerWriter, marker: Marker, target: TopicPartition, *rest: Any) -> Awaitable[None] | None:
            if target in self.of:
                raise StorageUnavailable(f"the marker of {target} is kept back")
            return writes(writer, marker, target, *rest)

        monkeypatch.setattr(MarkerWriter, "write", write)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(monkeypatch)


async def begin(producer: Producer, value: bytes, *partitions: int) -> None:
    await producer.add(*(("t", index) for index in partitions))
    for index in partitions:
        assert await producer.write("t", index, value) is ErrorCode.NONE


async def begin_to_commit(of: OnDisk, kept: Kept, producer: Producer, *lacking: int) -> None:
    """End a transaction that gets its marker everywhere but in partitions ``lacking``."""
    kept.of = {TopicPartition("t", index) for index in lacking}
    producer_id = producer.producer_id
    await producer.end(commit=True)
    await until(lambda: all((producer_id in of.open("t", index)) == (index in lacking) for index in range(3)))


async def lose(of: OnDisk, kept: Kept) -> None:
    await of.lose_the_disk()
    kept.of = set()


async def end_answer(of: OnDisk, producer: Producer, *, commit: bool) -> ErrorCode:
    version = 5 if producer.version >= SECOND_PROTOCOL else 3
    asked = EndTxnRequest(producer.id, producer.producer_id, producer.epoch, commit)
    async with asyncio.timeout(60):
        while True:
            client = await of.talk(of.coordinator(TRANSACTION_STATE.name, producer.id))
            code = ErrorCode((await client.ask(ApiKey.END_TXN, version, asked)).error_code)
            if code not in AGAIN:
                return code
            await asyncio.sleep(0.02)


@pytest.mark.ci
@BOTH
async def test_what_a_marker_committed_is_committed_everywhere_and_the_rest_aborted(
    tmp_path: Path, kept: Kept, version: int
) -> None:
    async with on_disk(tmp_path) as of:
        half, open_, idle = (Producer(of, name, version) for name in ("half", "open", "idle"))
        for producer in (half, open_, idle):
            await producer.init()
            await begin(producer, b"first of " + producer.id.encode(), 0, 1, 2)
            await producer.end(commit=True)
        await until(lambda: not any(of.open("t", index) for index in range(3)))
        await begin(open_, b"never", 0, 2)
        await begin(half, b"half", 0, 1, 2)
        await begin_to_commit(of, kept, half, 1, 2)
        before = {producer.id: producer.producer_id for producer in (half, open_, idle)}
        await lose(of, kept)
        await until(lambda: not any(of.open("t", index) for index in range(3)))
        firsts = [b"first of half", b"first of open", b"first of idle"]
        for index in range(3):
            await until(lambda index=index: of.committed("t", index) == [*firsts, b"half"])
        # Whoever was there before is nobody any more.
        for producer in (open_, idle):
            assert await end_answer(of, producer, commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await open_.write("t", 0, b"late", again=False) in (
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        )
        for name in before:
            again = Producer(of, name, version)
            await again.init()
            assert again.producer_id not in before.values()
            await begin(again, b"again " + name.encode(), 0, 1, 2)
            await again.end(commit=True)
        for index in range(3):
            agains = [b"again " + name.encode() for name in before]
            await until(lambda index=index: of.committed("t", index) == [*firsts, b"half", *agains])
