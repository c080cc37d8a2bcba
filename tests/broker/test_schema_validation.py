"""``confluent.value.schema.validation``, set over the wire: what producers are told by a real broker (ADR 0044)."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.client.schema_log import BrokerSchemaLog
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.core.faults import Faults
from app.handlers.produce import produce as produce_module
from app.hot.log import PreparationNeeded
from app.metadata.image.records import LEVEL_MAX, REGISTRY_LEVEL
from app.records.builder import build_batch
from app.records.compression import Codec
from app.registry.record_json import Key, KeyType, write_deleted_version, write_key
from app.schemas import follower as follower_module
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.schema_records import schema_key, schema_record, schema_value
from tests.support.several import cluster_on
from tests.support.waiting import until

VALUE, KEY = "confluent.value.schema.validation", "confluent.key.schema.validation"
AGAIN = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_ENOUGH_REPLICAS)


def with_id(number: int, payload: bytes = b"\x02a") -> bytes:
    return struct.pack(">bI", 0, number) + payload


def batch(*values: bytes | None, **fields: Any) -> bytes:
    return build_batch([(1_700_000_000_000, b"k", value, ()) for value in values], **fields)


class Registry:
    """Registers schemas."""

    def __init__(self, cluster: ClusterClient) -> None:
        self.log = BrokerSchemaLog(cluster)
        self.admin = AdminClient(cluster)

    async def end(self) -> int:
        return (await self.log.read(0))[1]

    async def register(self, subject: str, number: int, text: str = '"string"', version: int = 1) -> None:
        await self.log.append(await self.end(), subject, [schema_record(subject, number, text, version)])

    async def delete(self, subject: str, version: int) -> None:
        key = write_key(Key(KeyType.DELETE_SUBJECT, subject))
        await self.log.append(await self.end(), subject, [(key, write_deleted_version(subject, version))])

    async def alter(self, topic: str, **configs: str) -> None:
        changes = [(name.replace("_", "."), ConfigOperation.SET, value) for name, value in configs.items()]
        await self.admin.alter_configs(ConfigResourceType.TOPIC, topic, changes)


@asynccontextmanager
async def registry_of(*brokers: RunningBroker) -> AsyncIterator[Registry]:
    bootstrap = [("127.0.0.1", broker.port) for broker in brokers]
    async with ClusterClient(bootstrap, rng=random.Random(1), retry_budget_ms=60_000) as cluster:
        yield Registry(cluster)


@asynccontextmanager
async def checked(path: Path, **configs: str) -> AsyncIterator[tuple[RunningBroker, Registry, Talk]]:
    """A broker with the topic ``t``, whose values are checked, and the id 1 of its subject."""
    async with running_broker(path, new_level=LEVEL_MAX) as broker, registry_of(broker) as registry:
        await registry.register("t-value", 1)
        await broker.create_topic("t", **{VALUE: "true"} | configs)
        async with talk(broker.port) as client:
            yield broker, registry, client


async def produce(client: Talk, records: bytes, topic: str = "t", **more: Any) -> Any:
    """The result of the partition, once it has a leader."""
    while True:
        told = (await client.produce(9, [(topic, [(0, records)])], **more)).responses[0].partition_responses[0]
        if told.error_code not in AGAIN[:2]:
            return told


def refusal(told: Any) -> tuple[ErrorCode, list[tuple[int, str]]]:
    errors = [(one.batch_index, one.batch_index_error_message) for one in told.record_errors]
    return ErrorCode(told.error_code), errors


async def test_a_batch_whose_ids_the_subject_knows_is_stored(tmp_path: Path) -> None:
    async with checked(tmp_path) as (broker, _, client):
        for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD):
            assert (await produce(client, batch(with_id(1), with_id(1), codec=codec))).error_code == 0
        assert broker.log("t").log_end_offset == 6


async def test_a_batch_with_a_bad_record_is_refused_whole_and_the_record_is_named(tmp_path: Path) -> None:
    async with checked(tmp_path) as (broker, _, client):
        told = await produce(client, batch(with_id(1), b"text", with_id(1), with_id(9), None, codec=Codec.GZIP))
        assert refusal(told) == (
            ErrorCode.INVALID_RECORD,
            [
                (1, "The value has no schema id, neither in the header __value_schema_id nor at its start."),
                (3, "The subject of the value knows no schema 9. Register it, or use the subject's."),
                (4, "The value is null, and so has no schema id."),
            ],
        )
        assert told.error_message.startswith(
            "3 of the batch's 5 records are refused; record 1: the value has no schema id"
        )
        assert broker.log("t").log_end_offset == 0


async def test_keys_are_checked_by_a_setting_of_their_own(tmp_path: Path) -> None:
    async with checked(tmp_path, **{VALUE: "false", KEY: "true"}) as (_, registry, client):
        await registry.register("t-key", 2, '"long"')
        key = build_batch([(1, with_id(2), b"any", ())])
        assert (await produce(client, key)).error_code == 0
        code, errors = refusal(await produce(client, build_batch([(1, with_id(1), with_id(1), ())])))
        assert (code, errors) == (
            ErrorCode.INVALID_RECORD,
            [(0, "The subject of the key knows no schema 1. Register it, or use the subject's.")],
        )


async def test_a_deletion_passes_in_a_compacted_topic(tmp_path: Path) -> None:
    async with checked(tmp_path, **{"cleanup.policy": "compact"}) as (_, _, client):
        assert (await produce(client, batch(with_id(1), None))).error_code == 0


async def test_an_id_that_was_registered_just_before_is_known(tmp_path: Path) -> None:
    async with checked(tmp_path) as (_, registry, client):
        assert (await produce(client, batch(with_id(1)))).error_code == 0
        for number in range(2, 6):
            assert refusal(await produce(client, batch(with_id(number))))[0] is ErrorCode.INVALID_RECORD
            await registry.register("t-value", number, f'{{"type":"string","n":{number}}}', number)
            assert (await produce(client, batch(with_id(number)))).error_code == 0


async def test_full_validation_decodes_the_payloads(tmp_path: Path) -> None:
    async with checked(tmp_path, **{"firn.schema.validation": "full"}) as (broker, _, client):
        assert (await produce(client, batch(with_id(1)))).error_code == 0
        code, errors = refusal(await produce(client, batch(with_id(1), with_id(1, b"\x04a"), codec=Codec.ZSTD)))
        why = "The value is no value of schema 1: 2 bytes are named where 1 are left."
        assert (code, errors) == (ErrorCode.INVALID_RECORD, [(1, why)])
        assert broker.log("t").log_end_offset == 1


async def test_a_schema_whose_check_breaks_down_refuses_the_batch_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(Faults, "met", lambda _, kind, subject, sentence, **more: told.append(sentence))
    hostile = '{"$ref": "#/default", "default": {"$ref": "http://[#x"}}'
    value = schema_value("t-value", 2, hostile, 2, schemaType="JSON")
    async with checked(tmp_path, **{"firn.schema.validation": "full"}) as (_, registry, client):
        await registry.log.append(await registry.end(), "t-value", [(schema_key("t-value", 2), value)])
        code, errors = refusal(await produce(client, batch(with_id(1), with_id(2, b"1"))))
        why = "The value cannot be checked by schema 2: the check failed with ValueError."
        assert (code, errors) == (ErrorCode.INVALID_RECORD, [(1, why)])
        assert (await produce(client, batch(with_id(1)))).error_code == 0, "the connection goes on"
    failed = "the check by schema 2 of topic t failed, so records were refused"
    assert len([one for one in told if one.startswith(failed)]) == 1


async def test_a_retry_of_a_stored_batch_is_a_duplicate_though_the_subject_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "AGE_MAX_S", -1.0)  # each batch reads the log on
    async with checked(tmp_path) as (broker, registry, client):
        idempotent = {"producer_id": 5, "producer_epoch": 0}
        first = batch(with_id(1), base_sequence=0, **idempotent)
        assert (await produce(client, first)).error_code == 0
        await registry.delete("t-value", 1)
        again = await produce(client, first)
        assert (again.error_code, again.base_offset) == (0, 0)
        second = batch(with_id(1), base_sequence=1, **idempotent)
        assert refusal(await produce(client, second))[0] is ErrorCode.INVALID_RECORD
        assert broker.log("t").log_end_offset == 1
        await registry.register("t-value", 2, '"long"', 2)
        assert (await produce(client, batch(with_id(2), base_sequence=1, **idempotent))).error_code == 0


async def test_while_the_log_of_schemas_cannot_be_read_new_ids_are_tried_again_and_known_ones_pass(
    tmp_path: Path,
) -> None:
    async with checked(tmp_path) as (broker, _, client):
        assert (await produce(client, batch(with_id(1)))).error_code == 0
        follower = broker.node.schema_follower
        real = follower._read

        async def away(start: int) -> Any:
            raise BrokerUnavailable("The leader is away.")

        follower._read = away  # type: ignore[method-assign]
        told = await produce(client, batch(with_id(9)))
        assert told.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "cannot be read: the leader is away. Try again." in told.error_message
        assert (await produce(client, batch(with_id(1)))).error_code == 0
        follower._read = real  # type: ignore[method-assign]
        assert refusal(await produce(client, batch(with_id(9))))[0] is ErrorCode.INVALID_RECORD


async def test_without_a_topic_of_schemas_producers_try_again(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, registry_of(broker) as registry:
        await broker.create_topic("t", **{VALUE: "true"})
        async with talk(broker.port) as client:
            told = await produce(client, batch(with_id(1)))
            assert told.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert "there is no topic _schemas yet. Register a schema first" in told.error_message
            await registry.register("t-value", 1)
            while (told := await produce(client, batch(with_id(1)))).error_code in AGAIN:
                pass
            assert told.error_code == 0


@pytest.mark.parametrize("durability", ["memory", "disk"])
async def test_the_setting_takes_effect_on_a_connection_that_took_the_fast_path(
    tmp_path: Path, durability: str
) -> None:
    async with checked(tmp_path, **{VALUE: "false", "firn.durability": durability}) as (broker, registry, client):
        for _ in range(3):
            assert (await produce(client, batch(b"text"), acks=1)).error_code == 0
        await registry.alter("t", confluent_value_schema_validation="true")
        described = {one.name: one for one in await registry.admin.describe_configs(ConfigResourceType.TOPIC, "t")}
        assert (described[VALUE].value, described[KEY].value) == ("true", "false")
        await until(lambda: broker.log("t").config.checks_schemas)
        assert refusal(await produce(client, batch(b"text"), acks=1))[0] is ErrorCode.INVALID_RECORD
        with pytest.raises(PreparationNeeded):
            broker.log("t").append_as_leader(memoryview(bytearray(batch(with_id(1)))), now_ms=1)
        await registry.alter("t", confluent_value_schema_validation="false")
        await until(lambda: not broker.log("t").config.checks_schemas)
        assert (await produce(client, batch(b"text"), acks=1)).error_code == 0


async def test_a_batch_that_was_not_checked_because_the_setting_came_meanwhile_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with checked(tmp_path, **{VALUE: "false", "cleanup.policy": "compact"}) as (broker, registry, client):
        await produce(client, batch(b"text"))
        preparations = broker.node.server.preparations
        real = preparations.prepare

        async def slow(*given: Any) -> bytearray:
            made = await real(*given)
            await registry.alter("t", confluent_value_schema_validation="true")
            await until(lambda: broker.log("t").config.checks_schemas)
            return made

        monkeypatch.setattr(preparations, "prepare", slow)
        told = await produce(client, batch(b"text"))
        assert told.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert told.error_message == "The settings of t have changed. Try again."
        assert broker.log("t").log_end_offset == 1


async def test_other_topics_are_never_asked_for_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*given: Any) -> None:
        raise AssertionError("a topic without the setting was checked")

    monkeypatch.setattr(produce_module, "check_schemas", never)
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker:
        await broker.create_topic("t")
        await broker.create_topic("u", **{"cleanup.policy": "compact"})
        async with talk(broker.port) as client:
            for topic in ("t", "u"):
                assert (await produce(client, batch(b"text"), topic)).error_code == 0
        assert broker.node.schema_follower._read_at_s is None


async def test_a_cluster_of_a_lower_level_refuses_the_setting_with_a_sentence(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=REGISTRY_LEVEL - 1) as broker:
        with pytest.raises(
            RequestRejected, match=r"It needs firn\.version 5, and it is 4: run `firn cluster features"
        ) as no:
            await broker.create_topic("t", **{VALUE: "true"})
        assert no.value.code is ErrorCode.INVALID_CONFIG
        await broker.create_topic("t")
        async with registry_of(broker) as registry:
            with pytest.raises(RequestRejected, match=r"It needs firn\.version 5, and it is 4"):
                await registry.alter("t", confluent_key_schema_validation="true")


async def test_topics_of_firn_s_own_and_brokers_have_no_such_setting(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=LEVEL_MAX) as broker, registry_of(broker) as registry:
        await registry.register("t-value", 1)
        with pytest.raises(RequestRejected, match="Topic '_schemas' is of Firn's own"):
            await registry.alter("_schemas", confluent_value_schema_validation="true")
        with pytest.raises(RequestRejected, match="Topic '__mine' is of Firn's own"):
            await broker.create_topic("__mine", **{VALUE: "true"})
        with pytest.raises(RequestRejected, match=f"Unknown broker config name: {VALUE}"):
            await registry.admin.alter_configs(ConfigResourceType.BROKER, "", [(VALUE, ConfigOperation.SET, "true")])


@pytest.mark.parametrize("configs", [{}, {"firn.durability": "object"}], ids=["replicated", "object"])
async def test_a_leader_that_does_not_lead_the_log_of_schemas_checks_too(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    async with AsyncExitStack() as stack:
        settings = {"new_level": LEVEL_MAX, "default_replication_factor": 3}
        brokers = await stack.enter_async_context(cluster_on(tmp_path, 3, **settings))
        registry = await stack.enter_async_context(registry_of(*brokers))
        await registry.admin.create_topic("t", partitions_count=3, configs={VALUE: "true", **configs})
        await until(lambda: all(one.node.cluster.image.topic("t") is not None for one in brokers))
        await registry.register("t-value", 1)

        def leader(index: int) -> RunningBroker:
            (found,) = [
                one
                for one in brokers
                if (it := one.node.partitions.table.get("t", index)) is not None and it.leads and it.serves
            ]
            return found

        def led() -> bool:
            try:
                return len({leader(index).port for index in range(3)}) == 3
            except ValueError:
                return False

        await until(led)
        for index in range(3):
            async with talk(leader(index).port) as client:

                async def told_of(records: bytes, index: int = index, client: Talk = client) -> Any:
                    while True:
                        told = (await client.produce(9, [("t", [(index, records)])])).responses[0]
                        if (one := told.partition_responses[0]).error_code not in AGAIN:
                            return one
                        await asyncio.sleep(0)

                assert (await told_of(batch(with_id(1)))).error_code == 0
                assert refusal(await told_of(batch(with_id(7))))[0] is ErrorCode.INVALID_RECORD
                await registry.register("t-value", 10 + index, f'{{"type":"string","n":{index}}}', 2 + index)
                assert (await told_of(batch(with_id(10 + index)))).error_code == 0
