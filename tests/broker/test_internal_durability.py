"""Committed offsets, transactions and share groups with object durability survive the loss of every disk (ADR 0037, J45)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from app.broker.write_ahead import switching as durability_changes
from app.coordinator.topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from app.core.errors import ErrorCode
from app.metadata.changes.topic_changes import ConfigChange
from app.metadata.image.records import OBJECT_LEVEL
from app.metadata.image.wal_ranges import PartitionDurability
from app.transactions.state import TransactionState
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.broker.internal_topics import SETTINGS, One
from tests.broker.object_topics import alter, create, led, objects
from tests.broker.shared import ACCEPT, RELEASE, workers
from tests.broker.shared import Cluster as Shared
from tests.broker.transactional import (
    AGAIN,
    FIRST_PROTOCOL,
    SECOND_PROTOCOL,
    Cluster,
    Producer,
    committed_offset,
    name_on,
)
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker
from tests.support.changing import alter_configs
from tests.support.several import member, unfenced
from tests.support.waiting import until

INTERNAL = (CONSUMER_OFFSETS.name, TRANSACTION_STATE.name, SHARE_GROUP_STATE.name)
GROUP = "readers"


@asynccontextmanager
async def one(path: Path) -> AsyncIterator[One]:
    made = One(path)
    try:
        broker = await made.up(again=False)
        kept = {"local_retention_ms": "-1", "retention_ms": "-1", "segment_ms": str(1 << 62)}
        await create(broker, "t", message_timestamp_before_max_ms=str(1 << 62), **kept)
        async with talk(broker.port) as client:
            for key_type in (0, 1):
                await client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="x", key_type=key_type))
        for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            await until(lambda topic=topic: broker.node.cluster.image.topic(topic.name) is not None)
            await led(broker, topic.name, 2)
            # Or every commit would wait for as long as the default says.
            change = ConfigChange("firn.wal.linger.ms", ConfigOperation.SET, "2")
            await alter_configs(broker.node.membership.controller, ConfigResourceType.TOPIC, topic.name, [change])
        yield made
    finally:
        await made.close()


async def tier_and_clean(broker: RunningBroker) -> None:
    """Have all that is in internal topics copied to the bucket, and compacted on the disk."""
    cleaned = [log for log in await tier_all(broker) if log.log_end_offset]
    assert cleaned
    await until(lambda: all(log.cleaned_end_offset == log.log_end_offset for log in cleaned))


async def tier_all(broker: RunningBroker) -> list[Any]:
    """Have all that is in internal topics copied to the bucket. Returns: their logs."""
    image = broker.node.cluster.image
    logs = [
        broker.log(name, index)
        for name in INTERNAL
        if (topic := image.topic(name)) is not None
        for index in range(len(topic.partitions))
    ]
    for log in logs:
        log.roll()
    broker.node.remote_log_manager.kick()
    tier = broker.node.remote_log_manager

    def copied() -> bool:
        return all((tier.tiered_end(log.topic_id, log.partition) or 0) == log.log_end_offset for log in logs)

    await until(copied)
    return logs


async def commit(of: Cluster, group: str, offset: int) -> None:
    topics = [OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(0, offset)])]
    async with asyncio.timeout(60):
        while True:
            client = await of.talk(of.coordinator(CONSUMER_OFFSETS.name, group))
            answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(group_id=group, topics=topics))
            code = ErrorCode(answer.topics[0].partitions[0].error_code)
            if code is ErrorCode.NONE:
                return
            assert code in AGAIN, code
            await asyncio.sleep(0.02)


async def test_internal_topics_get_the_durability_of_the_topics_that_are_there(tmp_path: Path) -> None:
    async with one(tmp_path) as of:
        image = of.brokers[1].node.cluster.image
        for name in (CONSUMER_OFFSETS.name, TRANSACTION_STATE.name):
            topic = image.topics_by_name[name]
            assert topic.configs["firn.durability"] == "object"
            assert {each.durability for each in topic.partitions} == {PartitionDurability.OBJECT}
            assert of.brokers[1].log(name, 0).config.tiered


async def test_j45_coordinators_answer_what_is_in_the_bucket(tmp_path: Path) -> None:
    async with one(tmp_path) as of:
        change = ConfigChange("firn.wal.linger.ms", ConfigOperation.SET, "150")
        for topic in (CONSUMER_OFFSETS.name, TRANSACTION_STATE.name):
            await alter_configs(of.brokers[1].node.membership.controller, ConfigResourceType.TOPIC, topic, [change])
        before = len(objects(tmp_path))
        await commit(of, GROUP, 5)
        assert len(objects(tmp_path)) == before + 1
        producer = Producer(of, "tx", FIRST_PROTOCOL)
        await producer.init()
        assert len(objects(tmp_path)) == before + 2
        await producer.add(("t", 0))
        assert len(objects(tmp_path)) == before + 3
        await producer.end(commit=True)
        assert len(objects(tmp_path)) >= before + 4
        # Whoever asks for an offset gets what is stored, and not before it is.
        await commit(of, GROUP, 6)
        assert await committed_offset(of, GROUP) == 6


@pytest.mark.ci
@pytest.mark.parametrize("tiered", [False, True])
async def test_committed_offsets_are_exact_after_the_loss_of_the_disk(tmp_path: Path, tiered: bool) -> None:
    async with one(tmp_path) as of:
        for round_ in range(3):
            for number in range(20):
                await commit(of, f"g{number % 5}", round_ * 100 + number)
            if tiered:
                await tier_and_clean(of.brokers[1])
                await commit(of, "g0", round_ * 100 + 50)
            await of.lose_the_disk()
            first = round_ * 100 + (50 if tiered else 15)
            wanted = [first, *(round_ * 100 + 15 + number for number in range(1, 5))]
            assert [await committed_offset(of, f"g{number}") for number in range(5)] == wanted


@pytest.mark.ci
@pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])
@pytest.mark.parametrize("tiered", [False, True])
async def test_transactions_go_on_after_the_loss_of_the_disk(tmp_path: Path, version: int, tiered: bool) -> None:
    async with one(tmp_path) as of:
        producer = Producer(of, "tx", version)
        await producer.init()
        for number, commits in enumerate((True, False)):
            await producer.add(("t", 0))
            assert await producer.write("t", 0, b"%d" % number) is ErrorCode.NONE
            assert await producer.commit_offset(GROUP, number + 10) is ErrorCode.NONE
            await producer.end(commit=commits)
        if tiered:
            await producer.completed(TransactionState.COMPLETE_ABORT)
            await tier_and_clean(of.brokers[1])
        await producer.add(("t", 0))
        assert await producer.write("t", 0, b"2") is ErrorCode.NONE
        assert await producer.commit_offset(GROUP, 12) is ErrorCode.NONE
        kept = producer.producer_id, producer.epoch
        await of.lose_the_disk()
        # The transaction is open still, and nothing of it is seen.
        assert of.open("t", 0).keys() == {producer.producer_id}
        assert of.committed("t", 0) == [b"0"]
        await producer.end(commit=True)
        await producer.completed(TransactionState.COMPLETE_COMMIT)
        await until(lambda: of.committed("t", 0) == [b"0", b"2"])
        assert await committed_offset(of, GROUP) == 12
        # The transactional id is the same producer, of the next epoch.
        again = Producer(of, "tx", version)
        await again.init()
        assert again.producer_id == kept[0]
        assert again.epoch > kept[1]
        await again.add(("t", 0))
        assert await again.write("t", 0, b"3") is ErrorCode.NONE
        await again.end(commit=True)
        await until(lambda: of.committed("t", 0) == [b"0", b"2", b"3"])


@pytest.mark.ci
@pytest.mark.parametrize("tiered", [False, True])
async def test_a_share_group_goes_on_after_the_loss_of_the_disk(tmp_path: Path, tiered: bool) -> None:
    async with one(tmp_path) as of:
        broker = of.brokers[1]
        change = ConfigChange("share.auto.offset.reset", ConfigOperation.SET, "earliest")
        await alter_configs(broker.node.membership.controller, ConfigResourceType.GROUP, "workers", [change])
        await broker.node.shares.ready()
        await led(broker, SHARE_GROUP_STATE.name)
        assert broker.node.cluster.image.topics_by_name[SHARE_GROUP_STATE.name].configs["firn.durability"] == "object"
        async with AsyncExitStack() as stack:
            made = Shared([broker])
            await stack.enter_async_context(made._stack)
            async with workers(made, "a") as (a,):
                await made.produce(10)
                assert await a.wait_for() == [(0, 9, 1)]
                assert await a.say(0, 5, ACCEPT, ACCEPT, RELEASE, ACCEPT, ACCEPT, ACCEPT) is ErrorCode.NONE
                if tiered:
                    await tier_and_clean(broker)
                assert await a.say(7, 7, ACCEPT) is ErrorCode.NONE
        broker = await of.lose_the_disk()
        await broker.node.shares.ready()
        async with AsyncExitStack() as stack:
            made = Shared([broker])
            await stack.enter_async_context(made._stack)
            async with workers(made, "b") as (b,):
                # 6, 8 and 9 were acquired by a, and are free again, as they were never acknowledged; 2 was released.
                assert await b.wait_for() == [(2, 2, 2), (6, 6, 2), (8, 9, 2)]


@pytest.mark.ci
async def test_a_hole_that_a_loss_of_power_left_is_not_taken_for_one_of_compaction(tmp_path: Path) -> None:
    async with one(tmp_path) as of:
        for number in range(10):
            await commit(of, f"g{number % 5}", number)
        broker = of.brokers[1]
        await tier_and_clean(broker)
        synced = of.recovery_points.read_bytes()
        change = ConfigChange("min.cleanable.dirty.ratio", ConfigOperation.SET, "1.0")
        await alter_configs(
            broker.node.membership.controller, ConfigResourceType.TOPIC, CONSUMER_OFFSETS.name, [change]
        )
        logs = [broker.log(CONSUMER_OFFSETS.name, index) for index in range(2)]
        for number in range(5):
            await commit(of, f"g{number}", number + 10)
        unsynced = [log.segments()[-1].path for log in logs if log.segments()[-1].size_bytes]
        await tier_all(broker)
        for number in range(4):
            await commit(of, f"g{number}", number + 20)
        await tier_all(broker)
        await of.lose_power(unsynced, synced)
        assert [await committed_offset(of, f"g{number}") for number in range(5)] == [20, 21, 22, 23, 14]


@pytest.mark.ci
async def test_another_broker_coordinates_what_a_killed_one_did_and_hands_it_back(tmp_path: Path) -> None:
    settings = {"broker_heartbeat_interval_ms": 50, "broker_session_timeout_ms": 1_000, **SETTINGS}
    of = Cluster(tmp_path)
    try:
        for node_id in (1, 2, 3):
            stack = of._stacks[node_id] = AsyncExitStack()
            of.brokers[node_id] = await stack.enter_async_context(
                member(tmp_path, node_id, new_level=OBJECT_LEVEL, **settings)
            )
        for broker in of.brokers.values():
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        controller = of.brokers[1].node.membership.controller
        topic = {"cleanup.policy": "compact", "firn.durability": "object", "firn.wal.linger.ms": "2"}
        await controller.create_topic(CONSUMER_OFFSETS.name, 3, topic, replication_factor=3)
        await controller.create_topic("t", 1, {"firn.durability": "object"}, replication_factor=3)
        for broker in of.brokers.values():
            await until(lambda broker=broker: len(broker.node.cluster.image.topics_by_name) == 2)
        groups = [name_on(of, CONSUMER_OFFSETS.name, node_id, "g") for node_id in (1, 2, 3)]
        for round_ in range(2):
            for number in range(12):
                await commit(of, groups[number % 3], 100 * round_ + number)
            for broker in of.brokers.values():
                await tier_led(broker)
            for group in groups:
                await commit(of, group, 100 * round_ + 50)
            lost = of.coordinator(CONSUMER_OFFSETS.name, groups[round_]).node.config.node_id
            await of.brokers[lost].kill()
            await of.stop(lost)
            if round_ == 0:
                shutil.rmtree(tmp_path / f"broker-{lost}")
            await until(lambda lost=lost: all(each.leader not in (lost, -1) for each in partitions(of)))
            assert [await committed_offset(of, group) for group in groups] == [100 * round_ + 50] * 3
            stack = of._stacks[lost] = AsyncExitStack()
            of.brokers[lost] = await stack.enter_async_context(
                member(tmp_path, lost, take_over=round_ == 0, **settings)
            )
            of._talks.clear()
            for broker in of.brokers.values():
                await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
    finally:
        await of.close()


def partitions(of: Cluster) -> Any:
    return of.image.topics_by_name[CONSUMER_OFFSETS.name].partitions


async def tier_led(broker: RunningBroker) -> None:
    """Have what this broker leads of the committed offsets copied to the bucket."""
    tier = broker.node.remote_log_manager
    table = broker.node.partitions.table
    logs = [found.log for index in range(3) if (found := table.led(CONSUMER_OFFSETS.name, index)) is not None]
    for log in logs:
        log.roll()
    tier.kick()
    await until(
        lambda: all((tier.tiered_end(each.topic_id, each.partition) or 0) == each.log_end_offset for each in logs)
    )


@pytest.mark.ci
async def test_internal_topics_that_exist_change_to_object_durability_while_they_are_written(tmp_path: Path) -> None:
    of = One(tmp_path)
    try:
        broker = await of.up(again=False)
        await broker.node.membership.controller.create_topic("t", 1, {"firn.durability": "memory"})
        async with talk(broker.port) as client:
            await client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="x", key_type=0))
        await until(lambda: broker.node.cluster.image.topic(CONSUMER_OFFSETS.name) is not None)
        await led(broker, CONSUMER_OFFSETS.name, 2)
        assert broker.node.cluster.image.topics_by_name[CONSUMER_OFFSETS.name].configs.get("firn.durability") is None
        for number in range(10):
            await commit(of, f"g{number % 5}", number)
        changes = [
            ConfigChange("firn.durability", ConfigOperation.SET, "object"),
            ConfigChange("remote.storage.enable", ConfigOperation.SET, "true"),
            ConfigChange("firn.wal.linger.ms", ConfigOperation.SET, "2"),
        ]
        name = CONSUMER_OFFSETS.name
        await alter_configs(broker.node.membership.controller, ConfigResourceType.TOPIC, name, changes)
        await commit(of, "g0", 20)
        await until(lambda: {each.durability for each in partitions(of)} == {PartitionDurability.OBJECT})
        await commit(of, "g1", 21)
        await of.lose_the_disk()
        assert [await committed_offset(of, f"g{number}") for number in range(5)] == [20, 21, 7, 8, 9]
    finally:
        await of.close()


@pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])
async def test_a_topic_changes_to_object_durability_though_a_transaction_is_open_at_any_time(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability_changes, "OPEN_S", 0.5)
    async with one(tmp_path) as of:
        broker = of.brokers[1]
        kept = {"local_retention_ms": "-1", "retention_ms": "-1", "message_timestamp_before_max_ms": str(1 << 62)}
        await create(broker, "d", firn_durability="disk", **kept)
        image = lambda: broker.node.cluster.image.topics_by_name["d"].partitions[0]  # noqa: E731
        done = 0
        open_now: set[int] = set()
        stop = asyncio.Event()

        async def write(number: int) -> None:
            nonlocal done
            async with of.for_another_client() as client:
                producer = Producer(client, f"id{number}", version)
                await producer.init()
                while not stop.is_set():
                    await producer.add(("d", 0))
                    assert await producer.write("d", 0, b"x") is ErrorCode.NONE
                    open_now.add(number)
                    with suppress(TimeoutError):
                        await until(lambda: len(open_now) > 1, 2.0)
                    open_now.remove(number)  # another is open, and ends after this one only, or none may begin
                    await producer.end(commit=True)
                    done += 1

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(write(number))
            await until(lambda: done > 20)
            async with talk(broker.port) as client:
                await alter(client, "d", "object")
            await until(lambda: image().durability is PartitionDurability.OBJECT)
            changed = done
            await until(lambda: done > changed + 20)
            stop.set()
        await until(lambda: not broker.log("d").producers.has_transactions)
        assert broker.log("d").log_end_offset == 2 * done, "a record and a marker of each"
        broker = await of.lose_the_disk()
        again = broker.log("d").log_end_offset - 2 * done
        assert 0 <= again <= 3, "of each producer, a marker whose end was not stored may be written again"
        assert not broker.log("d").producers.has_transactions
