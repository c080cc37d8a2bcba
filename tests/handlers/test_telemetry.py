"""GetTelemetrySubscriptions and PushTelemetry over a connection, and the metrics of clients beside those of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.core.errors import ErrorCode
from app.handlers.apis import firn_api
from app.metadata.image.records import CLIENT_METRICS_LEVEL
from app.records.compression import Codec, compress
from app.telemetry.series import HELP
from app.wire.apikeys import ApiKey
from app.wire.apis import incremental_alter_configs as incremental
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from app.wire.apis.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from app.wire.apis.list_config_resources import ListConfigResourcesRequest
from app.wire.apis.push_telemetry import PushTelemetryRequest
from app.wire.private import MetricsRequest, MetricsResponse, pack, pack_samples, unpack
from app.wire.schema import ZERO_UUID as NOBODY
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.client_metrics import Pushed, metrics_data

CLIENT_METRICS = 16
NAME = "org.apache.kafka.producer.record.send.rate"
PUSHED = metrics_data([Pushed(NAME, 2.5, {"topic": "t"}), Pushed("org.apache.kafka.producer.other", 1)])


async def alter(client: Talk, name: str, **configs: str | None) -> Any:
    wanted = [
        incremental.AlterableConfig(key.replace("_", "."), 1 if value is None else 0, value)
        for key, value in configs.items()
    ]
    resource = incremental.AlterConfigsResource(CLIENT_METRICS, name, wanted)
    answer = await client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, incremental.IncrementalAlterConfigsRequest([resource])
    )
    return answer.responses[0]


async def subscription(client: Talk, instance_id: UUID = NOBODY) -> Any:
    return await client.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, GetTelemetrySubscriptionsRequest(instance_id))


async def push(client: Talk, told: Any, metrics: bytes, codec: int = 0, *, terminating: bool = False) -> int:
    message = PushTelemetryRequest(told.client_instance_id, told.subscription_id, terminating, codec, metrics)
    return int((await client.ask(ApiKey.PUSH_TELEMETRY, 0, message)).error_code)


def pushed(broker: RunningBroker) -> list[tuple[str, dict[str, str], float]]:
    return [
        (one.name, dict(one.labels), one.value)
        for one in broker.node.registry.samples()
        if one.name.startswith("kafka_client_")
    ]


@asynccontextmanager
async def subscribed(path: Path, **configs: str) -> AsyncIterator[tuple[RunningBroker, Talk]]:
    """A broker with a subscription, and a client that has told its library's name."""
    settings = {"new_level": CLIENT_METRICS_LEVEL}
    async with running_broker(path, **settings) as broker, talk(broker.port) as client:
        named = ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.11.0")
        assert (await client.ask(ApiKey.API_VERSIONS, 3, named)).error_code == 0
        given = {"metrics": "org.apache.kafka.producer.record.", "interval_ms": "60000", **configs}
        assert (await alter(client, "producers", **given)).error_code == 0
        yield broker, client


async def test_a_client_is_told_what_to_push_and_its_metrics_are_shown(tmp_path: Path) -> None:
    async with subscribed(tmp_path) as (broker, client):
        told = await subscription(client)
        assert (told.error_code, told.requested_metrics) == (0, ["org.apache.kafka.producer.record."])
        assert (told.push_interval_ms, told.telemetry_max_bytes, told.delta_temporality) == (60_000, 1 << 20, False)
        assert told.accepted_compression_types == [4, 3, 1, 2]
        assert await push(client, told, PUSHED) == ErrorCode.NONE
        labels = {
            "client_id": "test",
            "client_instance_id": str(told.client_instance_id),
            "client_software_name": "librdkafka",
            "topic": "t",
        }
        assert pushed(broker) == [("kafka_client_producer_record_send_rate", labels, 2.5)]
        assert await push(client, told, PUSHED) == ErrorCode.THROTTLING_QUOTA_EXCEEDED


async def test_the_series_of_a_push_are_packed_once_for_all_that_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[str] = []

    def counted(samples: Any) -> Any:
        packed.extend(one[0] for one in samples if one[0].startswith("kafka_client_"))
        return pack_samples(samples)

    monkeypatch.setattr(firn_api, "pack_samples", counted)

    async def told_samples(client: Talk) -> list[tuple[str, str, float]]:
        data = await client.ask(ApiKey.FIRN_METRICS, 0, pack(MetricsRequest()))
        samples = [one for one in unpack(MetricsResponse, data).samples if one.family.startswith("kafka_client_")]
        assert all(("process", "broker") in one.labels for one in samples)
        return [(one.family.removeprefix("kafka_client_producer_record_"), one.help, one.value) for one in samples]

    async with subscribed(tmp_path) as (_, client):
        first, second = await subscription(client), await subscription(client)
        long = {f"label-{number}": "v" * 200 for number in range(10)}
        for told, labels in ((first, {"topic": "t"}), (second, long)):
            assert await push(client, told, metrics_data([Pushed(NAME, 1, labels)])) == ErrorCode.NONE
        for _ in range(3):
            assert await told_samples(client) == [("send_rate", HELP, 1), ("send_rate", HELP, 1)]
        assert len(packed) == 4, "long samples are not kept twice"
        more = metrics_data([Pushed(NAME, value, {"topic": f"t-{value}"}) for value in (2, 3)])
        assert await push(client, first, more, terminating=True) == ErrorCode.NONE
        expected = [("send_rate", HELP, 2), ("send_rate", "", 3), ("send_rate", HELP, 1)]
        assert sorted(await told_samples(client)) == sorted(expected)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
async def test_metrics_of_every_codec_are_taken(tmp_path: Path, codec: Codec) -> None:
    async with subscribed(tmp_path) as (broker, client):
        told = await subscription(client)
        assert await push(client, told, compress(codec, PUSHED), codec) == ErrorCode.NONE
        assert [value for *_, value in pushed(broker)] == [2.5]


@pytest.mark.parametrize(
    ("metrics", "codec", "code"),
    [
        (b"\x0a", 0, ErrorCode.INVALID_RECORD),
        (b"no zstd", Codec.ZSTD, ErrorCode.INVALID_RECORD),
        (compress(Codec.ZSTD, bytes((4 << 20) + 1)), Codec.ZSTD, ErrorCode.TELEMETRY_TOO_LARGE),
        (bytes((1 << 20) + 1), 0, ErrorCode.TELEMETRY_TOO_LARGE),
        (PUSHED, 9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
    ids=["no metrics", "not compressed", "decompresses to too much", "too long", "no codec"],
)
async def test_bad_metrics_are_refused_with_their_code(
    tmp_path: Path, metrics: bytes, codec: int, code: ErrorCode
) -> None:
    async with subscribed(tmp_path) as (broker, client):
        told = await subscription(client)
        assert await push(client, told, metrics, codec) == code
        assert pushed(broker) == []
        assert broker.node.context.telemetry.waiting == 0


async def test_subscriptions_match_the_library_and_the_address(tmp_path: Path) -> None:
    match = "client_software_name=librd.*,client_source_address=127.0.0.1,client_id=te.t"
    async with subscribed(tmp_path, match=match) as (broker, client), talk(broker.port) as unnamed:
        assert (await subscription(client)).requested_metrics == ["org.apache.kafka.producer.record."]
        assert (await subscription(unnamed)).requested_metrics == []


async def test_pushes_that_would_wait_behind_too_many_are_told_to_come_later(tmp_path: Path) -> None:
    async with subscribed(tmp_path) as (broker, client):
        telemetry = broker.node.context.telemetry
        told = await subscription(client)
        telemetry.waiting = 32
        assert await push(client, told, PUSHED) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        telemetry.waiting = 0
        assert await push(client, told, PUSHED, terminating=True) == ErrorCode.NONE
        assert len(pushed(broker)) == 1


async def test_one_push_is_read_at_a_time(tmp_path: Path) -> None:
    async with subscribed(tmp_path) as (broker, client), talk(broker.port) as other:
        telemetry = broker.node.context.telemetry
        both = [(one, await subscription(one)) for one in (client, other)]
        async with telemetry.reading:
            asked = [asyncio.ensure_future(push(one, told, PUSHED)) for one, told in both]
            async with asyncio.timeout(60):
                while telemetry.waiting < 2:
                    await asyncio.sleep(0)
            assert pushed(broker) == []
        assert [await one for one in asked] == [0, 0]
        assert len(pushed(broker)) == 2


async def test_subscriptions_are_settings_that_are_listed_described_changed_and_deleted(tmp_path: Path) -> None:
    async with subscribed(tmp_path) as (broker, client):
        listed = await client.ask(ApiKey.LIST_CONFIG_RESOURCES, 0, ListConfigResourcesRequest())
        assert [(one.resource_name, one.resource_type) for one in listed.config_resources] == [("producers", 16)]
        assert (await alter(client, "producers", match="client_id=a,client_id=b", interval_ms=None)).error_code == 0
        asked = DescribeConfigsRequest([DescribeConfigsResource(CLIENT_METRICS, "producers", None)])
        [result] = (await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, asked)).results
        assert [(one.name, one.value, one.config_source) for one in result.configs] == [
            ("interval.ms", "300000", 5),
            ("match", "client_id=a,client_id=b", 7),
            ("metrics", "org.apache.kafka.producer.record.", 7),
        ]
        assert (await alter(client, "producers", match=None, metrics=None)).error_code == 0
        assert broker.node.cluster.image.client_metrics == {}


@pytest.mark.parametrize(
    ("configs", "code", "sentence"),
    [
        ({"other": "1"}, ErrorCode.INVALID_REQUEST, "Unknown client metrics configuration: other."),
        ({"interval_ms": "99"}, ErrorCode.INVALID_REQUEST, "interval must be between 100 and 3600000"),
        ({"interval_ms": "x"}, ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
        ({"match": "client_id"}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern: client_id."),
        ({"match": "client_name=x"}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern: client_name=x."),
        ({"match": "client_id=("}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern: client_id=(."),
        ({"match": "client_id=" + "x" * 257}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern"),
        ({"metrics": "x" * 8193}, ErrorCode.INVALID_CONFIG, "has 8193 characters, of 8192 at most"),
        (
            {"metrics": ",".join(f"m{n}" for n in range(101))},
            ErrorCode.INVALID_CONFIG,
            "The value of metrics has 101 prefixes, of 100 at most. Use shorter prefixes.",
        ),
    ],
)
async def test_bad_settings_of_a_subscription_are_refused(
    tmp_path: Path, configs: dict[str, str], code: ErrorCode, sentence: str
) -> None:
    async with subscribed(tmp_path) as (broker, client):
        answer = await alter(client, "new", **configs)
        assert (answer.error_code, sentence in answer.error_message) == (code, True), answer
        assert broker.node.cluster.image.client_metrics.keys() == {"producers"}


async def test_a_subscription_may_have_a_hundred_prefixes(tmp_path: Path) -> None:
    async with subscribed(tmp_path) as (broker, client):
        metrics = ",".join(f"m{n}" for n in range(100))
        assert (await alter(client, "new", metrics=metrics)).error_code == 0
        assert broker.node.cluster.image.client_metrics["new"] == {"metrics": metrics}


async def test_below_their_level_subscriptions_are_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=CLIENT_METRICS_LEVEL - 1) as broker, talk(broker.port) as client:
        answer = await alter(client, "new", metrics="*")
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "firn cluster features --upgrade firn.version=6" in answer.error_message
        assert (await subscription(client)).requested_metrics == []
