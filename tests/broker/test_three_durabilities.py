"""One transaction over topics in memory, on disks and in the bucket (ADR 0037, J44), with its consumer offsets."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from app.coordinator.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from app.core.errors import ErrorCode
from app.metadata.image.records import OBJECT_LEVEL
from app.transactions.state import TransactionState
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from tests.broker.internal_topics import SETTINGS, One
from tests.broker.object_topics import led
from tests.broker.transactional import FIRST_PROTOCOL, SECOND_PROTOCOL, Cluster, Producer, committed_offset, found
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker
from tests.support.several import member, unfenced
from tests.support.waiting import until

ALL = ("memory", "disk", "object")
"""Topics, each with the durability of its name."""
GROUP = "readers"
VERSIONS = pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])
TIMES = {
    "message.timestamp.before.max.ms": str(1 << 62),
    "retention.ms": "-1",
    "local.retention.ms": "-1",
    "segment.ms": str(1 << 62),
}


async def make_topics(broker: RunningBroker, copies: int) -> None:
    controller = broker.node.membership.controller
    for name in (*ALL, "t"):
        configs = {"firn.durability": name if name in ALL else "object", **TIMES}
        if configs["firn.durability"] == "object":
            configs["firn.wal.linger.ms"] = "2"
        await controller.create_topic(name, 1, configs, replication_factor=copies)
    async with talk(broker.port) as client:
        for key_type in (0, 1):
            await client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="x", key_type=key_type))
    for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        await until(lambda topic=topic: broker.node.cluster.image.topic(topic.name) is not None)
        assert broker.node.cluster.image.topics_by_name[topic.name].configs["firn.durability"] == "object"


class Three(Cluster):
    """Three brokers, of which each may lose its disk."""

    async def up(self, node_id: int, *, take_over: bool = False) -> None:
        settings = {"broker_heartbeat_interval_ms": 50, "broker_session_timeout_ms": 1_000, **SETTINGS}
        stack = self._stacks[node_id] = AsyncExitStack()
        self.brokers[node_id] = await stack.enter_async_context(
            member(self.path, node_id, new_level=OBJECT_LEVEL, take_over=take_over, **settings)
        )

    async def all_live(self) -> None:
        for broker in self.brokers.values():
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])

    async def in_sync(self) -> None:
        """Wait until every partition has its leader and all its replicas."""

        def are() -> bool:
            partitions = [one for topic in self.image.topics_by_name.values() for one in topic.partitions]
            return all(one.leader >= 0 and len(one.isr) == len(one.replicas) for one in partitions)

        await until(are)

    async def lose_the_disk_of(self, node_id: int) -> None:
        await self.brokers[node_id].kill()
        await self.stop(node_id)
        shutil.rmtree(self.path / f"broker-{node_id}")
        await self.up(node_id, take_over=True)
        self._talks.clear()
        await self.all_live()


@asynccontextmanager
async def one_broker(path: Path) -> AsyncIterator[One]:
    made = One(path)
    try:
        broker = await made.up(again=False)
        await make_topics(broker, 1)
        for topic in broker.node.cluster.image.topics_by_name.values():
            await led(broker, topic.name, len(topic.partitions))
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def three_brokers(path: Path) -> AsyncIterator[Three]:
    made = Three(path)
    try:
        for node_id in (1, 2, 3):
            await made.up(node_id)
        await made.all_live()
        await make_topics(made.brokers[1], 3)
        for broker in made.brokers.values():
            await until(lambda broker=broker: len(broker.node.cluster.image.topics_by_name) == 6)
        await made.in_sync()
        yield made
    finally:
        await made.close()


async def write_all(producer: Producer, value: bytes, offset: int) -> None:
    await producer.add(*((name, 0) for name in ALL))
    for name in ALL:
        assert await producer.write(name, 0, value) is ErrorCode.NONE
    assert await producer.commit_offset(GROUP, offset) is ErrorCode.NONE


async def check(of: Cluster, wanted: dict[str, list[bytes]], offset: int) -> None:
    async with asyncio.timeout(60):
        for name, values in wanted.items():
            while await found(of, name) != values:
                await asyncio.sleep(0.02)
    assert await committed_offset(of, GROUP) == offset


async def commit_and_abort(of: Cluster, version: int) -> Producer:
    producer = Producer(of, "tx", version)
    await producer.init()
    for number, commits in enumerate((True, False, True)):
        await write_all(producer, b"%d" % number, number + 10)
        assert all(of.open(name, 0) for name in ALL)
        await producer.end(commit=commits)
        await producer.completed(TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT)
    await check(of, {name: [b"0", b"2"] for name in ALL}, 12)
    return producer


@pytest.mark.ci
@VERSIONS
async def test_on_one_broker_the_part_in_the_bucket_survives_its_disk(tmp_path: Path, version: int) -> None:
    async with one_broker(tmp_path) as of:
        producer = await commit_and_abort(of, version)
        # A kill alone takes nothing from anybody: the transaction goes on where it was.
        await write_all(producer, b"3", 13)
        await of.start_again()
        await producer.end(commit=True)
        everything = [b"0", b"2", b"3"]
        await check(of, dict.fromkeys(ALL, everything), 13)
        # With the disk goes what was on it alone. The transaction commits what is left of it, and its offsets.
        await write_all(producer, b"4", 14)
        await of.lose_the_disk()
        assert of.open("object", 0).keys() == {producer.producer_id}
        assert not of.open("memory", 0)
        assert not of.open("disk", 0)
        await producer.end(commit=True)
        await check(of, {"object": [*everything, b"4"], "memory": [], "disk": []}, 14)
        # Partitions that lost its batches take none that follows them: the client begins a new epoch, as it does then.
        await producer.init()
        # A transaction that is aborted leaves nothing anywhere.
        await write_all(producer, b"5", 15)
        await of.lose_the_disk()
        await producer.end(commit=False)
        await check(of, {"object": [*everything, b"4"], "memory": [], "disk": []}, 14)
        again = Producer(of, "tx", version)
        await again.init()
        assert again.producer_id == producer.producer_id
        await write_all(again, b"6", 16)
        await again.end(commit=True)
        await check(of, {"object": [*everything, b"4", b"6"], "memory": [b"6"], "disk": [b"6"]}, 16)


@pytest.mark.slow
@VERSIONS
async def test_on_three_brokers_all_parts_survive_the_disk_of_each(tmp_path: Path, version: int) -> None:
    async with three_brokers(tmp_path) as of:
        producer = await commit_and_abort(of, version)
        values = [b"0", b"2"]
        for node_id in (1, 2, 3):
            for commits in (True, False):
                value = b"%d %d" % (node_id, commits)
                await write_all(producer, value, 20 + node_id if commits else 99)
                await of.lose_the_disk_of(node_id)
                await producer.end(commit=commits)
                if commits:
                    values.append(value)
                await check(of, dict.fromkeys(ALL, values), 20 + node_id)
                await of.in_sync()
