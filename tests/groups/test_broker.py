"""The group coordinator in a running broker: its topic, what a restart keeps, durability, and what clients may not do to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.configs import Durability, TopicConfig
from app.core.errors import ErrorCode
from app.core.limits import OFFSETS_PER_COMMIT_MAX
from app.handlers.base.commits import COMMITTED_AT_ONCE
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from tests.groups.requests import DEADLINE_S, FEW, ask, commit, committed, find
from tests.interop.peers import make, produce, request
from tests.interop.serving import Raw
from tests.support.broker import running_broker
from tests.support.changing import delete_topic


async def test_the_topic_is_made_with_the_first_question_and_is_internal(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FEW) as broker:
        found = await find(broker)
        assert (found.error_code, found.node_id, found.port) == (0, 1, broker.port)
        topic = broker.node.cluster.image.topic("__consumer_offsets")
        assert topic is not None
        assert (len(topic.partitions), topic.is_internal) == (2, True)
        config = broker.node.cluster.effective_config(topic)
        assert (config.compacted, config.tiered, config.segment_bytes) == (True, False, 104_857_600)
        with Raw(broker.port) as raw:
            metadata = await asyncio.to_thread(raw.ask, ApiKey.METADATA, 9, request(ApiKey.METADATA, topics=None))
        assert [(topic.name, topic.is_internal) for topic in metadata.topics] == [("__consumer_offsets", True)]


async def test_clients_may_neither_write_to_the_topic_nor_cut_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FEW) as broker:
        await find(broker)
        batch = build_batch([(1_700_000_000_000, b"k", b"v", ())])
        with Raw(broker.port) as raw:
            answer = await asyncio.to_thread(raw.ask, ApiKey.PRODUCE, 9, produce(("__consumer_offsets", 0, batch)))
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            key = ApiKey.DELETE_RECORDS
            part = make(key, "DeleteRecordsPartition", partition_index=0, offset=-1)
            topics = [make(key, "DeleteRecordsTopic", name="__consumer_offsets", partitions=[part])]
            answer = await asyncio.to_thread(raw.ask, key, 2, request(key, topics=topics, timeout_ms=60_000))
            assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert broker.log("__consumer_offsets").log_end_offset == 0


async def test_a_commit_of_too_many_offsets_is_refused_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FEW) as broker:
        await broker.create_topic("t")
        await find(broker)
        message = commit("g", "t", 0, 1)
        message.topics[0].partitions *= OFFSETS_PER_COMMIT_MAX + 1
        answer = await ask(broker.node.context, ApiKey.OFFSET_COMMIT, 8, message)
        assert {part.error_code for part in answer.topics[0].partitions} == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert await committed(broker.node.context, "g") == {}


async def test_a_long_commit_is_answered_for_each_offset_and_the_last_of_repeats_counts(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FEW) as broker:
        await broker.create_topic("t")
        await find(broker)
        message = commit("g", "t", 0, 1)
        (topic,) = message.topics
        count = 3 * COMMITTED_AT_ONCE
        topic.partitions = [replace(topic.partitions[0], committed_offset=number) for number in range(count)]
        answer = await ask(broker.node.context, ApiKey.OFFSET_COMMIT, 8, message)
        assert [each.name for each in answer.topics] == ["t"]
        assert [each.error_code for each in answer.topics[0].partitions] == [ErrorCode.NONE] * count
        assert await committed(broker.node.context, "g") == {("t", 0): count - 1}


async def test_a_commit_for_nothing_that_there_is_is_answered_without_the_group(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FEW) as broker:
        await broker.create_topic("t")
        await find(broker)

        async def code(topic: str, partition: int, metadata: str = "") -> ErrorCode:
            message = commit("g", topic, partition, 1)
            message.member_id, message.generation_id_or_member_epoch = "stranger", 3
            message.topics[0].partitions[0].committed_metadata = metadata
            answer = await ask(broker.node.context, ApiKey.OFFSET_COMMIT, 8, message)
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        assert await code("t", 0) is ErrorCode.ILLEGAL_GENERATION
        assert await code("t", 0, "x" * 5_000) is ErrorCode.ILLEGAL_GENERATION
        assert await code("t", 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await code("none", 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
async def test_offsets_are_there_after_a_restart(tmp_path: Path, durability: Durability) -> None:
    defaults = TopicConfig(firn_durability=durability)
    groups = [f"g{number}" for number in range(10)]
    for first in (True, False):
        async with running_broker(tmp_path, topic_defaults=defaults, **FEW) as broker:
            if first:
                await broker.create_topic("t", 3)
                await find(broker)
                for number, group in enumerate(groups):
                    answer = await ask(broker.node.context, ApiKey.OFFSET_COMMIT, 8, commit(group, "t", 1, number))
                    assert answer.topics[0].partitions[0].error_code == 0
                    for partition in range(2):
                        log = broker.log("__consumer_offsets", partition)
                        assert durability is Durability.MEMORY or log.synced_end_offset == log.log_end_offset
            for number, group in enumerate(groups):
                assert await committed(broker.node.context, group) == {("t", 1): number}
            assert broker.lines == []


async def test_offsets_of_a_deleted_topic_are_gone_also_for_its_successor(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FEW) as broker:
        for name in ("t", "u"):
            await broker.create_topic(name)
        await find(broker)
        context = broker.node.context
        for name in ("t", "u"):
            await ask(context, ApiKey.OFFSET_COMMIT, 8, commit("g", name, 0, 7))
        await delete_topic(broker.node.membership.controller, "t")
        await broker.create_topic("t")
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while (found := await committed(context, "g")) != {("u", 0): 7}:
            assert asyncio.get_running_loop().time() < deadline, found
            await asyncio.sleep(0.01)


async def test_deleting_the_topic_of_offsets_forgets_them_and_nothing_else(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FEW) as broker:
        await broker.create_topic("t")
        await find(broker)
        context = broker.node.context
        await ask(context, ApiKey.OFFSET_COMMIT, 8, commit("g", "t", 0, 7))
        await delete_topic(broker.node.membership.controller, "__consumer_offsets")
        with Raw(broker.port) as raw:
            answer = await asyncio.to_thread(raw.ask, ApiKey.OFFSET_COMMIT, 8, commit("g", "t", 0, 8))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await find(broker)
        assert await committed(context, "g") == {}
        await ask(context, ApiKey.OFFSET_COMMIT, 8, commit("g", "t", 0, 9))
        assert await committed(context, "g") == {("t", 0): 9}
        assert broker.lines == []


async def test_commits_that_are_not_allowed_are_refused_with_kafkas_codes_in_every_version(tmp_path: Path) -> None:
    """The table that the comparison with Apache Kafka holds against both."""
    none, unknown = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID
    async with running_broker(tmp_path, **FEW) as broker:
        await broker.create_topic("t")
        topic_id = broker.node.cluster.image.topics_by_name["t"].topic_id
        await find(broker)
        for version in range(2, 11):
            by_id, by_epoch = version >= 10, version >= 9
            missing = ErrorCode.GROUP_ID_NOT_FOUND if by_epoch else ErrorCode.ILLEGAL_GENERATION
            no_topic = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            table: list[tuple[dict[str, Any], ErrorCode]] = [
                ({"group": f"missing-{version}", "member": "m", "generation": 1}, missing),
                ({}, none),
                ({"topic": "nowhere"}, no_topic),
                ({"partition": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                ({"metadata": "m" * 4096}, none),
                ({"metadata": "m" * 4097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
                ({"metadata": None}, none),
                ({"offset": -1}, none),
                ({"member": "m"}, none),
                ({"member": "m", "generation": 1}, unknown),
            ]
            for row, expected in table:
                message = commit(
                    row.get("group", "simple"), row.get("topic", "t"), row.get("partition", 0), row.get("offset", 5)
                )
                message.member_id = row.get("member", "")
                message.generation_id_or_member_epoch = row.get("generation", -1)
                (asked,) = message.topics
                asked.partitions[0].committed_metadata = row.get("metadata", "")
                if by_id and "topic" not in row:
                    asked.topic_id = topic_id
                answer = await ask(broker.node.context, ApiKey.OFFSET_COMMIT, version, message)
                assert ErrorCode(answer.topics[0].partitions[0].error_code) is expected, (version, row)


async def test_a_member_commits_with_the_epoch_before_what_it_still_has(tmp_path: Path) -> None:
    """KIP-1251; and with one commit that it may not make, none of a request is made."""
    async with running_broker(tmp_path, **FEW) as broker:
        context = broker.node.context
        await broker.create_topic("t", 2)
        await find(broker)

        async def beat(epoch: int) -> int:
            key = ApiKey.CONSUMER_GROUP_HEARTBEAT
            said = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
            message = request(key, group_id="g", member_id="m", member_epoch=epoch, **(said if epoch == 0 else {}))
            answer = await ask(context, key, 1, message)
            assert answer.error_code == 0, answer
            return int(answer.member_epoch)

        async def code(epoch: int, *partitions: int) -> ErrorCode:
            message = commit("g", "t", 0, 7)
            message.member_id, message.generation_id_or_member_epoch = "m", epoch
            message.topics[0].partitions = [
                make(
                    ApiKey.OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=index, committed_offset=index
                )
                for index in partitions
            ]
            answer = await ask(context, ApiKey.OFFSET_COMMIT, 9, message)
            (found,) = {part.error_code for part in answer.topics[0].partitions}
            return ErrorCode(found)

        joined = await beat(0)
        await broker.node.membership.controller.create_partitions("t", 3)
        async with asyncio.timeout(DEADLINE_S):
            while await beat(joined) == joined:
                await asyncio.sleep(0.01)
        assert await code(joined, 0, 2) is ErrorCode.STALE_MEMBER_EPOCH
        assert await committed(context, "g") == {}
        assert await code(joined, 0, 1) is ErrorCode.NONE
        assert await committed(context, "g") == {("t", 0): 0, ("t", 1): 1}


async def test_ten_members_keep_what_records_may_have_and_nothing_once_their_sessions_are_over(tmp_path: Path) -> None:
    """A request may have 8 MB. Each member has a group and a connection of its own."""
    key, version = ApiKey.JOIN_GROUP, 3

    def join(number: int, size: int) -> Any:
        protocol = make(key, "JoinGroupRequestProtocol", name="range", metadata=bytes(size))
        times = {"session_timeout_ms": 200, "rebalance_timeout_ms": 200}
        return request(key, group_id=f"g{number}", protocol_type="consumer", protocols=[protocol], **times)

    async with running_broker(tmp_path, **FEW, group_min_session_timeout_ms=100) as broker:
        await find(broker)
        memory = broker.node.context.groups.memory
        await ask(broker.node.context, key, version, join(0, 10))
        most = 1_048_588
        for number in range(10):
            with Raw(broker.port) as raw:
                refused = await asyncio.to_thread(
                    raw.ask, key, version, join(number, 8_000_000 if number == 0 else most)
                )
                assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
                kept = await asyncio.to_thread(raw.ask, key, version, join(number, most - 10))
                assert kept.error_code == ErrorCode.NONE
            assert memory.bytes < (number + 1) * (most + 2_000) + 2_000
        async with asyncio.timeout(DEADLINE_S):
            while memory.bytes:
                await asyncio.sleep(0.01)
