"""Definitions of settings, their values, and where they come from."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.configs import BrokerConfig, Durability, TimestampType, TopicConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.definition import ConfigSource
from app.configs.describing import DescribedConfig, describe_broker, describe_topic
from app.configs.kinds import ConfigType
from app.configs.numbers import INT_MAX, LONG_MAX
from app.configs.resolving import apply_broker_overrides, resolve_topic_config
from app.configs.topic import DERIVED
from app.configs.topic_definitions import TOPIC_DEFINITIONS
from app.configs.validation import TierMustBeEmpty, check_broker_config, validate_broker_configs, validate_topic_configs
from app.configs.values import format_value, parse_value
from app.core.errors import ConfigError, ErrorCode, RequestRejected

KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": str(LONG_MAX),
    "flush.ms": str(LONG_MAX),
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": str(LONG_MAX),
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""Of topics in Kafka 4.2, from its documentation."""


def by_name(described: list[DescribedConfig]) -> dict[str, DescribedConfig]:
    return {config.name: config for config in described}


def refused(code: ErrorCode = ErrorCode.INVALID_CONFIG, **overrides: str) -> str:
    """The message with which these topic overrides are refused; ``_`` stands for a dot."""
    with pytest.raises(RequestRejected) as caught:
        validate_topic_configs({name.replace("_", "."): value for name, value in overrides.items()})
    assert caught.value.code is code
    return str(caught.value)


def test_throttled_replicas_are_pairs_or_all_of_them() -> None:
    name = "leader.replication.throttled.replicas"
    for good in ("", "*", "0:1", "0:1,12:3"):
        validate_topic_configs({name: good})
    for bad in ("x", "0:1,", "*,0:1", "0:-1", "0"):
        assert "must be the literal '*'" in refused(**{name.replace(".", "_"): bad})


# --- definitions ----------------------------------------------------------------------------------------------------


def test_defaults_are_kafkas_or_the_documentation_says_so() -> None:
    own = {name: d for name, d in TOPIC_DEFINITIONS.items() if not name.startswith(("firn.", "confluent."))}
    assert own.keys() == KAFKA_DEFAULTS.keys()
    for name, definition in own.items():
        default = format_value(definition.default)
        if default == KAFKA_DEFAULTS[name]:
            assert definition.kafka_default is None
        else:
            assert definition.kafka_default == KAFKA_DEFAULTS[name]
            assert f"Firn's own default is {default}; Kafka's is {KAFKA_DEFAULTS[name]}." in definition.documentation


def test_every_field_of_a_broker_has_a_definition_or_a_reason() -> None:
    defined = {definition.field for definition in BROKER_DEFINITIONS.values()} - {""}
    addresses = {"listen_host", "listen_port", "advertised_host", "advertised_port"}
    assert {f.name for f in dataclasses.fields(BrokerConfig)} - defined == addresses | {
        "topic_defaults",
        "store_create",
        "take_over",
        "without_effect",
        "listeners",
        "inter_broker_listener",
        "security",
    }


@pytest.mark.parametrize(
    "definition", [*TOPIC_DEFINITIONS.values(), *BROKER_DEFINITIONS.values()], ids=lambda d: d.name
)
def test_every_definition_accepts_its_own_default_and_explains_itself(definition: object) -> None:
    assert isinstance(definition, type(TOPIC_DEFINITIONS["retention.ms"]))
    assert definition.documentation.endswith((".", ")"))
    text = format_value(definition.default)
    if text is not None and definition.field:
        assert parse_value(definition, text) == definition.default


def test_a_password_is_never_described() -> None:
    described = by_name(describe_broker(BrokerConfig(redis_url="redis://:secret@host/0")))["firn.redis.url"]
    assert described.definition.type is ConfigType.PASSWORD
    assert described.value is None
    assert [entry.value for entry in described.synonyms] == [None]


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("retention.ms", "soon", "Invalid value soon for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "1.5", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", str(LONG_MAX + 1), "Not a number of type LONG"),
        ("retention.ms", "9" * 5000, "Not a number of type LONG"),
        ("retention.ms", "٣", "Not a number of type LONG"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ("segment.bytes", str(INT_MAX + 1), "Not a number of type INT"),
        ("segment.bytes", "1048575", "Value must be at least 1048576"),
        ("min.cleanable.dirty.ratio", "1.01", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("compression.type", "brotli", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "10", "Value must be no more than 9"),
        ("cleanup.policy", "delete,shred", "Invalid value shred for configuration cleanup.policy"),
        ("cleanup.policy", "delete,delete", "must not be duplicated"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
    ],
)
def test_a_bad_value_is_refused_in_kafkas_words(name: str, text: str, message: str) -> None:
    assert message in refused(**{name: text})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " +60000 ", 60_000),
        ("retention.bytes", "-7", -7),
        ("cleanup.policy", "compact, delete", frozenset({"compact", "delete"})),
        ("cleanup.policy", "", frozenset()),
        ("min.cleanable.dirty.ratio", "1e-1", 0.1),
        ("preallocate", "TRUE", True),
        ("message.timestamp.type", "LogAppendTime", TimestampType.LOG_APPEND_TIME),
        ("firn.durability", "disk", Durability.DISK),
    ],
)
def test_a_good_value_is_read_as_kafka_reads_it(name: str, text: str, value: object) -> None:
    assert getattr(validate_topic_configs({name: text}), name.replace(".", "_")) == value


@given(name=st.sampled_from(sorted(TOPIC_DEFINITIONS)), text=st.text(max_size=20) | st.integers().map(str))
def test_any_text_is_a_value_or_an_invalid_config(name: str, text: str) -> None:
    try:
        config = validate_topic_configs({name: text})
    except RequestRejected as error:
        assert error.code is ErrorCode.INVALID_CONFIG  # noqa: PT017
    else:
        assert isinstance(config, TopicConfig)


# --- topics ---------------------------------------------------------------------------------------------------------


def test_an_unknown_name_and_a_null_are_invalid() -> None:
    assert refused(retention_minutes="5") == "Unknown topic config name: retention.minutes."
    with pytest.raises(RequestRejected, match="Null value not supported for topic configs"):
        validate_topic_configs({"retention.ms": None})


def test_overrides_stand_over_the_brokers_defaults_over_firns() -> None:
    broker = BrokerConfig(topic_defaults=TopicConfig(segment_bytes=2 << 20, retention_ms=5_000_000))
    config = resolve_topic_config(broker, {"retention.ms": "7000000", "a.setting.of.tomorrow": "x"})
    assert (config.retention_ms, config.segment_bytes, config.segment_ms) == (7_000_000, 2 << 20, 604_800_000)


def test_a_compacted_topic_stays_local_unless_it_says_otherwise_which_is_invalid() -> None:
    config = validate_topic_configs({"cleanup.policy": "compact"})
    assert (config.remote_storage_enable, config.tiered) == (False, False)
    assert "Remote log storage only supports" in refused(cleanup_policy="compact,delete", remote_storage_enable="true")
    assert validate_topic_configs({"cleanup.policy": "", "remote.storage.enable": "true"}).tiered


def test_a_default_of_local_retention_bends_to_the_topics_retention() -> None:
    short = validate_topic_configs({"retention.ms": "60000"})
    assert (short.local_retention_ms, short.local_retention_ms_effective) == (DERIVED, 60_000)
    assert validate_topic_configs({"retention.ms": "-1"}).local_retention_ms_effective == 3_600_000
    broker = BrokerConfig(topic_defaults=TopicConfig(local_retention_bytes=1000, local_retention_ms=-1))
    bent = validate_topic_configs({"retention.bytes": "10"}, broker=broker)
    assert (bent.local_retention_bytes_effective, bent.local_retention_ms_effective) == (10, 604_800_000)


def test_local_retention_is_the_whole_retention_without_a_tier() -> None:
    config = validate_topic_configs({"remote.storage.enable": "false", "local.retention.bytes": "5"})
    assert (config.local_retention_ms_effective, config.local_retention_bytes_effective) == (604_800_000, -1)


@pytest.mark.parametrize("unit", ["ms", "bytes"])
def test_a_local_retention_over_the_whole_is_invalid(unit: str) -> None:
    def overrides(local: str) -> dict[str, str]:
        return {f"retention.{unit}": "100", f"local.retention.{unit}": local}

    assert f"Value must not be more than retention.{unit} property value: 100" in refused(**overrides("101"))
    assert f"Value must not be -1 as retention.{unit} value is set as 100." in refused(**overrides("-1"))
    for sound in ("100", "-2", "0"):
        validate_topic_configs(overrides(sound))
    validate_topic_configs({**overrides("101"), "remote.storage.enable": "false"})


def test_without_copying_local_and_whole_retention_must_agree() -> None:
    disabled = {"remote.log.copy.disable": "true"}
    assert validate_topic_configs(disabled).local_retention_ms_effective == 604_800_000
    assert "must be -2 or equal retention.ms" in refused(**disabled, **{"local.retention.ms": "5"})
    assert "must be -2 or equal retention.bytes" in refused(**disabled, **{"local.retention.bytes": "5"})
    validate_topic_configs({**disabled, "local.retention.ms": "604800000"})


def test_compaction_lags_must_not_cross() -> None:
    assert "Conflict topic config setting" in refused(min_compaction_lag_ms="10", max_compaction_lag_ms="9")


@pytest.mark.parametrize(
    ("store", "key", "why"),
    [
        ("s3://bucket/x", "alias/topic", None),
        ("s3://bucket/x", "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab", None),
        ("s3://bucket/x", "a key", "must be the id of a KMS key"),
        ("file:///x", "alias/topic", "Only an S3 store"),
    ],
)
def test_a_key_of_a_topic_is_for_stores_that_have_keys(store: str, key: str, why: str | None) -> None:
    asked = {"firn.tier.kms.key.id": key}
    broker = BrokerConfig(store_url=store)
    if why is None:
        assert validate_topic_configs(asked, broker=broker).firn_tier_kms_key_id == key
        return
    with pytest.raises(RequestRejected, match=why):
        validate_topic_configs(asked, broker=broker)


def test_j43_object_durability_needs_a_tiered_topic() -> None:
    asked = {"firn.durability": "object"}
    assert validate_topic_configs(asked).firn_durability is Durability.OBJECT
    for policy in ("compact", "compact,delete"):
        config = validate_topic_configs({**asked, "cleanup.policy": policy})
        assert config.tiered
        assert config.stays_local
        refusal = refused(firn_durability="object", cleanup_policy=policy, remote_storage_enable="false")
        assert "remote.storage.enable=true" in refusal
    assert not validate_topic_configs({"cleanup.policy": "compact"}).tiered
    assert "remote.storage.enable=true" in refused(firn_durability="object", remote_storage_enable="false")
    assert "remote.log.copy.disable=false" in refused(firn_durability="object", remote_log_copy_disable="true")


def test_j60_a_topic_becomes_compacted_and_tiered_only_with_an_empty_tier() -> None:
    both = {"firn.durability": "object", "cleanup.policy": "compact"}
    left = {"cleanup.policy": "compact", "remote.log.delete.on.disable": "true"}
    for before in ({"firn.durability": "object"}, {}, left):
        with pytest.raises(TierMustBeEmpty):
            validate_topic_configs(both, existing=before)
        assert validate_topic_configs(both, existing=before, nothing_tiered=True).tiered
    with pytest.raises(TierMustBeEmpty):
        validate_topic_configs({"cleanup.policy": "compact"}, existing=left)
    assert validate_topic_configs(both, existing={"cleanup.policy": "compact"}).tiered
    validate_topic_configs({**both, "cleanup.policy": "compact,delete"}, existing=both)
    with pytest.raises(RequestRejected, match="cannot change from firn"):
        validate_topic_configs({"cleanup.policy": "compact"}, existing=both)
    validate_topic_configs({"firn.durability": "object"}, existing=both)


def test_object_durability_as_a_default_changes_nothing_for_topics_that_are_there() -> None:
    broker = BrokerConfig(topic_defaults=TopicConfig(firn_durability=Durability.OBJECT))
    check_broker_config(broker)
    assert resolve_topic_config(broker, {}).firn_durability is Durability.DISK
    assert resolve_topic_config(broker, {"firn.durability": "memory"}).firn_durability is Durability.MEMORY
    assert resolve_topic_config(broker, {"firn.durability": "object"}).firn_durability is Durability.OBJECT


def test_the_write_ahead_logs_linger_has_a_default_of_brokers_and_is_said_by_topics() -> None:
    broker = apply_broker_overrides(BrokerConfig(), {"wal.linger.ms": "40"})
    assert (BrokerConfig().wal_linger_ms, broker.wal_linger_ms) == (250, 40)
    assert resolve_topic_config(broker, {}).firn_wal_linger_ms == 40
    assert resolve_topic_config(broker, {"firn.wal.linger.ms": "5"}).firn_wal_linger_ms == 5


def test_the_write_ahead_logs_buffer_has_room_for_two_objects() -> None:
    check_broker_config(BrokerConfig(wal_bytes=1_000_000, wal_buffer_bytes=2_000_000))
    with pytest.raises(ConfigError, match=r"at least twice wal\.bytes, which is 1000000"):
        check_broker_config(BrokerConfig(wal_bytes=1_000_000, wal_buffer_bytes=1_999_999))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"remote.storage.enable": "false"}, "Remote storage cannot be turned off"),
        ({"cleanup.policy": "compact"}, r"cleanup\.policy cannot become compact while segments"),
    ],
    ids=str,
)
def test_tiering_is_turned_off_only_with_leave_to_delete(change: dict[str, str], words: str) -> None:
    with pytest.raises(RequestRejected, match=words):
        validate_topic_configs(change, existing={})
    validate_topic_configs({**change, "remote.log.delete.on.disable": "true"}, existing={})
    validate_topic_configs(change, existing={"remote.storage.enable": "false"})
    validate_topic_configs(change)


# --- brokers --------------------------------------------------------------------------------------------------------


def test_the_finest_broker_wide_name_counts_first() -> None:
    hours = {"log.retention.hours": "2"}
    minutes = {**hours, "log.retention.minutes": "5"}
    assert apply_broker_overrides(BrokerConfig(), hours).topic_defaults.retention_ms == 7_200_000
    assert apply_broker_overrides(BrokerConfig(), minutes).topic_defaults.retention_ms == 300_000
    both = apply_broker_overrides(BrokerConfig(), {**minutes, "log.retention.ms": "9", "unknown": "x"})
    assert both.topic_defaults.retention_ms == 9
    assert apply_broker_overrides(BrokerConfig(), {"log.retention.hours": "-1"}).topic_defaults.retention_ms == -1


@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        ("no.such", "1", ErrorCode.INVALID_CONFIG, "Unknown broker config name: no.such"),
        ("retention.ms", "1", ErrorCode.INVALID_CONFIG, "Unknown broker config name"),
        ("node.id", "2", ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically: node.id"),
        ("log.retention.hours", "x", ErrorCode.INVALID_CONFIG, "configuration log.retention.hours: Not a number"),
        ("log.roll.hours", "0", ErrorCode.INVALID_CONFIG, "Value must be at least 1"),
        ("log.retention.ms", None, ErrorCode.INVALID_CONFIG, "Null value"),
    ],
)
def test_a_bad_broker_override_is_refused(name: str, value: str | None, code: ErrorCode, message: str) -> None:
    with pytest.raises(RequestRejected, match=message) as caught:
        validate_broker_configs({name: value})
    assert caught.value.code is code


def test_a_broker_override_takes_effect() -> None:
    effective = validate_broker_configs({"message.max.bytes": "5000", "log.roll.hours": "7"})
    assert (effective.topic_defaults.max_message_bytes, effective.topic_defaults.segment_ms) == (5000, 25_200_000)


# --- describing -----------------------------------------------------------------------------------------------------


def test_a_described_value_names_every_place_that_says_something_in_order() -> None:
    broker = BrokerConfig(topic_defaults=TopicConfig(retention_ms=5000))
    described = by_name(
        describe_topic(
            broker,
            {"retention.ms": "1000"},
            broker_overrides={"log.retention.ms": "2000"},
            cluster_overrides={"log.retention.minutes": "3", "log.retention.hours": "4"},
        )
    )["retention.ms"]
    assert (described.value, described.source) == ("1000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [tuple(entry) for entry in described.synonyms] == [
        ("retention.ms", "1000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "2000", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("log.retention.minutes", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.hours", "4", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.ms", "5000", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]


@pytest.mark.parametrize(
    ("broker", "broker_overrides", "cluster_overrides", "value", "source"),
    [
        (BrokerConfig(), {}, {}, "604800000", ConfigSource.DEFAULT_CONFIG),
        (
            BrokerConfig(topic_defaults=TopicConfig(retention_ms=5000)),
            {},
            {},
            "5000",
            ConfigSource.STATIC_BROKER_CONFIG,
        ),
        (BrokerConfig(), {}, {"log.retention.hours": "1"}, "3600000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (
            BrokerConfig(),
            {"log.retention.ms": "7"},
            {"log.retention.hours": "1"},
            "7",
            ConfigSource.DYNAMIC_BROKER_CONFIG,
        ),
    ],
)
def test_a_topics_value_and_source_follow_the_layers(
    broker: BrokerConfig,
    broker_overrides: dict[str, str],
    cluster_overrides: dict[str, str],
    value: str,
    source: ConfigSource,
) -> None:
    described = by_name(
        describe_topic(broker, {}, broker_overrides=broker_overrides, cluster_overrides=cluster_overrides)
    )["retention.ms"]
    assert (described.value, described.source) == (value, source)


def test_a_description_shows_the_value_that_holds() -> None:
    described = by_name(describe_topic(BrokerConfig(), {"cleanup.policy": "compact", "retention.ms": "1000"}))
    assert described["remote.storage.enable"].value == "false"
    assert described["local.retention.ms"].value == "-2"
    assert described.keys() == TOPIC_DEFINITIONS.keys()


def test_a_brokers_description_has_kafkas_names_and_units() -> None:
    broker = BrokerConfig(node_id=4, listen_port=19092, topic_defaults=TopicConfig(retention_ms=90_000_000))
    described = by_name(describe_broker(broker, cluster_overrides={"log.segment.bytes": "2097152"}))
    assert (described["node.id"].value, described["node.id"].read_only) == ("4", True)
    assert described["listeners"].value == "PLAINTEXT://127.0.0.1:19092"
    assert described["advertised.listeners"].value is None
    assert described["log.retention.hours"].value == "25"
    assert described["log.retention.ms"].value == "90000000"
    assert described["log.retention.ms"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert described["log.segment.bytes"].value == "2097152"
    assert described["log.segment.bytes"].read_only is False
    assert described["log.dirs"].source is ConfigSource.DEFAULT_CONFIG


def test_an_address_that_is_advertised_is_described() -> None:
    described = by_name(describe_broker(BrokerConfig(advertised_host="a.example")))
    assert described["advertised.listeners"].value == "PLAINTEXT://a.example:9092"
