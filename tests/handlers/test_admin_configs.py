"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources over a real controller, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from app.configs import TopicConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.definition import ConfigSource, Definition
from app.configs.kinds import ConfigType, Update
from app.configs.topic_definitions import TOPIC_BY_SYNONYM, TOPIC_DEFINITIONS
from app.configs.values import format_value
from app.core.errors import ErrorCode, RequestRejected
from app.wire.apikeys import ApiKey
from app.wire.apis import alter_configs as full
from app.wire.apis import incremental_alter_configs as incremental
from app.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from app.wire.apis.list_config_resources import ListConfigResourcesRequest
from tests.handlers.admin_bench import NODE_ID, AdminBench, admin_bench, answered, versions

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SELF = str(NODE_ID)


async def describe(bench: AdminBench, kind: int, name: str, *keys: str, version: int = 4, **options: bool) -> Any:
    resource = DescribeConfigsResource(kind, name, list(keys) or None)
    message = DescribeConfigsRequest(resources=[resource], **options)
    [result] = (await bench.ask(ApiKey.DESCRIBE_CONFIGS, version, message)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def change(
    bench: AdminBench, kind: int, name: str, *changes: tuple[str, int, str | None], version: int = 1, **options: bool
) -> Any:
    configs = [incremental.AlterableConfig(*one) for one in changes]
    message = incremental.IncrementalAlterConfigsRequest(
        [incremental.AlterConfigsResource(kind, name, configs)], **options
    )
    [result] = (await bench.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, message)).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def replace(
    bench: AdminBench, kind: int, name: str, configs: dict[str, str | None], version: int = 2, **options: bool
) -> Any:
    resource = full.AlterConfigsResource(kind, name, [full.AlterableConfig(*item) for item in configs.items()])
    message = full.AlterConfigsRequest([resource], **options)
    [result] = (await bench.ask(ApiKey.ALTER_CONFIGS, version, message)).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


# --- DescribeConfigs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
async def test_a_topic_is_described_in_every_version(version: int) -> None:
    async with admin_bench(topic_defaults=TopicConfig(segment_bytes=2 << 20)) as bench:
        await bench.controller.create_topic("t", 1, {"retention.ms": "5000"})
        options = {"include_synonyms": True, **({"include_documentation": True} if version >= 3 else {})}
        result = await describe(bench, TOPIC, "t", version=version, **options)
        configs = answered(result.configs)
        assert configs.keys() == TOPIC_DEFINITIONS.keys()
        said = {name: (configs[name].value, configs[name].config_source) for name in configs}
        assert said["retention.ms"] == ("5000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
        assert said["segment.bytes"] == ("2097152", ConfigSource.STATIC_BROKER_CONFIG)
        assert said["remote.storage.enable"] == ("true", ConfigSource.DEFAULT_CONFIG)
        assert [(one.name, one.value, one.source) for one in configs["retention.ms"].synonyms] == [
            ("retention.ms", "5000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
            ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
        ]
        assert not any(config.read_only or config.is_sensitive for config in result.configs)
        if version >= 3:
            assert configs["retention.ms"].config_type == ConfigType.LONG
            assert "Kafka's is false" in configs["remote.storage.enable"].documentation
        else:
            assert configs["retention.ms"].config_type == 0


async def test_synonyms_and_documentation_come_only_when_asked_for() -> None:
    async with admin_bench() as bench:
        for config in (await describe(bench, BROKER, SELF)).configs:
            assert config.synonyms == []
            assert config.documentation is None


async def test_only_the_settings_asked_for_are_described() -> None:
    async with admin_bench() as bench:
        result = await describe(bench, BROKER, SELF, "num.partitions", "log.retention.hours", "no.such")
        assert [config.name for config in result.configs] == ["log.retention.hours", "num.partitions"]


async def test_a_broker_describes_itself_and_hides_passwords() -> None:
    async with admin_bench(redis_url="redis://:secret@host", num_partitions=3) as bench:
        configs = answered((await describe(bench, BROKER, SELF, include_synonyms=True)).configs)
        assert configs.keys() >= BROKER_DEFINITIONS.keys()
        assert (configs["num.partitions"].value, configs["num.partitions"].read_only) == ("3", True)
        hidden = configs["firn.redis.url"]
        assert (hidden.is_sensitive, hidden.value, [one.value for one in hidden.synonyms]) == (True, None, [None])


async def test_the_empty_broker_name_describes_what_was_said_for_all() -> None:
    async with admin_bench() as bench:
        assert (await describe(bench, BROKER, "")).configs == []
        await change(bench, BROKER, "", ("log.retention.hours", SET, "2"))
        [config] = (await describe(bench, BROKER, "")).configs
        assert (config.name, config.value) == ("log.retention.hours", "2")
        assert config.config_source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "8", ErrorCode.INVALID_REQUEST),
        (BROKER, "seven", ErrorCode.INVALID_REQUEST),
        (BROKER, "7" * 5000, ErrorCode.INVALID_REQUEST),
        (BROKER, "٧", ErrorCode.INVALID_REQUEST),
        (LOGGER, SELF, ErrorCode.INVALID_REQUEST),
        (0, "t", ErrorCode.INVALID_REQUEST),
        (-1, "t", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_cannot_be_described_is_refused(kind: int, name: str, code: ErrorCode) -> None:
    async with admin_bench() as bench:
        result = await describe(bench, kind, name)
        assert (result.error_code, result.configs) == (code, [])
        assert result.error_message


# --- IncrementalAlterConfigs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
async def test_settings_of_a_topic_are_changed_one_by_one_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1, {"retention.ms": "5000", "segment.ms": "9"})
        changes = (("retention.ms", DELETE, None), ("segment.ms", SET, "8"), ("cleanup.policy", APPEND, "delete"))
        checked = await change(bench, TOPIC, "t", *changes, version=version, validate_only=True)
        assert checked.error_code == ErrorCode.NONE
        assert bench.cluster.image.topics_by_name["t"].configs == {"retention.ms": "5000", "segment.ms": "9"}
        made = await change(bench, TOPIC, "t", *changes, version=version)
        assert (made.error_code, made.error_message) == (ErrorCode.NONE, None)
        assert bench.cluster.image.topics_by_name["t"].configs == {"segment.ms": "8", "cleanup.policy": "delete"}


async def test_lists_grow_and_shrink() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1, {"remote.storage.enable": "false"})
        await change(bench, TOPIC, "t", ("cleanup.policy", APPEND, "compact"))
        assert bench.cluster.image.topics_by_name["t"].configs["cleanup.policy"] == "delete,compact"
        await change(bench, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))
        assert bench.cluster.image.topics_by_name["t"].configs["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "missing", [("retention.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", [("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", -1, "1")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("remote.storage.enable", SET, "false")], ErrorCode.INVALID_CONFIG),
        (BROKER, SELF, [("node.id", SET, "8")], ErrorCode.INVALID_REQUEST),
        (BROKER, SELF, [("log.roll.hours", SET, "x")], ErrorCode.INVALID_CONFIG),
        (BROKER, "99", [("log.roll.hours", SET, "1")], ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "7" * 5000, [("log.roll.hours", SET, "1")], ErrorCode.INVALID_REQUEST),
        (LOGGER, SELF, [("root", SET, "INFO")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_change_that_cannot_be_made_is_refused(
    kind: int, name: str, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        image = bench.cluster.image
        result = await change(bench, kind, name, *changes)
        assert result.error_code == code
        assert result.error_message
        assert bench.cluster.image is image


async def test_a_resource_that_is_there_twice_is_not_changed() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        one = incremental.AlterConfigsResource(TOPIC, "t", [incremental.AlterableConfig("retention.ms", SET, "1")])
        message = incremental.IncrementalAlterConfigsRequest([one, one])
        answers = (await bench.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message)).responses
        assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2
        assert bench.cluster.image.topics_by_name["t"].configs == {}


async def test_a_dynamic_broker_default_reaches_topics_and_their_description() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        assert (await change(bench, BROKER, "", ("log.retention.hours", SET, "2"))).error_code == ErrorCode.NONE
        assert (await change(bench, BROKER, SELF, ("log.retention.ms", SET, "9000"))).error_code == ErrorCode.NONE
        [config] = (await describe(bench, TOPIC, "t", "retention.ms", include_synonyms=True)).configs
        assert (config.value, config.config_source) == ("9000", ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert [(one.name, one.source) for one in config.synonyms] == [
            ("log.retention.ms", ConfigSource.DYNAMIC_BROKER_CONFIG),
            ("log.retention.hours", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            ("log.retention.hours", ConfigSource.DEFAULT_CONFIG),
        ]
        topic = bench.cluster.image.topics_by_name["t"]
        assert bench.cluster.effective_config(topic).retention_ms == 9000


# --- AlterConfigs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
async def test_all_overrides_of_a_topic_are_replaced_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1, {"retention.ms": "5000"})
        wanted: dict[str, str | None] = {"segment.ms": "8"}
        assert (await replace(bench, TOPIC, "t", wanted, version, validate_only=True)).error_code == ErrorCode.NONE
        assert bench.cluster.image.topics_by_name["t"].configs == {"retention.ms": "5000"}
        result = await replace(bench, TOPIC, "t", wanted, version)
        assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
        assert bench.cluster.image.topics_by_name["t"].configs == wanted


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (TOPIC, "missing", {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", {"retention.ms": None}, ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", {"segment.bytes": "5"}, ErrorCode.INVALID_CONFIG),
        (BROKER, "x", {}, ErrorCode.INVALID_REQUEST),
        (LOGGER, SELF, {}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_overrides_that_cannot_be_set_are_refused(
    kind: int, name: str, configs: dict[str, str | None], code: ErrorCode
) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        assert (await replace(bench, kind, name, configs)).error_code == code


async def test_a_setting_that_is_there_twice_is_refused() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        twice = [full.AlterableConfig("retention.ms", "1"), full.AlterableConfig("retention.ms", "2")]
        message = full.AlterConfigsRequest([full.AlterConfigsResource(TOPIC, "t", twice)])
        [result] = (await bench.ask(ApiKey.ALTER_CONFIGS, 2, message)).responses
        assert result.error_code == ErrorCode.INVALID_REQUEST


async def test_a_group_is_described_with_what_it_does_differently() -> None:
    async with admin_bench() as bench:
        assert (await change(bench, GROUP, "g", ("share.isolation.level", SET, "read_committed"))).error_code == 0
        described = {config.name: config for config in (await describe(bench, GROUP, "g")).configs}
        said = described["share.isolation.level"]
        assert (said.value, said.config_source) == ("read_committed", ConfigSource.DYNAMIC_GROUP_CONFIG)
        inherited = described["consumer.session.timeout.ms"]
        assert (inherited.value, inherited.config_source) == ("45000", ConfigSource.DEFAULT_CONFIG)
        assert (await describe(bench, GROUP, "")).error_code == ErrorCode.INVALID_REQUEST
        listed = await bench.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([GROUP]))
        assert [(each.resource_name, each.resource_type) for each in listed.config_resources] == [("g", GROUP)]


async def test_what_kafka_alters_and_nothing_here_needs_is_kept_described_and_told() -> None:
    name = "sasl.kerberos.min.time.before.relogin"
    async with admin_bench() as bench:
        assert name not in {config.name for config in (await describe(bench, BROKER, SELF)).configs}
        assert (await change(bench, BROKER, SELF, (name, SET, "61000"), ("num.io.threads", SET, "4"))).error_code == 0
        described = {
            config.name: config for config in (await describe(bench, BROKER, SELF, include_synonyms=True)).configs
        }
        said = described[name]
        assert (said.value, said.config_source, said.read_only) == ("61000", ConfigSource.DYNAMIC_BROKER_CONFIG, False)
        assert [(each.value, each.source) for each in said.synonyms] == [
            ("61000", ConfigSource.DYNAMIC_BROKER_CONFIG),
            ("60000", ConfigSource.DEFAULT_CONFIG),
        ]
        [line] = bench.lines
        assert f"{name} (OpenSSL serves TLS here" in line
        assert "num.io.threads (a broker is one event loop" in line
        assert (await change(bench, BROKER, SELF, (name, DELETE, None))).error_code == 0
        assert name not in {config.name for config in (await describe(bench, BROKER, SELF)).configs}
        assert bench.lines == [line], "taking it away needs no warning"


async def test_settings_of_one_broker_read_only_ones_and_bad_values_are_refused_as_in_kafka() -> None:
    async with admin_bench() as bench:
        for_all = await change(bench, BROKER, "", ("ssl.protocol", SET, "TLSv1.3"))
        assert for_all.error_code == ErrorCode.INVALID_REQUEST
        assert "broker id must be specified" in for_all.error_message
        fixed = await change(bench, BROKER, SELF, ("queued.max.requests", SET, "5"))
        assert fixed.error_code == ErrorCode.INVALID_REQUEST
        assert "Cannot update these configs dynamically" in fixed.error_message
        bad = await change(bench, BROKER, SELF, ("num.io.threads", SET, "none"))
        assert bad.error_code == ErrorCode.INVALID_CONFIG
        assert (await change(bench, BROKER, "", ("num.io.threads", SET, "5"))).error_code == 0


async def test_a_secret_is_not_written_into_the_store() -> None:
    async with admin_bench() as bench:
        for name in ("listener.name.plaintext.ssl.keystore.password", "listener.name.plaintext.sasl.jaas.config"):
            refused = await change(bench, BROKER, SELF, (name, SET, "hunter2"))
            assert refused.error_code == ErrorCode.INVALID_REQUEST
            assert "would be written into the object store" in refused.error_message
        assert "hunter2" not in repr(bench.cluster.image.broker_configs)
        described = {config.name: config for config in (await describe(bench, BROKER, SELF)).configs}
        assert (described["ssl.keystore.password"].value, described["ssl.key.password"].is_sensitive) == (None, True)


async def test_tls_settings_change_for_one_listener_of_one_broker() -> None:
    async with admin_bench() as bench:
        name = "listener.name.plaintext.ssl.keystore.location"
        for_all = await change(bench, BROKER, "", (name, SET, "/x"))
        assert (for_all.error_code, "broker id must be" in for_all.error_message) == (ErrorCode.INVALID_REQUEST, True)
        general = await change(bench, BROKER, SELF, ("ssl.keystore.location", SET, "/x"))
        assert (general.error_code, "using the listener prefix" in general.error_message) == (
            ErrorCode.INVALID_REQUEST,
            True,
        )
        fixed = await change(bench, BROKER, SELF, ("listener.name.plaintext.sasl.enabled.mechanisms", SET, "PLAIN"))
        assert (fixed.error_code, "dynamically" in fixed.error_message) == (ErrorCode.INVALID_REQUEST, True)
        assert (await change(bench, BROKER, SELF, (name, SET, "/x"))).error_code == 0
        described = {config.name: config for config in (await describe(bench, BROKER, SELF)).configs}
        assert (described[name].value, described[name].read_only) == ("/x", False)


async def test_a_topic_takes_settings_that_only_kafka_needs() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        assert (await change(bench, TOPIC, "t", ("internal.segment.bytes", SET, "4096"))).error_code == 0
        described = {config.name: config.value for config in (await describe(bench, TOPIC, "t")).configs}
        assert described["internal.segment.bytes"] == "4096"
        assert described["segment.bytes"] == "1073741824"
        assert "use segment.bytes" in bench.lines[-1]


def another(definition: Definition) -> str:
    """A value that a setting may have and does not have by default."""
    match definition.type:
        case ConfigType.BOOLEAN:
            return format_value(not definition.default) or ""
        case ConfigType.DOUBLE:
            return "1.5" if definition.maximum is None else "0.75"
        case ConfigType.LIST if definition.replicas:
            return "0:1"
        case ConfigType.LIST:
            return ""  # To compact a tiered topic is a story of its own.
        case ConfigType.STRING if not definition.choices:
            return {"max.connections.per.ip.overrides": "10.0.0.1:5", "firn.tier.kms.key.id": "alias/other"}[
                definition.name
            ]
        case ConfigType.STRING:
            return next(one for one in definition.choices if one not in (format_value(definition.default), "object"))
        case _:
            least = 1 if definition.minimum is None else int(definition.minimum)
            return str(max(least, 0) + 1 if definition.maximum is None else int(definition.maximum) - 1)


def out_of_bounds(definition: Definition) -> str:
    if definition.type in (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT) and definition.minimum is not None:
        return str(int(definition.minimum) - 1)
    return "2:x" if definition.replicas else "no such value"


DYNAMIC = {
    **{(BROKER, name): d for name, d in BROKER_DEFINITIONS.items() if d.update is not Update.READ_ONLY},
    **{(BROKER, name): definition for name, (definition, _) in TOPIC_BY_SYNONYM.items()},
    **{(TOPIC, name): d for name, d in TOPIC_DEFINITIONS.items() if not name.startswith("confluent.")},
}
"""Those of Confluent need a cluster of level 5: ``tests/broker/test_schema_validation.py``."""


@pytest.mark.parametrize(("kind", "name"), DYNAMIC, ids=lambda word: str(word))
async def test_what_is_altered_is_effective_and_described_with_its_source(kind: int, name: str) -> None:
    definition = DYNAMIC[kind, name]
    needed = {
        "local.retention.ms": ("retention.ms", SET, "-1"),
        "local.retention.bytes": ("retention.bytes", SET, "-1"),
        "remote.storage.enable": ("remote.log.delete.on.disable", SET, "true"),
    }
    async with admin_bench(store_url="s3://bucket") as bench:
        topic = await bench.controller.create_topic("t", 1)

        def effective() -> object:
            if kind == TOPIC:
                holder: object = bench.cluster.effective_config(bench.cluster.image.topics_by_id[topic.topic_id])
            else:
                broker = bench.cluster.effective_broker_config()
                holder = broker.topic_defaults if name in TOPIC_BY_SYNONYM else broker
            return getattr(holder, definition.field)

        resource = "t" if kind == TOPIC else ""
        before = effective()
        bad = await change(bench, kind, resource, (name, SET, out_of_bounds(definition)))
        assert (bad.error_code, effective()) == (ErrorCode.INVALID_CONFIG, before)
        text = another(definition)
        more = [needed[name]] if kind == TOPIC and name in needed else []
        answer = await change(bench, kind, resource, *more, (name, SET, text))
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        assert effective() != before
        [described] = (await describe(bench, kind, "t" if kind == TOPIC else SELF, name, include_synonyms=True)).configs
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG if kind == TOPIC else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        assert (described.value, described.config_source, described.read_only) == (text, source, False)
        assert (described.synonyms[0].name, described.synonyms[0].value) == (name, text)
        assert (await change(bench, kind, resource, (name, DELETE, None))).error_code == ErrorCode.NONE
        assert effective() == before


async def test_a_topic_is_told_of_described_settings_without_effect() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        wanted = (("preallocate", SET, "true"), ("retention.ms", SET, "9"))
        assert (await change(bench, TOPIC, "t", *wanted)).error_code == 0
        assert bench.lines == [
            "settings of topic t that mean nothing here: preallocate (a segment's file grows with what is written to it)"
        ]
        assert (await change(bench, BROKER, "", ("log.preallocate", SET, "true"))).error_code == 0
        assert len(bench.lines) == 2
        assert "preallocate (a segment's file grows with what is written to it)" in bench.lines[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consumer.session.timeout.ms", "44000"),
        ("consumer.session.timeout.ms", "61000"),
        ("consumer.heartbeat.interval.ms", "4000"),
        ("consumer.assignment.interval.ms", "16000"),
        ("share.session.timeout.ms", "44000"),
        ("share.heartbeat.interval.ms", "16000"),
        ("share.record.lock.duration.ms", "14000"),
        ("share.record.lock.duration.ms", "61000"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "4001"),
        ("share.renew.acknowledge.enable", "perhaps"),
    ],
)
async def test_settings_of_a_group_keep_to_the_brokers_bounds(name: str, value: str) -> None:
    async with admin_bench() as bench:
        assert (await change(bench, GROUP, "g", (name, SET, value))).error_code == ErrorCode.INVALID_CONFIG


async def test_a_group_takes_settings_of_streams_without_effect() -> None:
    async with admin_bench() as bench:
        assert (await change(bench, GROUP, "g", ("streams.session.timeout.ms", SET, "50000"))).error_code == 0
        described = {config.name: config.value for config in (await describe(bench, GROUP, "g")).configs}
        assert described["streams.session.timeout.ms"] == "50000"
        assert "streams protocol" in bench.lines[-1]


# --- ListConfigResources --------------------------------------------------------------------------------------------


async def test_version_0_lists_client_metrics_alone() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 1)
        answer = await bench.ask(ApiKey.LIST_CONFIG_RESOURCES, 0, ListConfigResourcesRequest())
        assert (answer.error_code, answer.config_resources) == (ErrorCode.NONE, [])


@pytest.mark.parametrize(
    ("kinds", "listed"),
    [
        ([], [("a", TOPIC), ("b", TOPIC), (SELF, BROKER)]),
        ([TOPIC], [("a", TOPIC), ("b", TOPIC)]),
        ([BROKER, 16, 32], [(SELF, BROKER)]),
    ],
)
async def test_version_1_lists_topics_and_brokers(kinds: list[int], listed: list[tuple[str, int]]) -> None:
    async with admin_bench() as bench:
        for name in ("b", "a"):
            await bench.controller.create_topic(name, 1)
        answer = await bench.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest(kinds))
        assert [(one.resource_name, one.resource_type) for one in answer.config_resources] == listed


async def test_an_unknown_kind_of_resource_is_an_unsupported_version() -> None:
    async with admin_bench() as bench:
        answer = await bench.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([3]))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


# --- requests that fail as a whole ----------------------------------------------------------------------------------


async def test_a_refusal_of_the_whole_request_names_every_resource_in_every_version() -> None:
    error = RequestRejected(ErrorCode.NOT_CONTROLLER, "elsewhere")
    messages: dict[ApiKey, Any] = {
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "t", None)]),
        ApiKey.ALTER_CONFIGS: full.AlterConfigsRequest([full.AlterConfigsResource(TOPIC, "t")]),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental.IncrementalAlterConfigsRequest(
            [incremental.AlterConfigsResource(TOPIC, "t")]
        ),
    }
    async with admin_bench() as bench:
        for key, message in messages.items():
            for version in versions(key):
                answer = bench.refuse(key, version, message, error)
                [result] = answer.results if key is ApiKey.DESCRIBE_CONFIGS else answer.responses
                assert (result.error_code, result.error_message) == (ErrorCode.NOT_CONTROLLER, "elsewhere")
                assert (result.resource_type, result.resource_name) == (TOPIC, "t")
