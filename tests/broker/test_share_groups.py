"""Share groups on a whole broker (KIP-932): records are acquired, acknowledged, given back, and found again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.configs import Durability, TopicConfig
from app.coordinator.partition import CoordinatedLog, ReplayedBatch
from app.core.errors import ErrorCode
from app.core.units import LeaderEpoch
from app.groups.share.core.share_state import ShareKey
from app.groups.share.core.share_window import Acquired
from app.handlers.apis.share_fetch import in_batches
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from app.wire.apis.delete_groups import DeleteGroupsRequest
from app.wire.apis.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from app.wire.apis.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.list_groups import ListGroupsRequest
from app.wire.apis.share_fetch import ShareFetchRequest
from app.wire.apis.share_group_describe import ShareGroupDescribeRequest
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import delete_topic
from tests.support.share_workers import ACCEPT, GROUP, REJECT, RELEASE, RENEW, Worker, configure, workers
from tests.support.talking import produce


async def test_who_keeps_a_share_partition_is_found_by_clients_that_may_know_of_them(tmp_path: Path) -> None:
    topic = "AAAAAAAAAAAAAAAAAAAAAQ"
    names = [f"g:{topic}:3", f"g:h:{topic}:3"]
    strange = ["", "g", f"g:{topic}", "g:not a topic:3", f"g:{topic}:x", f" :{topic}:3"]
    assert [ShareKey.parse(name).name for name in names] == names
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        for version in range(1, 7):
            asked = FindCoordinatorRequest(key=names[0], key_type=2, coordinator_keys=names + strange)
            answer = await client.ask(ApiKey.FIND_COORDINATOR, version, asked)
            found = answer.coordinators if version >= 4 else [answer]
            if version < 6:
                assert {each.error_code for each in found} == {ErrorCode.INVALID_REQUEST}
            else:
                assert [each.error_code for each in found] == [0, 0] + [ErrorCode.INVALID_REQUEST] * len(strange)
                assert [each.node_id for each in found[:3]] == [1, 1, -1]


async def test_what_no_member_of_the_group_subscribes_to_is_not_begun(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        for topic in ("t", "u"):
            await broker.create_topic(topic, 1)
        async with workers(broker, "a") as (a,):
            answer = await a.ask("u")
            assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert "subscribes to u" in answer.responses[0].partitions[0].error_message
            u = broker.node.cluster.image.topics_by_name["u"].topic_id
            assert broker.node.shares.keys(lambda key: key.topic_id == u) == []


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
async def test_records_are_shared_and_what_is_done_with_stays_so_after_a_restart(
    tmp_path: Path, durability: Durability
) -> None:
    defaults = TopicConfig(firn_durability=durability)
    async with running_broker(tmp_path, topic_defaults=defaults) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a", "b") as (a, b):
            await produce(producer, "t", *(batch(1) for _ in range(10)))
            assert await a.get(max_records=4) == [(0, 3, 1)]
            assert await b.get() == [(4, 9, 1)]
            assert await a.say(0, 2, ACCEPT) is ErrorCode.NONE
            assert await b.say(4, 5, RELEASE, REJECT) is ErrorCode.NONE
            assert await b.say(0, 0, ACCEPT) is ErrorCode.NONE, "what is done with may be said anything of"
            assert await b.say(3, 3, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
            assert await a.get() == [(4, 4, 2)]
    async with running_broker(tmp_path, topic_defaults=defaults) as broker, workers(broker, "a") as (a,):
        assert await a.get() == [(3, 3, 2), (4, 4, 3), (6, 9, 2)], "what was not acknowledged, from who has gone"


async def test_what_is_said_of_records_that_nobody_was_given_is_refused_as_in_kafka(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 2, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,):
            await produce(producer, "t", batch(5))
            assert await a.get() == [(0, 4, 1)]
            assert await a.say(0, 0, ACCEPT, partition=1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await a.say(0, 4, ACCEPT) is ErrorCode.NONE


async def test_a_member_that_closes_its_session_gives_back_what_it_has(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a", "b") as (a, b):
            await produce(producer, "t", batch(5))
            assert await a.get() == [(0, 4, 1)]
            assert await b.get() == []
            assert await a.say(0, 1, ACCEPT, epoch=-1) is ErrorCode.NONE, "its last request still speaks of what it has"
            assert await b.get() == [(2, 4, 2)]


@pytest.mark.ci
async def test_time_is_limited_unless_it_is_renewed(tmp_path: Path) -> None:
    async with running_broker(tmp_path, group_share_record_lock_duration_ms=5000) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a", "b") as (a, b):
            await produce(producer, "t", batch(2))
            assert await a.get() == [(0, 1, 1)]
            assert await a.say(0, 0, RENEW) is ErrorCode.NONE
            given = await b.get(max_wait_ms=30_000)
            assert (1, 1, 2) in given or (0, 1, 2) in given
            assert await a.say(1, 1, ACCEPT) is ErrorCode.INVALID_RECORD_STATE


async def test_a_group_that_renews_nothing_says_so(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest", share_renew_acknowledge_enable="false")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,):
            await produce(producer, "t", batch(1))
            assert await a.get() == [(0, 0, 1)]
            assert await a.say(0, 0, RENEW) is ErrorCode.INVALID_RECORD_STATE
            assert await a.say(0, 0, ACCEPT) is ErrorCode.NONE


async def test_a_fetch_waits_for_records_and_begins_at_the_end_by_default(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,):
            await produce(producer, "t", batch(3))
            assert await a.get() == []
            waiting = asyncio.create_task(a.get(max_wait_ms=30_000))
            await produce(producer, "t", batch(2))
            assert await waiting == [(3, 4, 1)]


async def test_begins_where_the_group_says(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="by_duration:PT1H")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,):
            now_ms = broker.node.context.clock.now_ms()
            await produce(producer, "t", batch(2, timestamp=now_ms - 7_200_000), batch(2, timestamp=now_ms - 60_000))
            assert await a.get() == [(2, 3, 1)]


async def test_records_that_left_the_local_disk_are_shared_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path, remote_log_manager_task_interval_ms=50) as broker:
        await broker.create_topic("t", 1, segment_bytes="1048576", local_retention_bytes="0", retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,):
            await produce(producer, "t", *(batch(1, value=b"x" * 500_000) for _ in range(8)))
            log = broker.log("t")
            async with asyncio.timeout(60):
                while log.local_log_start_offset == 0:
                    await asyncio.sleep(0.02)
            got: list[int] = []
            async with asyncio.timeout(60):
                while len(got) < 8:
                    for first, last, _ in await a.get(max_wait_ms=5000):
                        got += range(first, last + 1)
            assert got == list(range(8))


@pytest.mark.parametrize(("epoch", "code"), [(5, ErrorCode.INVALID_SHARE_SESSION_EPOCH), (-1, ErrorCode.NONE)])
async def test_sessions_are_kept_in_step(tmp_path: Path, epoch: int, code: ErrorCode) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        async with workers(broker, "a") as (a,):
            assert await a.say(0, 0, ACCEPT, epoch=1) is ErrorCode.SHARE_SESSION_NOT_FOUND
            assert await a.say(0, 0, ACCEPT, epoch=0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
            assert (await a.ask(epoch=1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
            a.name = "x" * 37
            assert (await a.ask(epoch=0)).error_code == ErrorCode.INVALID_REQUEST
            a.name = "a"
            await a.get()
            assert (await a.ask(epoch=epoch)).error_code == code


async def test_groups_and_their_offsets_are_described_altered_and_deleted(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as client, workers(broker, "a") as (a,):
            await produce(client, "t", batch(10))
            await a.get(max_records=4)
            await a.say(1, 2, ACCEPT)
            assert await start_and_lag(client) == (0, 8)
            described = (await client.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest([GROUP]))).groups[0]
            assert (described.group_state, described.assignor_name) == ("Stable", "simple")
            assert described.members[0].assignment.topic_partitions[0].partitions == [0]
            listed = (await client.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(types_filter=["share"]))).groups
            assert [(group.group_id, group.group_type) for group in listed] == [(GROUP, "share")]

            assert await altered(client, 7) == (ErrorCode.NON_EMPTY_GROUP, None)
            await a.close()
            await a.leave()
            assert await altered(client, 7) == (ErrorCode.NONE, ErrorCode.NONE)
            assert await start_and_lag(client) == (7, 3)
            assert await altered(client, 99) == (ErrorCode.NONE, ErrorCode.NONE)
            assert await start_and_lag(client) == (99, -89)
            assert await altered(client, -2) == (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
            assert await start_and_lag(client) == (99, -89)
            for _ in range(2):
                assert await altered(client, -1) == (ErrorCode.NONE, ErrorCode.NONE)
                assert await start_and_lag(client) == (-1, -1)
            assert await altered(client, 7) == (ErrorCode.NONE, ErrorCode.NONE)
            request = DeleteShareGroupOffsetsRequest(GROUP, [DeleteShareGroupOffsetsRequestTopic("t")])
            answer = await client.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, request)
            assert (answer.error_code, answer.responses[0].error_code) == (0, 0)
            assert await start_and_lag(client) == (-1, -1)
            answer = await client.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([GROUP]))
            assert answer.results[0].error_code == 0
            answer = await client.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest([GROUP]))
            assert answer.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_what_members_subscribe_to_is_described_before_anybody_reads_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 2, retention_ms="-1")
        async with talk(broker.port) as client, workers(broker, "a") as (a,):
            for reads in (False, True):
                if reads:
                    await a.ask(partitions=[1])
                assert await begun(client) == {("t", 0): False, ("t", 1): reads}
            await a.leave()
            assert await begun(client) == {("t", 0): False, ("t", 1): True}


async def begun(client: Talk) -> dict[tuple[str, int], bool]:
    """Which partitions are described of a group, and whether it has begun to read them."""
    asked = DescribeShareGroupOffsetsRequestGroup(GROUP, None)
    answer = await client.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, DescribeShareGroupOffsetsRequest([asked]))
    assert {each.error_code for topic in answer.groups[0].topics for each in topic.partitions} == {ErrorCode.NONE}
    return {
        (topic.topic_name, each.partition_index): each.start_offset >= 0
        for topic in answer.groups[0].topics
        for each in topic.partitions
    }


async def test_a_group_is_deleted_after_its_progress_and_not_while_that_is_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        shares = broker.node.shares

        async def deleted(client: Talk) -> ErrorCode:
            answer = await client.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([GROUP]))
            return ErrorCode(answer.results[0].error_code)

        async with talk(broker.port) as client, workers(broker, "a") as (a,):
            await a.get()
            (known,) = shares.keys(lambda _: True)
            assert await deleted(client) is ErrorCode.NON_EMPTY_GROUP
            assert shares.keys(lambda _: True) == [known]
            await a.close()
            await a.leave()
            gate, replay = asyncio.Event(), CoordinatedLog.replay

            async def held_up(log: CoordinatedLog, **more: Any) -> AsyncIterator[list[ReplayedBatch]]:
                await gate.wait()
                async for batches in replay(log, **more):
                    yield batches

            monkeypatch.setattr(CoordinatedLog, "replay", held_up)
            partition = shares.shell.partition_of(known.name)
            shares.shell.on_resign(partition)
            shares.shell.on_leader(partition, LeaderEpoch(0))
            with monkeypatch.context() as soon:
                soon.setattr("app.groups.share.share_coordinator.LOAD_WAIT_S", 0.01)
                assert await deleted(client) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            described = await client.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest([GROUP]))
            assert described.groups[0].group_state == "Empty"
            gate.set()
            async with asyncio.timeout(60):
                while shares.shell.loading:
                    await asyncio.sleep(0.01)
            assert shares.keys(lambda _: True) == [known]
            assert await deleted(client) is ErrorCode.NONE
            assert shares.keys(lambda _: True) == []


async def test_what_operators_ask_of_offsets_waits_for_progress_that_is_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        shell = broker.node.shares.shell
        gate, replay = asyncio.Event(), CoordinatedLog.replay

        async def held_up(log: CoordinatedLog, **more: Any) -> AsyncIterator[list[ReplayedBatch]]:
            await gate.wait()
            async for batches in replay(log, **more):
                yield batches

        def read_again() -> None:
            gate.clear()
            for partition, _ in shell.shards():
                shell.on_resign(partition)
                shell.on_leader(partition, LeaderEpoch(0))

        async def forgotten(client: Talk) -> ErrorCode:
            request = DeleteShareGroupOffsetsRequest(GROUP, [DeleteShareGroupOffsetsRequestTopic("t")])
            answer = await client.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, request)
            return ErrorCode(answer.responses[0].error_code)

        async with talk(broker.port) as client, talk(broker.port) as other, workers(broker, "a") as (a,):
            await a.leave()
            await shell.when_loaded(timeout_s=60)
            monkeypatch.setattr(CoordinatedLog, "replay", held_up)
            read_again()
            altering = asyncio.create_task(altered(client, 7))
            await other.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest())
            assert not altering.done()
            gate.set()
            assert await altering == (ErrorCode.NONE, ErrorCode.NONE)
            await shell.when_loaded(timeout_s=60)
            for asked, answer in ((start_and_lag, (7, -7)), (forgotten, ErrorCode.NONE)):
                read_again()
                asking = asyncio.create_task(asked(client))
                await other.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest())
                assert not asking.done()
                gate.set()
                assert await asking == answer
                await shell.when_loaded(timeout_s=60)


async def start_and_lag(client: Talk) -> tuple[int, int]:
    asked = DescribeShareGroupOffsetsRequestGroup(GROUP, None)
    answer = await client.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, DescribeShareGroupOffsetsRequest([asked]))
    (group,) = answer.groups
    assert group.error_code == 0
    if not group.topics:
        return -1, -1
    (partition,) = group.topics[0].partitions
    return partition.start_offset, partition.lag


async def altered(client: Talk, start: int) -> tuple[ErrorCode, ErrorCode | None]:
    topic = AlterShareGroupOffsetsRequestTopic("t", [AlterShareGroupOffsetsRequestPartition(0, start)])
    answer = await client.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, AlterShareGroupOffsetsRequest(GROUP, [topic]))
    if answer.error_code:
        return ErrorCode(answer.error_code), None
    return ErrorCode.NONE, ErrorCode(answer.responses[0].partitions[0].error_code)


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
async def test_progress_in_a_deleted_topic_is_forgotten(tmp_path: Path, durability: Durability) -> None:
    async with running_broker(tmp_path, topic_defaults=TopicConfig(firn_durability=durability)) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        async with workers(broker, "a") as (a,):
            await a.get()
            assert len(broker.node.shares.keys(lambda _: True)) == 1
            await delete_topic(broker.node.membership.controller, "t")
            assert broker.node.shares.keys(lambda _: True) == []
            answer = await a.ask()
            assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def given(worker: Worker, partitions: Sequence[int], **fields: Any) -> dict[int, int]:
    """How many records a worker is given of which partition by one fetch."""
    parts = [
        part for topic in (await worker.ask(partitions=partitions, **fields)).responses for part in topic.partitions
    ]
    assert all(part.error_code == 0 for part in parts), parts
    counts = {
        part.partition_index: sum(r.last_offset - r.first_offset + 1 for r in part.acquired_records) for part in parts
    }
    return {index: count for index, count in counts.items() if count}


async def test_members_that_come_together_share_what_was_there_before_them(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 4, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a", "b") as (a, b):
            for index in range(4):
                await produce(producer, "t", batch(100), partition=index)
            await loaded(broker)
            assert await given(a, range(4), max_wait_ms=30_000) == {0: 100}
            assert len(broker.node.shares.keys(lambda _: True)) == 4
            assert await given(b, range(4), max_wait_ms=30_000) == {1: 100, 2: 100, 3: 100}


async def test_who_waits_for_many_bytes_is_given_new_partitions_together(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 3, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,):
            for index in range(3):
                await produce(producer, "t", batch(5), partition=index)
            await loaded(broker)
            assert await given(a, range(3), max_wait_ms=100, min_bytes=10_000) == {0: 5, 1: 5, 2: 5}


async def test_the_bytes_of_a_fetch_are_divided_among_its_partitions(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 4, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,):
            await loaded(broker)
            await given(a, range(4))
            await given(a, range(4))
            for index in range(4):
                for _ in range(8):
                    await produce(producer, "t", batch(1, value=bytes(1000)), partition=index)
            assert await given(a, range(4), max_bytes=13_000) == {0: 3, 1: 3, 2: 3, 3: 3}


async def loaded(broker: RunningBroker) -> None:
    """The topic of the progress is there and read."""
    await broker.node.shares.ready()
    await broker.node.shares.shell.when_loaded(timeout_s=60)


async def test_who_waits_is_given_what_another_gives_back(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a", "b") as (a, b):
            await produce(producer, "t", batch(4))
            assert await a.get() == [(0, 3, 1)]
            assert await b.get() == []
            waiting = asyncio.create_task(b.get(max_wait_ms=30_000))
            key = broker.node.shares.keys(lambda _: True)[0]
            async with asyncio.timeout(60):
                while not len(broker.node.shares.find(key).changed):  # type: ignore[union-attr]
                    await asyncio.sleep(0.01)
            assert await a.say(1, 2, RELEASE) is ErrorCode.NONE
            assert await waiting == [(1, 2, 2)]


async def test_a_member_whose_connection_is_gone_gives_back_what_it_has(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a", "b") as (a, b):
            await produce(producer, "t", batch(5))
            assert await a.get() == [(0, 4, 1)]
            assert await b.get() == []
            waiting = asyncio.create_task(b.get(max_wait_ms=30_000))
            await a.connection.close()
            assert await waiting == [(0, 4, 2)]
            assert len(broker.node.shares.sessions) == 1


async def test_a_fetch_whose_connection_is_gone_acquires_nothing_any_more(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        async with talk(broker.port) as producer, workers(broker, "a", "b") as (a, b):
            assert await a.get() == []
            a.connection.send(ApiKey.SHARE_FETCH, 2, ShareFetchRequest(GROUP, "a", 1, 10_000, max_records=500))
            key = broker.node.shares.keys(lambda _: True)[0]
            async with asyncio.timeout(60):
                while not len(broker.node.shares.find(key).changed):  # type: ignore[union-attr]
                    await asyncio.sleep(0.01)
            await a.connection.close()
            async with asyncio.timeout(60):
                while len(broker.node.shares.sessions):
                    await asyncio.sleep(0.01)
            await produce(producer, "t", batch(5))
            assert await b.get(max_wait_ms=30_000) == [(0, 4, 1)]


async def test_a_new_session_takes_the_place_of_an_older_one_whose_records_stay_with_the_member(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,), talk(broker.port) as other:
            await produce(producer, "t", batch(5))
            assert await a.get() == [(0, 4, 1)]
            before, a.connection, a.epoch = a.connection, other, 0
            assert await a.get() == []
            await before.close()
            assert await a.say(0, 4, ACCEPT) is ErrorCode.NONE


async def test_a_record_batch_is_given_whole_unless_the_count_is_a_limit(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,):
            await produce(producer, "t", *(batch(4) for _ in range(5)))
            assert await a.get(max_records=2, share_acquire_mode=1) == [(0, 1, 1)]
            assert await a.get(max_records=1) == [(2, 3, 1)], "what is left of the batch"
            assert await a.get(max_records=5) == [(4, 11, 1)]
            assert await a.get(batch_size=3) == [(12, 15, 1), (16, 19, 1)]


async def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for_or_takes_what_there_is(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t", 1, retention_ms="-1")
        await configure(broker, share_auto_offset_reset="earliest")
        async with talk(broker.port) as producer, workers(broker, "a") as (a,):
            await produce(producer, "t", batch(1, value=b"x" * 1000))
            assert await a.get(min_bytes=1500, max_wait_ms=50) == [(0, 0, 1)]
            await produce(producer, "t", batch(1, value=b"x" * 1000))
            waiting = asyncio.create_task(a.get(min_bytes=1500, max_wait_ms=30_000))
            key = broker.node.shares.keys(lambda _: True)[0]
            async with asyncio.timeout(60):
                while not len(broker.node.shares.find(key).changed):  # type: ignore[union-attr]
                    await asyncio.sleep(0.01)
            assert not waiting.done()
            await produce(producer, "t", batch(1, value=b"x" * 1000))
            assert await waiting == [(1, 2, 1)]


@pytest.mark.parametrize(
    ("count_min", "pieces"),
    [
        (0, [(0, 9), (10, 20)]),
        (1, [(0, 3), (3, 6), (6, 9), (10, 12), (12, 15), (15, 18), (18, 20)]),
        (4, [(0, 6), (6, 9), (10, 15), (15, 20)]),
        (100, [(0, 9), (10, 20)]),
    ],
)
def test_what_was_acquired_is_cut_where_record_batches_end(count_min: int, pieces: list[tuple[int, int]]) -> None:
    acquired = [Acquired(0, 9, 1), Acquired(10, 20, 2)]
    found = list(in_batches(acquired, [3, 6, 9, 12, 15, 18, 21], count_min))
    assert [(each.first, each.end) for each in found] == pieces
    assert [each.delivery_count for each in found] == [1 if end <= 9 else 2 for _, end in pieces]
