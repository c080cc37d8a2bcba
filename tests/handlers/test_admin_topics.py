"""CreateTopics, DeleteTopics, CreatePartitions over a real controller, in every version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.handlers.base.mutations import CHANGES_AT_ONCE_MAX
from app.wire.apikeys import ApiKey
from app.wire.apis.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from app.wire.apis.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.handlers.admin_bench import NODE_ID, AdminBench, admin_bench, answered, versions


def topic(name: str, partitions: int = 1, factor: int = 1, by_hand: Any = (), **configs: str | None) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(index, list(brokers)) for index, brokers in by_hand],
        configs=[CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()],
    )


async def create(bench: AdminBench, *topics: CreatableTopic, version: int = 7, validate_only: bool = False) -> Any:
    message = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return (await bench.ask(ApiKey.CREATE_TOPICS, version, message)).topics


# --- CreateTopics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
async def test_a_topic_is_made_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        [result] = await create(bench, topic("flights", 3, retention_ms="-1"), version=version)
        made = bench.cluster.image.topic("flights")
        assert made is not None
        assert (result.name, result.error_code, result.error_message) == ("flights", ErrorCode.NONE, None)
        assert len(made.partitions) == 3
        assert made.configs == {"retention.ms": "-1"}
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (3, 1)
            configs = answered(result.configs)
            assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("-1", 1)
            assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("1073741824", 5)
        if version >= 7:
            assert result.topic_id == made.topic_id


async def test_a_coordinators_topic_that_is_made_by_hand_is_one_that_a_coordinator_can_read() -> None:
    async with admin_bench() as bench:
        await create(bench, topic("__consumer_offsets", 3, segment_bytes="2000000"), topic("t", 3))
        made = bench.cluster.image.topic("__consumer_offsets")
        assert made is not None
        assert len(made.partitions) == 3
        assert made.configs == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "remote.storage.enable": "false",
            "segment.bytes": "2000000",
        }


@pytest.mark.parametrize("default", [1, 4_000])
async def test_topics_of_more_partitions_than_one_request_may_make_are_all_refused(default: int) -> None:
    async with admin_bench(num_partitions=default) as bench:
        rest = 10_000 - 5_998 - default
        asked = [topic("a", 5_998), topic("d", -1), topic("b", rest - 1)]
        by_hand = topic("h", -1, -1, [(index, [NODE_ID]) for index in range(2)])
        refused = await create(bench, *asked, by_hand)
        assert [one.error_code for one in refused] == [ErrorCode.POLICY_VIOLATION] * 4
        assert "The request asks for 10001 new partitions, and one request may make 10000." in refused[0].error_message
        assert not bench.cluster.image.topics_by_name
        # A topic that asks for too many is refused by itself, as is one that is named twice.
        made = await create(bench, *asked, topic("e", 1), topic("x", 10_001), topic("y", 9_000), topic("y", 9_000))
        codes = {one.name: one.error_code for one in made}
        assert codes == {
            "a": 0,
            "d": 0,
            "b": 0,
            "e": 0,
            "x": ErrorCode.INVALID_PARTITIONS,
            "y": ErrorCode.INVALID_REQUEST,
        }
        assert sum(len(one.partitions) for one in bench.cluster.image.topics_by_name.values()) == 10_000


async def test_more_partitions_than_one_request_may_add_are_all_refused() -> None:
    async with admin_bench() as bench:
        await create(bench, topic("a", 1), topic("b", 2))
        refused = await grow(bench, grown("a", 5_001), grown("b", 5_003))
        assert [one.error_code for one in refused] == [ErrorCode.POLICY_VIOLATION] * 2
        made = await grow(bench, grown("a", 5_001), grown("b", 5_002), grown("missing", 9_000))
        assert [one.error_code for one in made] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_minus_one_is_the_brokers_default() -> None:
    async with admin_bench(num_partitions=5) as bench:
        [result] = await create(bench, topic("t", -1, -1))
        assert (result.num_partitions, result.replication_factor) == (5, 1)


async def test_validate_only_makes_nothing_and_says_what_would_be() -> None:
    async with admin_bench() as bench:
        good, bad = await create(bench, topic("good", 4), topic("bad", 0), validate_only=True)
        assert (good.error_code, good.num_partitions, good.topic_id) == (ErrorCode.NONE, 4, uuid.UUID(int=0))
        assert bad.error_code == ErrorCode.INVALID_PARTITIONS
        assert not bench.cluster.image.topics_by_name


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (topic("taken"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("with.dot"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (topic("t", -2), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 2**31 - 1), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, 1, [(0, [NODE_ID])]), ErrorCode.INVALID_REQUEST),
        (topic("t", -1, -1, [(0, [NODE_ID]), (2, [NODE_ID])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [NODE_ID]), (0, [NODE_ID])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [NODE_ID, NODE_ID])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [99])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", no_such_setting="1"), ErrorCode.INVALID_CONFIG),
        (topic("t", retention_ms="x"), ErrorCode.INVALID_CONFIG),
        (topic("t", retention_ms=None), ErrorCode.INVALID_CONFIG),
        (topic("t", firn_durability="object"), ErrorCode.INVALID_CONFIG),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else "",
)
async def test_what_cannot_be_made_is_refused_with_its_code(
    version: int, asked: CreatableTopic, code: ErrorCode
) -> None:
    async with admin_bench() as bench:
        await create(bench, topic("taken"), topic("with_dot"))
        before = bench.cluster.image.topics_by_name
        [result] = await create(bench, asked, version=version)
        assert (result.name, result.error_code) == (asked.name, code)
        assert result.error_message
        assert bench.cluster.image.topics_by_name == before


async def test_replicas_may_be_assigned_by_hand() -> None:
    async with admin_bench() as bench:
        [result] = await create(bench, topic("t", -1, -1, [(1, [NODE_ID]), (0, [NODE_ID])]))
        assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)


async def test_a_name_that_is_asked_for_twice_is_refused_once_and_the_rest_is_made() -> None:
    async with admin_bench() as bench:
        results = answered(await create(bench, topic("twice"), topic("once"), topic("twice", 2)))
        assert len(results) == 2
        assert results["twice"].error_code == ErrorCode.INVALID_REQUEST
        assert results["twice"].error_message == "Duplicate topic name."
        assert results["once"].error_code == ErrorCode.NONE
        assert set(bench.cluster.image.topics_by_name) == {"once"}


async def test_names_that_collide_within_one_request_are_not_both_made() -> None:
    async with admin_bench() as bench:
        first, second = await create(bench, topic("a.b"), topic("a_b"))
        assert (first.error_code, second.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION)


async def test_the_topics_of_one_request_are_made_by_few_entries() -> None:
    async with admin_bench() as bench:
        before = bench.cluster.image.sequence
        many = [topic(f"t{number}") for number in range(CHANGES_AT_ONCE_MAX + 20)]
        results = await create(bench, *many)
        assert [result.name for result in results] == [asked.name for asked in many]
        assert all(result.error_code == ErrorCode.NONE for result in results)
        assert bench.cluster.image.sequence - before <= 4


async def test_a_controller_that_was_replaced_says_that_it_is_none() -> None:
    async with admin_bench() as bench:
        bench.cluster.fence("another broker took over")
        [result] = await create(bench, topic("t"))
        assert result.error_code == ErrorCode.NOT_CONTROLLER


# --- DeleteTopics ---------------------------------------------------------------------------------------------------


def deletion(version: int, *named: str | uuid.UUID) -> DeleteTopicsRequest:
    if version < 6:
        return DeleteTopicsRequest(topic_names=[str(name) for name in named])
    states = [
        DeleteTopicState(name=name) if isinstance(name, str) else DeleteTopicState(name=None, topic_id=name)
        for name in named
    ]
    return DeleteTopicsRequest(topics=states)


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
async def test_a_topic_is_deleted_by_name_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        await create(bench, topic("t"), topic("kept"))
        made = bench.cluster.image.topic("t")
        assert made is not None
        known, unknown = (await bench.ask(ApiKey.DELETE_TOPICS, version, deletion(version, "t", "missing"))).responses
        assert (known.name, known.error_code) == ("t", ErrorCode.NONE)
        assert (unknown.name, unknown.error_code) == ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert set(bench.cluster.image.topics_by_name) == {"kept"}
        assert set(bench.cluster.image.deleting) == {made.topic_id}
        if version >= 5:
            assert unknown.error_message
        if version >= 6:
            assert known.topic_id == made.topic_id


async def test_a_topic_is_deleted_by_id() -> None:
    async with admin_bench() as bench:
        await create(bench, topic("t"))
        made = bench.cluster.image.topic("t")
        assert made is not None
        missing = uuid.UUID(int=5)
        known, unknown = (await bench.ask(ApiKey.DELETE_TOPICS, 6, deletion(6, made.topic_id, missing))).responses
        assert (known.name, known.topic_id, known.error_code) == ("t", made.topic_id, ErrorCode.NONE)
        assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, missing, ErrorCode.UNKNOWN_TOPIC_ID)


async def test_a_topic_that_is_named_twice_is_answered_once_and_stays_unless_it_is_also_named_once_in_another_way() -> (
    None
):
    """As Apache Kafka 4.3.1 answers the same requests."""
    async with admin_bench() as bench:
        await create(bench, topic("t"), topic("u"))
        made, other = bench.cluster.image.topic("t"), bench.cluster.image.topic("u")
        assert made is not None
        assert other is not None

        async def delete(version: int, *named: str | uuid.UUID) -> set[tuple[str | None, uuid.UUID, ErrorCode]]:
            answers = (await bench.ask(ApiKey.DELETE_TOPICS, version, deletion(version, *named))).responses
            told = {(answer.name, answer.topic_id, ErrorCode(answer.error_code)) for answer in answers}
            assert len(told) == len(answers)
            return told

        invalid, nobody, missing = ErrorCode.INVALID_REQUEST, uuid.UUID(int=0), uuid.UUID(int=5)
        assert await delete(1, "t", "t") == {("t", nobody, invalid)}
        assert await delete(6, "t", "t", "t") == {("t", nobody, invalid)}
        assert await delete(6, made.topic_id, made.topic_id) == {(None, made.topic_id, invalid)}
        assert await delete(6, "t", made.topic_id) == {("t", made.topic_id, invalid)}
        assert await delete(6, made.topic_id, made.topic_id, "t") == {
            ("t", made.topic_id, invalid),
            (None, made.topic_id, invalid),
        }
        assert await delete(6, "none", "none") == {("none", nobody, invalid)}
        assert await delete(6, missing, missing) == {(None, missing, invalid)}
        assert bench.cluster.image.topic("t") is made
        assert await delete(1, "t", "u", "t") == {("t", nobody, invalid), ("u", nobody, ErrorCode.NONE)}
        assert await delete(6, made.topic_id, "t", "t") == {
            ("t", nobody, invalid),
            ("t", made.topic_id, ErrorCode.NONE),
        }
        assert not bench.cluster.image.topics_by_name


async def test_a_topic_needs_a_name_or_an_id_and_not_both() -> None:
    async with admin_bench() as bench:
        states = [DeleteTopicState(), DeleteTopicState(name="t", topic_id=uuid.UUID(int=9))]
        answers = (await bench.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=states))).responses
        assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2


# --- CreatePartitions -----------------------------------------------------------------------------------------------


async def grow(bench: AdminBench, *topics: CreatePartitionsTopic, version: int = 3, validate_only: bool = False) -> Any:
    message = CreatePartitionsRequest(topics=list(topics), validate_only=validate_only)
    return (await bench.ask(ApiKey.CREATE_PARTITIONS, version, message)).results


def grown(name: str, count: int, by_hand: list[list[int]] | None = None) -> CreatePartitionsTopic:
    assignments = None if by_hand is None else [CreatePartitionsAssignment(brokers) for brokers in by_hand]
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
async def test_partitions_are_added_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        await create(bench, topic("t", 2))
        for validate_only, count in ((True, 2), (False, 5)):
            [result] = await grow(bench, grown("t", 5), version=version, validate_only=validate_only)
            assert (result.name, result.error_code, result.error_message) == ("t", ErrorCode.NONE, None)
            made = bench.cluster.image.topic("t")
            assert made is not None
            assert len(made.partitions) == count


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (grown("missing", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (grown("t", 2), ErrorCode.INVALID_PARTITIONS),
        (grown("t", 1), ErrorCode.INVALID_PARTITIONS),
        (grown("t", -1), ErrorCode.INVALID_PARTITIONS),
        (grown("t", 2**31 - 1), ErrorCode.INVALID_PARTITIONS),
        (grown("t", 3, [[NODE_ID], [NODE_ID]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grown("t", 3, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grown("t", 3, [[99]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grown("t", 3, [[NODE_ID, NODE_ID]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_partitions_that_cannot_be_added_are_refused(asked: CreatePartitionsTopic, code: ErrorCode) -> None:
    async with admin_bench() as bench:
        await create(bench, topic("t", 2))
        [result] = await grow(bench, asked)
        assert result.error_code == code
        assert result.error_message
        made = bench.cluster.image.topic("t")
        assert made is not None
        assert len(made.partitions) == 2


async def test_a_topic_that_is_to_grow_twice_does_not_grow() -> None:
    async with admin_bench() as bench:
        await create(bench, topic("t"), topic("u"))
        results = answered(await grow(bench, grown("t", 3), grown("u", 2, [[NODE_ID]]), grown("t", 4)))
        assert results["t"].error_code == ErrorCode.INVALID_REQUEST
        assert results["u"].error_code == ErrorCode.NONE


# --- requests that fail as a whole ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS])
async def test_a_refusal_of_the_whole_request_names_every_topic_in_every_version(key: ApiKey) -> None:
    async with admin_bench() as bench:
        for version in versions(key):
            match key:
                case ApiKey.CREATE_TOPICS:
                    message: Any = CreateTopicsRequest(topics=[topic("a"), topic("b")])
                case ApiKey.DELETE_TOPICS:
                    message = deletion(version, "a", "b")
                case _:
                    message = CreatePartitionsRequest(topics=[grown("a", 2), grown("b", 2)])
            answer = bench.refuse(key, version, message, RequestRejected(ErrorCode.NOT_CONTROLLER, "elsewhere"))
            results = getattr(answer, {20: "responses", 37: "results"}.get(key, "topics"))
            assert [(result.name, result.error_code) for result in results] == [
                ("a", ErrorCode.NOT_CONTROLLER),
                ("b", ErrorCode.NOT_CONTROLLER),
            ]
