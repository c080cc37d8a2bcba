"""Appends to `_schemas` under a condition, and reads of it, over a real broker (ADR 0041)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.client.cluster import ClusterClient
from app.client.schema_log import BrokerSchemaLog
from app.core.errors import ErrorCode, RequestRejected
from app.metadata.image.records import LEVEL_MAX, REGISTRY_LEVEL
from app.registry.ownership import OWNER_KEY, ownership_of
from app.registry.schema_log import EndMoved
from tests.support.broker import RunningBroker, running_broker
from tests.support.schema_records import schema_record


@asynccontextmanager
async def log_of(broker: RunningBroker) -> AsyncIterator[BrokerSchemaLog]:
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1), retry_budget_ms=60_000) as cluster:
        yield BrokerSchemaLog(cluster)


async def test_the_first_append_makes_the_topic_and_a_read_returns_its_records(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, log_of(broker) as log:
        assert await log.read(0) == ([], 0)
        end = await log.append(0, "t-value", [schema_record("t-value", 1)])
        found, read_end = await log.read(0)
        assert [(one.offset, one.key, one.value) for one in found[:1]] == [(0, *schema_record("t-value", 1))]
        assert (found[-1].key, end, read_end) == (OWNER_KEY, 2, 2)
        ownership = ownership_of(found[-1].key, found[-1].value)
        assert ownership is not None
        assert ownership.greatest == {".": 1}
        topic = broker.node.cluster.image.topic("_schemas")
        assert topic is not None
        assert (len(topic.partitions), topic.configs["cleanup.policy"]) == (1, "compact")
        assert topic.configs["firn.durability"] == "disk"


async def test_an_append_at_another_end_is_refused_with_the_end_and_changes_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, log_of(broker) as log:
        await log.append(0, "a-value", [schema_record("a-value", 1)])
        _, end = await log.read(0)
        with pytest.raises(EndMoved) as moved:
            await log.append(0, "b-value", [schema_record("b-value", 2)])
        assert moved.value.end == end == broker.log("_schemas").log_end_offset
        assert await log.append(end, "b-value", [schema_record("b-value", 2)]) == end + 2


async def test_of_appends_at_the_same_end_one_counts(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, log_of(broker) as one, log_of(broker) as other:
        subjects = [f"s{number}-value" for number in range(10)]
        appends = [
            (one if place % 2 else other).append(0, name, [schema_record(name, 1, f'"{name}"')])
            for place, name in enumerate(subjects)
        ]
        results = await asyncio.gather(*appends, return_exceptions=True)
        assert sorted(map(type, results), key=str) == sorted([int] + [EndMoved] * 9, key=str)


async def test_a_cluster_of_a_lower_level_refuses_with_a_sentence(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=REGISTRY_LEVEL - 1) as broker, log_of(broker) as log:
        with pytest.raises(RequestRejected, match=r"needs firn\.version 5, and the cluster is at 4") as refused:
            await log.append(0, "a-value", [schema_record("a-value", 1)])
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert broker.node.cluster.image.topic("_schemas") is None
