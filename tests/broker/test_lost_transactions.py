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
from app.core.errors import ErrorCode, StorageUnavailable
from app.core.units import TopicPartition
from app.metadata.image.records import OBJECT_LEVEL
from app.transactions.markers import Marker, MarkerWriter
from app.wire.apikeys import ApiKey
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from tests.broker.internal_topics import SETTINGS, One
from tests.broker.object_topics import alone, create, led
from tests.broker.transactional import AGAIN, FIRST_PROTOCOL, SECOND_PROTOCOL, Cluster, Producer, found, name_on
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker
from tests.support.several import member, unfenced
from tests.support.waiting import until

BOTH = pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])


class OnDisk(One):
    """Its internal topics are on the disk alone, and the records of ``t`` are in the bucket."""

    durability = InternalDurability.DISK
    boot_id = "boot"

    async def up(self, *, again: bool) -> RunningBroker:
        stack = self._stacks[1] = AsyncExitStack()
        settings = {**SETTINGS, "firn_internal_durability": self.durability, "boot_id": self.boot_id}
        broker = self.brokers[1] = await stack.enter_async_context(alone(self.path, take_over=again, **settings))
        return broker

    @property
    def unsynced(self) -> list[Path]:
        """What a loss of power may set back: the coordinator's logs. With them the mark of the last run, which a stop rewrites."""
        data = self.path / "broker-1" / "data"
        return [*data.glob(f"{TRANSACTION_STATE.name}-*"), data / ".firn" / "registration"]

    def save(self, to: Path) -> None:
        to.mkdir()
        for one in self.unsynced:
            (shutil.copytree if one.is_dir() else shutil.copy)(one, to / one.name)

    async def lose_power_since(self, saved: Path) -> None:
        await self._kill()
        for one in self.unsynced:
            if one.is_dir():
                shutil.rmtree(one)
                shutil.copytree(saved / one.name, one)
            else:
                shutil.copy(saved / one.name, one)
        (self.path / "broker-1" / "data" / ".kafka_cleanshutdown").unlink(missing_ok=True)
        self.boot_id = "the next boot"
        await self._again(take_over=False)


@asynccontextmanager
async def on_disk(path: Path, durability: InternalDurability = InternalDurability.DISK) -> AsyncIterator[OnDisk]:
    made = OnDisk(path)
    made.durability = durability
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
            assert broker.node.cluster.image.topics_by_name[topic.name].configs["firn.durability"] == durability.value
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


@pytest.mark.ci
@BOTH
async def test_a_crash_half_way_changes_no_decision(tmp_path: Path, kept: Kept, version: int) -> None:
    async with on_disk(tmp_path) as of:
        producers = [Producer(of, f"x{number}", version) for number in range(4)]
        for producer in producers:
            await producer.init()
        half = producers[0]
        await begin(half, b"half", 0, 1, 2)
        await begin_to_commit(of, kept, half, 1, 2)
        # The marker of partition 1 is the last that is written before the next crash, which the disk survives.
        kept.of = {TopicPartition("t", 2)}
        await of.lose_the_disk()
        await until(lambda: (opened(of, 0), opened(of, 1), opened(of, 2)) == (set(), set(), {half.producer_id}))
        await of.start_again(kept.of.clear)
        for index in range(3):
            await until(lambda index=index: opened(of, index) == set())
            await reads(of, index, b"half")
        before = {producer.producer_id for producer in producers}
        for producer in producers:
            again = Producer(of, producer.id, version)
            await again.init()
            assert again.producer_id not in before
        # Once it is done, it is done: the next start lets everybody go on.
        await again.add(("t", 0))
        assert await again.write("t", 0, b"again") is ErrorCode.NONE
        await of.start_again()
        await again.end(commit=True)
        await reads(of, 0, b"half", b"again")


@pytest.mark.ci
@BOTH
async def test_after_a_loss_of_power_decisions_that_are_left_count_and_every_id_gets_a_new_producer(
    tmp_path: Path, kept: Kept, version: int
) -> None:
    async with on_disk(tmp_path, InternalDurability.MEMORY) as of:
        producers = [Producer(of, name, version) for name in ("prepared", "half", "open", "idle")]
        for producer in producers:
            await producer.init()
            await begin(producer, b"first", 0, 1, 2)
            await producer.end(commit=True)
        await until(lambda: not any(of.open("t", index) for index in range(3)))
        prepared, half, open_, _ = producers
        await begin(prepared, b"prepared", 0, 1, 2)
        await begin_to_commit(of, kept, prepared, 0, 1, 2)
        of.save(saved := tmp_path / "saved")
        # Of these the log that is left knows only the transactions before.
        await begin(open_, b"never", 0, 2)
        await begin(half, b"half", 0, 1, 2)
        await begin_to_commit(of, kept, half, 1, 2)
        await of.lose_power_since(saved)
        kept.of = set()
        for index in range(3):
            await until(lambda index=index: opened(of, index) == set())
            await reads(of, index, *[b"first"] * 4, b"prepared", b"half")
        assert any("transactional ids get new producer ids" in line for line in of.brokers[1].lines)
        before = {producer.producer_id for producer in producers}
        for producer in producers:
            assert await end_answer(of, producer, commit=True) is ErrorCode.PRODUCER_FENCED
            again = Producer(of, producer.id, version)
            await again.init()
            assert again.producer_id not in before


async def begin(producer: Producer, value: bytes, *partitions: int) -> None:
    await producer.add(*(("t", index) for index in partitions))
    for index in partitions:
        assert await producer.write("t", index, value) is ErrorCode.NONE


async def reads(of: Cluster, index: int, *values: bytes) -> None:
    """Wait until consumers at read_committed are given this."""
    async with asyncio.timeout(60):
        while await found(of, "t", index) != list(values):
            await asyncio.sleep(0.02)


def opened(of: Cluster, index: int) -> set[int] | None:
    """The producers with a transaction open in the partition; None while nobody leads it."""
    leader = of.brokers.get(of.image.topics_by_name["t"].partitions[index].leader)
    found = None if leader is None else leader.node.partitions.table.led("t", index)
    return None if found is None else set(found.log.producers.open_transactions)


async def begin_to_commit(of: Cluster, kept: Kept, producer: Producer, *lacking: int) -> None:
    """End a transaction that gets its marker everywhere but in partitions ``lacking``. Waits until the others are in the bucket."""
    kept.of = {TopicPartition("t", index) for index in lacking}
    producer_id = producer.producer_id
    await producer.end(commit=True)
    await until(lambda: all((producer_id in (opened(of, index) or ())) == (index in lacking) for index in range(3)))
    logs = [of.leader("t", index).log("t", index) for index in range(3)]
    await until(lambda: all(log.high_watermark == log.log_end_offset for log in logs))


async def lose(of: OnDisk, kept: Kept) -> None:
    await of.lose_the_disk()
    kept.of = set()


async def end_answer(of: Cluster, producer: Producer, *, commit: bool) -> ErrorCode:
    version = 5 if producer.version >= SECOND_PROTOCOL else 3
    asked = EndTxnRequest(producer.id, producer.producer_id, producer.epoch, commit)
    async with asyncio.timeout(60):
        while True:
            client = await of.talk(of.coordinator(TRANSACTION_STATE.name, producer.id))
            code = ErrorCode((await client.ask(ApiKey.END_TXN, version, asked)).error_code)
            if code not in AGAIN:
                return code
            await asyncio.sleep(0.02)


@asynccontextmanager
async def three(path: Path) -> AsyncIterator[Cluster]:
    """Three brokers. Each coordinates transactions on its disk alone; the records of ``t`` are in the bucket."""
    made = Cluster(path)
    try:
        for node_id in (1, 2, 3):
            await start(made, node_id)
        await all_unfenced(made)
        controller = made.brokers[1].node.membership.controller
        on_disk = {"cleanup.policy": "compact", "firn.durability": "disk"}
        await controller.create_topic(TRANSACTION_STATE.name, 3, on_disk, replication_factor=1)
        in_bucket = {"firn.durability": "object", "firn.wal.linger.ms": "2", "segment.ms": str(1 << 62)}
        times = {"message.timestamp.before.max.ms": str(1 << 62), "retention.ms": "-1", "local.retention.ms": "-1"}
        await controller.create_topic("t", 3, {**in_bucket, **times}, replication_factor=1)
        for broker in made.brokers.values():
            await until(lambda broker=broker: len(broker.node.cluster.image.topics_by_name) == 2)
        yield made
    finally:
        await made.close()


async def start(of: Cluster, node_id: int, *, take_over: bool = False) -> None:
    settings = {"broker_heartbeat_interval_ms": 50, "broker_session_timeout_ms": 1_000, **SETTINGS}
    settings["transaction_state_log_replication_factor"] = 1
    stack = of._stacks[node_id] = AsyncExitStack()
    broker = member(of.path, node_id, new_level=OBJECT_LEVEL, take_over=take_over, **settings)
    of.brokers[node_id] = await stack.enter_async_context(broker)


async def all_unfenced(of: Cluster) -> None:
    for broker in of.brokers.values():
        await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])


@pytest.mark.ci
@BOTH
async def test_a_broker_of_three_that_lost_its_disk_asks_the_others(tmp_path: Path, kept: Kept, version: int) -> None:
    async with three(tmp_path) as of:
        names = {node_id: name_on(of, TRANSACTION_STATE.name, node_id) for node_id in (1, 2)}
        open_name = next(
            name
            for name in (f"open{number}" for number in range(100))
            if of.coordinator(TRANSACTION_STATE.name, name) is of.brokers[1]
        )
        half, other = (Producer(of, name, version) for name in names.values())
        open_ = Producer(of, open_name, version)
        for producer in (half, other, open_):
            await producer.init()
            await begin(producer, b"first of " + producer.id.encode(), 0, 1, 2)
            await producer.end(commit=True)
        await until(lambda: not any(of.open("t", index) for index in range(3)))
        await begin(other, b"other", 0, 1, 2)
        await begin(open_, b"never", 0, 2)
        await begin(half, b"half", 0, 1, 2)
        await begin_to_commit(of, kept, half, 1, 2)
        await of.brokers[1].kill()
        await of.stop(1)
        shutil.rmtree(tmp_path / "broker-1")
        kept.of = set()
        await start(of, 1, take_over=True)
        of._talks.clear()
        await all_unfenced(of)
        for index in range(3):
            await until(lambda index=index: opened(of, index) == {other.producer_id})
        firsts = [b"first of " + producer.id.encode() for producer in (half, other, open_)]
        # Whose coordinator lacks nothing goes on.
        await other.end(commit=True)
        for index in range(3):
            await reads(of, index, *firsts, b"other", b"half")
        assert await end_answer(of, open_, commit=True) is ErrorCode.PRODUCER_FENCED
        again = Producer(of, open_.id, version)
        await again.init()
        assert again.producer_id not in (half.producer_id, other.producer_id, open_.producer_id)
        await begin(again, b"again", 0, 1, 2)
        await again.end(commit=True)
        for index in range(3):
            await reads(of, index, *firsts, b"other", b"half", b"again")


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
            await reads(of, index, *firsts, b"half")
        # Whoever was there before is nobody any more.
        for producer in (open_, idle):
            assert await end_answer(of, producer, commit=True) is ErrorCode.PRODUCER_FENCED
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
            await reads(of, index, *firsts, b"half", *(b"again " + name.encode() for name in before))
