"""Appends to `_schemas` under a condition, and reads of it, over a real broker (ADR 0041)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.client.schema_log import BrokerSchemaLog
from app.configs import InternalDurability
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.metadata.image.records import LEVEL_MAX, REGISTRY_LEVEL
from app.records.builder import build_batch
from app.registry.ownership import OWNER_KEY, ownership_of
from app.registry.schema_log import EndMoved
from app.schemas import reservations
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from app.wire.private import SchemasRequest, SchemasResponse
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.schema_records import operator_record, schema_record


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


async def produced(client: Talk) -> ErrorCode:
    """The answer to a producer of another registry."""
    batch = build_batch([(1_700_000_000_000, *schema_record("theirs-value", 1), ())])
    while True:
        answer = await client.produce(9, [("_schemas", [(0, batch)])], acks=1)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is not ErrorCode.NOT_ENOUGH_REPLICAS:  # the leader has not read the log yet
            return code


async def test_producers_are_refused_from_firns_first_write_on_also_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, log_of(broker) as log:
        await broker.create_topic("_schemas", cleanup_policy="compact", firn_durability="disk")
        await log.append(0, "a-value", [schema_record("a-value", 1)])
        async with talk(broker.port) as client:
            assert await produced(client) is ErrorCode.INVALID_TOPIC_EXCEPTION
        end = broker.log("_schemas").log_end_offset
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        assert await produced(client) is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert broker.log("_schemas").log_end_offset == end


async def test_a_topic_that_is_no_longer_compacted_is_not_written_by_the_fast_path_either(tmp_path: Path) -> None:
    memory = InternalDurability.MEMORY
    async with (
        running_broker(tmp_path, new_level=LEVEL_MAX, firn_internal_durability=memory) as broker,
        log_of(broker) as log,
        talk(broker.port) as client,
    ):
        await log.append(0, "a-value", [schema_record("a-value", 1)])
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            change = ("cleanup.policy", ConfigOperation.SET, "delete")
            await AdminClient(cluster).alter_configs(ConfigResourceType.TOPIC, "_schemas", [change])
        assert [await produced(client) for _ in range(3)] == [ErrorCode.INVALID_TOPIC_EXCEPTION] * 3
        _, end = await log.read(0)
        with pytest.raises(RequestRejected, match="by which schemas can be deleted"):
            await log.append(end, "b-value", [schema_record("b-value", 1)])


@pytest.mark.parametrize("durability", list(InternalDurability)[1:3])
async def test_another_registry_goes_on_until_an_operator_switches(
    tmp_path: Path, durability: InternalDurability
) -> None:
    async with (
        running_broker(tmp_path, new_level=LEVEL_MAX, firn_internal_durability=durability) as broker,
        log_of(broker) as log,
        talk(broker.port) as client,
    ):
        await broker.create_topic("_schemas", cleanup_policy="compact", firn_durability=durability.value)
        assert [await produced(client) for _ in range(3)] == [ErrorCode.NONE] * 3
        _, end = await log.read(0)
        with pytest.raises(RequestRejected, match="Another registry has written"):
            await log.append(end, "a-value", [schema_record("a-value", 2, '"long"')])
        assert await produced(client) is ErrorCode.NONE
        switch = [operator_record("MODE", None, mode="READWRITE")]
        with pytest.raises(EndMoved):
            await log.append(end, None, switch)
        _, end = await log.read(end)
        await log.append(end, None, switch)
        assert [await produced(client) for _ in range(2)] == [ErrorCode.INVALID_TOPIC_EXCEPTION] * 2
        _, end = await log.read(0)
        with pytest.raises(RequestRejected, match="gives the id 1 to another schema"):
            await log.append(end, "a-value", [schema_record("a-value", 1, '"long"')])
        await log.append(end, "a-value", [schema_record("a-value", 2, '"long"')])


async def test_a_topic_that_is_too_weak_is_not_written_and_the_sentence_says_how_to_mend_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, log_of(broker) as log:
        await broker.create_topic("_schemas", cleanup_policy="compact", firn_durability="memory")
        with pytest.raises(RequestRejected, match=r"--set firn\.durability=disk") as refused:
            await log.append(0, "a-value", [schema_record("a-value", 1)])
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        assert broker.log("_schemas").log_end_offset == 0


async def test_an_append_whose_answer_was_lost_is_found_and_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, log_of(broker) as log:
        await log.append(0, "a-value", [schema_record("a-value", 1)])
        _, end = await log.read(0)
        ask, lost = BrokerSchemaLog.ask, []

        async def lose_the_first_answer(self: BrokerSchemaLog, request: SchemasRequest) -> SchemasResponse:
            answer = await ask(self, request)
            if request.step == "append" and not lost:
                lost.append(answer)
                raise BrokerUnavailable("The connection was cut.")
            return answer

        monkeypatch.setattr(BrokerSchemaLog, "ask", lose_the_first_answer)
        records = [schema_record("b-value", 2, '"long"')]
        assert await log.append(end, "b-value", records) == end + 1
        assert lost[0].end == broker.log("_schemas").log_end_offset == end + 2
        lost.clear()
        async with log_of(broker) as other:
            _, end = await other.read(0)
            await ask(
                other, SchemasRequest("append", end, "c-value", [schema_record("c-value", 3, '"int"')], other._history)
            )
            lost.append(SchemasResponse())
            with pytest.raises(EndMoved):
                await log.append(end, "b-value", [schema_record("b-value", 3, '"float"', 2)])


async def test_reads_that_wait_are_one_read_and_each_begins_after_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, log_of(broker) as log:
        await log.append(0, "a-value", [schema_record("a-value", 1)])
        ask, asked = BrokerSchemaLog.ask, []

        async def count(self: BrokerSchemaLog, request: SchemasRequest) -> SchemasResponse:
            asked.append(request.step)
            return await ask(self, request)

        monkeypatch.setattr(BrokerSchemaLog, "ask", count)
        first = asyncio.ensure_future(log.read(0))
        while not asked:
            await asyncio.sleep(0)
        found = await asyncio.gather(first, *(log.read(0) for _ in range(20)))
        assert len(asked) == 2
        assert all(one == found[0] for one in found)


async def test_a_caller_who_lost_three_times_is_admitted_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "RESERVED_MS", 600_000)
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, log_of(broker) as log:
        await log.append(0, "a-value", [schema_record("a-value", 1)])
        _, end = await log.read(0)
        slow, fast = [schema_record("slow-value", 2, '"long"')], [schema_record("fast-value", 3, '"int"')]
        for _ in range(reservations.LOSSES_MAX):
            with pytest.raises(EndMoved):
                await log.append(0, "slow-value", slow)
        refused = await log.ask(SchemasRequest("append", end, "fast-value", fast, log._history))
        assert refused.wait_ms > 0
        assert broker.log("_schemas").log_end_offset == end
        end = await log.append(end, "slow-value", slow)
        assert await log.append(end, "fast-value", fast) == end + 2


async def test_a_batch_that_the_topic_does_not_take_is_refused_as_too_large(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, log_of(broker) as log:
        await broker.create_topic(
            "_schemas", cleanup_policy="compact", firn_durability="disk", max_message_bytes="1000"
        )
        with pytest.raises(RequestRejected, match=r"over max\.message\.bytes") as refused:
            await log.append(0, "a-value", [schema_record("a-value", 1, "x" * 2_000)])
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
        await log.append(0, "a-value", [schema_record("a-value", 1)])


async def test_below_the_level_of_the_registry_producers_write_as_before(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=REGISTRY_LEVEL - 1) as broker, talk(broker.port) as client:
        await broker.create_topic("_schemas", cleanup_policy="compact")
        assert [await produced(client) for _ in range(2)] == [ErrorCode.NONE] * 2
