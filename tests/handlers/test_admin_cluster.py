"""Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator over a real controller, in every version."""

from __future__ import annotations

import uuid
from collections.abc import Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.coordinator.topics import INTERNAL, ensure_topic
from app.core.errors import ErrorCode, StorageUnavailable
from app.core.units import BrokerId
from app.handlers.apis.metadata import handle
from app.handlers.base.authorising import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from app.handlers.base.request import Request
from app.metadata.controller.controller import Controller
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_cluster import DescribeClusterRequest
from app.wire.apis.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.codec import Encoded, decode_response, encode_response
from tests.handlers.admin_bench import NODE_ID, AdminBench, admin_bench, answered, versions
from tests.support.callers import SOMEBODY
from tests.support.changing import delete_topic

ALL_VERSIONS = versions(ApiKey.METADATA)


async def metadata(bench: AdminBench, version: int, names: list[str] | None, **options: bool) -> Any:
    topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    return await bench.ask(ApiKey.METADATA, version, MetadataRequest(topics=topics, **options))


# --- Metadata -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_brokers_topics_and_leaders_are_told_in_every_version(version: int) -> None:
    async with admin_bench(auto_create_topics_enable=False) as bench:
        made = await bench.controller.create_topic("t", 2)
        answer = await metadata(bench, version, ["t", "missing", "t"])
        [broker] = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (NODE_ID, "broker.example", 9092)
        topics = answered(answer.topics)
        assert len(answer.topics) == 2
        assert topics["missing"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert topics["t"].error_code == ErrorCode.NONE
        assert [
            (part.partition_index, part.leader_id, part.replica_nodes, part.isr_nodes, part.error_code)
            for part in topics["t"].partitions
        ] == [(index, NODE_ID, [NODE_ID], [NODE_ID], ErrorCode.NONE) for index in range(2)]
        if version >= 1:
            assert (broker.rack, answer.controller_id, topics["t"].is_internal) == ("a", NODE_ID, False)
        if version >= 2:
            assert answer.cluster_id == bench.cluster.image.cluster_id
        if version >= 7:
            assert topics["t"].partitions[0].leader_epoch == made.partitions[0].leader_epoch
        if version >= 10:
            assert topics["t"].topic_id == made.topic_id
        assert (await metadata(bench, version, ["t"])).brokers


async def test_a_broker_names_itself_when_no_broker_is_alive() -> None:
    async with admin_bench() as bench:
        image = bench.cluster.image
        own = image.brokers[NODE_ID]

        async def told(*fenced: bool) -> list[int]:
            brokers = {
                broker_id: replace(own, broker_id=BrokerId(broker_id), fenced=is_fenced)
                for broker_id, is_fenced in zip((NODE_ID, NODE_ID + 1), fenced, strict=False)
            }
            bench.context.cluster = SimpleNamespace(image=replace(image, brokers=brokers))  # type: ignore[assignment]
            return [broker.node_id for broker in (await metadata(bench, 12, None)).brokers]

        assert await told(False, False) == [NODE_ID, NODE_ID + 1]
        assert await told(True, False) == [NODE_ID + 1]
        assert await told(True, True) == [NODE_ID]
        assert await told(True) == [NODE_ID]
        assert await told() == []


@pytest.mark.parametrize("with_operations", [False, True])
@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_pieces_that_are_kept_make_the_bytes_of_the_whole(version: int, with_operations: bool) -> None:
    async with admin_bench(auto_create_topics_enable=False) as bench:
        for name in ("a", "b"):
            await bench.controller.create_topic(name, 3)
        for names in (None, ["b", "missing", "a"], ["a"]):
            topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
            if version == 0 and topics is None:
                topics = []
            message = MetadataRequest(
                topics=topics,
                include_topic_authorized_operations=with_operations,
                include_cluster_authorized_operations=with_operations,
            )
            request = Request(int(ApiKey.METADATA), version, 1, "test", SOMEBODY)
            request.throttle_time_ms = 77
            bodies = [handle(bench.context, request, message).body for _ in range(2)]  # type: ignore[union-attr]
            assert bodies[0] == bodies[1]
            decoded = decode_response(ApiKey.METADATA, version, memoryview(bodies[0]))
            assert encode_response(ApiKey.METADATA, version, decoded) == bodies[0]
            assert [topic.name for topic in decoded.topics] == (names or ["a", "b"])
            assert decoded.throttle_time_ms == (77 if version >= 3 else 0)
            told = decoded.topics[-1].topic_authorized_operations
            assert told == (TOPIC_OPERATIONS if with_operations and version >= 8 else NOT_ASKED)


async def test_what_is_kept_is_not_told_after_a_change() -> None:
    async with admin_bench() as bench:
        for name in ("a", "b"):
            await bench.controller.create_topic(name, 1)
        assert [len(topic.partitions) for topic in (await metadata(bench, 12, None)).topics] == [1, 1]
        await bench.controller.create_partitions("a", 2)
        for names in (None, ["a", "b"]):
            topics = answered((await metadata(bench, 12, names)).topics)
            assert (len(topics["a"].partitions), len(topics["b"].partitions)) == (2, 1)
        await delete_topic(bench.controller, "b")
        assert [topic.name for topic in (await metadata(bench, 12, None)).topics] == ["a"]
        # What this broker cannot open is in no image.
        bench.logs.add("a", 0, high_watermark=0)
        held = bench.logs.table.get("a", 0)
        assert held is not None
        held.topic_id = bench.cluster.image.topics_by_name["a"].topic_id
        held.log.resign = lambda: None  # type: ignore[method-assign]
        for change, leader in (
            (lambda: bench.logs.table.put_offline(held, "it is damaged"), -1),
            (lambda: bench.logs.table.drop(held), NODE_ID),
        ):
            change()
            for names in (None, ["a"]):
                [topic] = (await metadata(bench, 12, names)).topics
                assert topic.partitions[0].leader_id == leader
                assert (topic.partitions[0].error_code == 0) is (leader >= 0)


def _finish(answer: Coroutine[Any, Any, Encoded]) -> tuple[int, bytes]:
    """Run it to its end. Returns: how often it let others have the loop, and the body."""
    turns = 0
    while True:
        try:
            answer.send(None)
        except StopIteration as over:
            return turns, over.value.body
        turns += 1


@pytest.mark.parametrize("names", [None, ["a", "b", "missing", "c"]])
async def test_many_topics_are_encoded_in_turns_and_told_as_they_are_at_the_end(
    monkeypatch: pytest.MonkeyPatch, names: list[str] | None
) -> None:
    monkeypatch.setattr("app.handlers.apis.metadata.PARTITIONS_AT_ONCE", 2)
    async with admin_bench(auto_create_topics_enable=False) as bench:
        for name in ("a", "b", "c"):
            await bench.controller.create_topic(name, 2)
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = Request(int(ApiKey.METADATA), 12, 1, "test", SOMEBODY)
        answer = handle(bench.context, request, MetadataRequest(topics=topics))
        assert isinstance(answer, Coroutine)
        assert answer.send(None) is None, "it has encoded the first topic, and lets others have the loop"
        await bench.controller.create_partitions("a", 3)
        await delete_topic(bench.controller, "c")
        turns, body = _finish(answer)
        assert turns, "the second topic has a turn of its own"
        found = answered(decode_response(ApiKey.METADATA, 12, memoryview(body)).topics)
        told = {name: len(topic.partitions) for name, topic in found.items() if not topic.error_code}
        assert told == {"a": 3, "b": 2}
        at_once = handle(bench.context, request, MetadataRequest(topics=topics))
        assert not isinstance(at_once, Coroutine), "nothing is left to encode"
        assert at_once.body == body  # type: ignore[union-attr]


async def test_kinds_that_nobody_asks_for_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        for version in ALL_VERSIONS:
            for _ in range(2):
                await metadata(bench, version, ["t"])
        assert list(bench.context.metadata_cache._pieces) == [(version, NOT_ASKED) for version in ALL_VERSIONS[-4:]]


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_all_topics_are_asked_for_by_null_and_in_version_0_by_an_empty_list(version: int) -> None:
    async with admin_bench() as bench:
        for name in ("a", "b"):
            await bench.controller.create_topic(name, 1)
        answer = await metadata(bench, version, [] if version == 0 else None)
        assert {topic.name for topic in answer.topics} == {"a", "b"}
        if version >= 1:
            assert (await metadata(bench, version, [])).topics == []


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_a_missing_topic_is_made_if_broker_and_client_allow_it(version: int) -> None:
    async with admin_bench(num_partitions=3) as bench:
        [topic] = (await metadata(bench, version, ["new"])).topics
        assert (topic.error_code, len(topic.partitions)) == (ErrorCode.NONE, 3)
        assert bench.cluster.image.topic("new") is not None
        if version >= 4:
            [topic] = (await metadata(bench, version, ["other"], allow_auto_topic_creation=False)).topics
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert bench.cluster.image.topic("other") is None


@pytest.mark.parametrize("name", sorted(INTERNAL))
async def test_the_coordinators_topics_are_made_as_coordinators_make_them(name: str) -> None:
    async with admin_bench() as bench, admin_bench() as other:
        [told] = (await metadata(bench, 9, [name])).topics
        assert told.error_code == ErrorCode.NONE
        asked = bench.cluster.image.topic(name)
        made = await ensure_topic(other.cluster, other.controller, INTERNAL[name])
        assert asked is not None
        assert (len(asked.partitions), asked.configs) == (len(made.partitions), made.configs)
        assert asked.configs["cleanup.policy"] == "compact"


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_name_that_no_topic_can_have_is_told_so(allowed: bool) -> None:
    async with admin_bench() as bench:
        [topic] = (await metadata(bench, 9, ["a/b"], allow_auto_topic_creation=allowed)).topics
        assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"num_partitions": 10_001}, ErrorCode.INVALID_PARTITIONS), ({"default_replication_factor": 2}, ErrorCode.NONE)],
)
async def test_a_topic_is_made_with_what_there_is_of_the_default_or_says_why_not(
    settings: dict[str, Any], code: ErrorCode
) -> None:
    async with admin_bench(**settings) as bench:
        [topic] = (await metadata(bench, 9, ["t"])).topics
        assert topic.error_code == code


async def test_a_topic_that_cannot_be_made_just_now_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(self: Controller, name: str) -> None:
        raise StorageUnavailable("the store does not answer")

    async with admin_bench() as bench:
        monkeypatch.setattr(Controller, "create_topic", unavailable)
        [topic] = (await metadata(bench, 9, ["t"])).topics
        assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("name", [None, ""])
@pytest.mark.parametrize("version", [12, 13])
async def test_topics_are_asked_for_by_id(version: int, name: str | None) -> None:
    async with admin_bench() as bench:
        made = await bench.controller.create_topic("t", 1)
        missing = uuid.UUID(int=3)
        topics = [MetadataRequestTopic(name=name, topic_id=topic_id) for topic_id in (made.topic_id, missing)]
        known, unknown = (await bench.ask(ApiKey.METADATA, version, MetadataRequest(topics=topics))).topics
        assert (known.name, known.topic_id, known.error_code) == ("t", made.topic_id, ErrorCode.NONE)
        assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, missing, ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", [10, 11])
async def test_topic_ids_in_a_version_without_them_are_an_invalid_request(version: int) -> None:
    async with admin_bench() as bench:
        topics = [MetadataRequestTopic(name=None, topic_id=uuid.UUID(int=3))]
        [topic] = (await bench.ask(ApiKey.METADATA, version, MetadataRequest(topics=topics))).topics
        assert topic.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(8, 14))
async def test_authorized_operations_are_all_and_only_told_if_asked_for(version: int) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        options = {"include_topic_authorized_operations": True}
        if version <= 10:
            options["include_cluster_authorized_operations"] = True
        answer = await metadata(bench, version, ["t"], **options)
        assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS == 3576
        if version <= 10:
            assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS == 8096
        assert (await metadata(bench, version, ["t"])).topics[0].topic_authorized_operations == NOT_ASKED


# --- DescribeCluster ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
async def test_the_cluster_is_described_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        message = DescribeClusterRequest(include_cluster_authorized_operations=True)
        answer = await bench.ask(ApiKey.DESCRIBE_CLUSTER, version, message)
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        assert (answer.cluster_id, answer.controller_id) == (bench.cluster.image.cluster_id, NODE_ID)
        [broker] = answer.brokers
        assert (broker.broker_id, broker.host, broker.port, broker.rack) == (NODE_ID, "broker.example", 9092, "a")
        assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS


@pytest.mark.parametrize("version", [1, 2])
async def test_endpoints_of_controllers_are_not_here(version: int) -> None:
    async with admin_bench() as bench:
        for endpoint_type, code in (
            (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
            (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        ):
            message = DescribeClusterRequest(endpoint_type=endpoint_type)
            answer = await bench.ask(ApiKey.DESCRIBE_CLUSTER, version, message)
            assert (answer.error_code, answer.brokers) == (code, [])
            assert answer.error_message


# --- DescribeTopicPartitions ----------------------------------------------------------------------------------------


async def pages(bench: AdminBench, names: list[str], limit: int) -> list[list[tuple[str, list[int]]]]:
    """Page after page until there is no cursor: topics with their partitions."""
    cursor: Cursor | None = None
    found = []
    while True:
        message = DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, cursor)
        answer = await bench.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, message)
        found.append([(topic.name, [part.partition_index for part in topic.partitions]) for topic in answer.topics])
        cursor = answer.next_cursor
        if cursor is None:
            return found


async def test_partitions_are_described_page_by_page_in_order_of_name() -> None:
    async with admin_bench() as bench:
        for name, count in (("b", 3), ("a", 2), ("c", 1)):
            await bench.controller.create_topic(name, count)
        whole = [("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]
        assert await pages(bench, [], 2000) == [whole]
        assert await pages(bench, ["c", "b", "c"], 2000) == [[("b", [0, 1, 2]), ("c", [0])]]
        assert await pages(bench, [], 4) == [[("a", [0, 1]), ("b", [0, 1])], [("b", [2]), ("c", [0])]]
        assert await pages(bench, [], 2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2]), ("c", [0])]]
        assert await pages(bench, [], 5) == [[("a", [0, 1]), ("b", [0, 1, 2])], [("c", [0])]]
        assert len(await pages(bench, [], 0)) == len(await pages(bench, [], -5)) == 6


async def test_the_brokers_own_limit_holds() -> None:
    async with admin_bench(max_request_partition_size_limit=2) as bench:
        await bench.controller.create_topic("a", 5)
        assert await pages(bench, [], 2000) == [[("a", [0, 1])], [("a", [2, 3])], [("a", [4])]]


async def test_a_described_partition_has_all_its_facts() -> None:
    async with admin_bench() as bench:
        made = await bench.controller.create_topic("a", 1)
        answer = await bench.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest())
        [topic] = answer.topics
        assert (topic.topic_id, topic.is_internal, topic.error_code) == (made.topic_id, False, ErrorCode.NONE)
        assert topic.topic_authorized_operations == TOPIC_OPERATIONS
        [part] = topic.partitions
        assert (part.leader_id, part.leader_epoch, part.replica_nodes, part.isr_nodes) == (
            NODE_ID,
            0,
            [NODE_ID],
            [NODE_ID],
        )
        assert (part.eligible_leader_replicas, part.last_known_elr, part.offline_replicas) == ([], [], [])


async def test_cursors_past_the_end_or_of_deleted_topics_go_on_after_them() -> None:
    async with admin_bench() as bench:
        for name in ("a", "c"):
            await bench.controller.create_topic(name, 2)
        for cursor, names in (
            (Cursor("b", 1), [("c", [0, 1])]),
            (Cursor("c", 7), [("c", [])]),
            (Cursor("d", 0), []),
        ):
            message = DescribeTopicPartitionsRequest(cursor=cursor)
            answer = await bench.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, message)
            found = [(topic.name, [part.partition_index for part in topic.partitions]) for topic in answer.topics]
            assert (found, answer.next_cursor) == (names, None)


async def test_unknown_topics_and_bad_cursors_are_told() -> None:
    async with admin_bench() as bench:
        message = DescribeTopicPartitionsRequest([TopicRequest("missing")])
        [topic] = (await bench.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, message)).topics
        assert (topic.name, topic.error_code) == ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        message.cursor = Cursor("missing", -1)
        [topic] = (await bench.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, message)).topics
        assert topic.error_code == ErrorCode.INVALID_REQUEST
