"""DescribeClientQuotas and AlterClientQuotas, in every version; and changes of topics by a client that has a quota."""

from __future__ import annotations

import pytest

from app.core.errors import ErrorCode
from app.handlers.policy.client_quotas import ClientQuotas
from app.metadata.changes.features import FeatureAsked
from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasRequestEntryData, OpData
from app.wire.apis.alter_client_quotas import EntityData as Named
from app.wire.apis.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.apis.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tests.handlers.admin_bench import AdminBench, admin_bench, versions
from tests.support.changing import update_features

ALTER, DESCRIBE = ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.DESCRIBE_CLIENT_QUOTAS


async def raised(bench: AdminBench) -> None:
    await update_features(bench.controller, [FeatureAsked(LEVEL_FEATURE, SECURITY_LEVEL)])


def entry(entity: dict[str, str | None], **limits: float | None) -> AlterClientQuotasRequestEntryData:
    return AlterClientQuotasRequestEntryData(
        [Named(*part) for part in entity.items()],
        [OpData(key, value or 0.0, value is None) for key, value in limits.items()],
    )


async def alter(bench: AdminBench, *entries: AlterClientQuotasRequestEntryData, version: int = 1, **more: bool):
    answer = await bench.ask(ALTER, version, AlterClientQuotasRequest(list(entries), **more))
    return [one.error_code for one in answer.entries]


async def described(bench: AdminBench, *components: ComponentData, version: int = 1, strict: bool = False):
    answer = await bench.ask(DESCRIBE, version, DescribeClientQuotasRequest(list(components), strict))
    if answer.error_code:
        assert answer.entries is None
        return answer.error_code
    return [
        (
            {part.entity_type: part.entity_name for part in one.entity},
            {value.key: value.value for value in one.values},
        )
        for one in answer.entries
    ]


@pytest.mark.parametrize("version", versions(ALTER))
async def test_what_is_set_is_described(version: int) -> None:
    async with admin_bench() as bench:
        await raised(bench)
        user: dict[str, str | None] = {"user": "a", "client-id": None}
        codes = await alter(
            bench,
            entry(user, producer_byte_rate=10.0, request_percentage=0.5),
            entry({"ip": None}, connection_creation_rate=3.0),
            version=version,
        )
        assert codes == [0, 0]
        assert await described(bench, version=version) == [
            ({"ip": None}, {"connection_creation_rate": 3.0}),
            (user, {"producer_byte_rate": 10.0, "request_percentage": 0.5}),
        ]
        assert await alter(bench, entry(user, producer_byte_rate=None), version=version) == [0]
        assert await described(bench, ComponentData("user", 0, "a"), version=version) == [
            (user, {"request_percentage": 0.5})
        ]
        assert await described(bench, ComponentData("user", 1, None), version=version) == []


async def test_each_entity_has_an_answer_of_its_own() -> None:
    async with admin_bench() as bench:
        await raised(bench)
        codes = await alter(
            bench,
            entry({"user": "a"}, nonsense=1.0),
            entry({"user": "b"}, producer_byte_rate=1.0),
            entry({"user": "b"}, producer_byte_rate=2.0),
            entry({}, producer_byte_rate=2.0),
        )
        invalid = ErrorCode.INVALID_REQUEST
        assert codes == [invalid, 0, invalid, invalid]
        assert await described(bench) == [({"user": "b"}, {"producer_byte_rate": 1.0})]


async def test_a_limit_may_be_tried_without_a_change() -> None:
    async with admin_bench() as bench:
        await raised(bench)
        assert await alter(bench, entry({"user": "a"}, producer_byte_rate=1.0), validate_only=True) == [0]
        assert await alter(bench, entry({"user": "a"}, nonsense=1.0), validate_only=True) == [42]
        assert await described(bench) == []


async def test_a_cluster_below_the_level_says_so_and_has_none() -> None:
    async with admin_bench() as bench:
        codes = await alter(bench, entry({"user": "a"}, producer_byte_rate=1.0))
        assert codes == [ErrorCode.INVALID_UPDATE_VERSION]
        assert await described(bench) == []


async def test_filters_that_cannot_be_are_refused() -> None:
    async with admin_bench() as bench:
        invalid = ErrorCode.INVALID_REQUEST
        assert await described(bench, ComponentData("user", 7, None)) == invalid
        assert await described(bench, ComponentData("user", 0, None)) == invalid
        assert await described(bench, ComponentData("user", 1, "a")) == invalid
        assert await described(bench, ComponentData("host", 2, None)) == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("strict", [False, True])
async def test_changes_of_topics_count_by_partitions(strict: bool) -> None:
    """Clients that know THROTTLING_QUOTA_EXCEEDED are refused; others are told to wait."""
    async with admin_bench() as bench:
        now_s = 5.0
        quotas = bench.context.quotas = ClientQuotas(bench.context.config, lambda: now_s)
        await raised(bench)
        await alter(bench, entry({"client-id": "test"}, controller_mutation_rate=1.0))
        quotas.follow(bench.cluster.image.quotas)

        def create(name: str, count: int):
            topics = [CreatableTopic(name, count, 1)]
            return bench.ask(ApiKey.CREATE_TOPICS, 7 if strict else 5, CreateTopicsRequest(topics))

        made = await create("a", 12)  # a bucket holds eleven
        assert [(one.name, one.error_code) for one in made.topics] == [("a", 0)]
        assert made.throttle_time_ms == (0 if strict else 1000)
        more = await bench.ask(
            ApiKey.CREATE_PARTITIONS,
            3 if strict else 2,
            CreatePartitionsRequest([CreatePartitionsTopic("a", 13, None)]),
        )
        refused = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        assert [one.error_code for one in more.results] == [refused if strict else 0]
        now_s += 2.5
        version = 6 if strict else 4
        asked = DeleteTopicsRequest(topics=[DeleteTopicState("a")], topic_names=["a"])
        deleted = await bench.ask(ApiKey.DELETE_TOPICS, version, asked)
        assert [one.error_code for one in deleted.responses] == [0]
        assert (deleted.throttle_time_ms > 10_000) is not strict
