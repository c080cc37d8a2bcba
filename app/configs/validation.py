"""Whether a topic, or a broker, may have the settings that it is to have. Tests: ``tests/test_configs.py``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from app.configs.broker import BrokerConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS, definition_of_listener
from app.configs.connection_limits import check_connection_limits
from app.configs.definition import Definition
from app.configs.group_bounds import check_group_bounds
from app.configs.kinds import Update
from app.configs.listeners import CHANGED_WHILE_RUNNING, LIMITS_OF_LISTENERS, split_prefixed
from app.configs.resolving import apply_broker_overrides, parse_synonym, resolve_topic_config
from app.configs.topic import DERIVED, Durability, TopicConfig
from app.configs.topic_definitions import TOPIC_BY_SYNONYM, TOPIC_DEFINITIONS
from app.configs.values import invalid_value, parse_value
from app.configs.without_effect import TOPIC_WITHOUT_EFFECT, broker_setting_without_effect, checked_text
from app.core.errors import ConfigError, ErrorCode, RequestRejected, clause

_KMS_KEY: Final = re.compile(r"[A-Za-z0-9:/_-]{1,2048}")


class TierMustBeEmpty(RequestRejected):
    """The change is possible only if the object store has no segment of the topic, and none is being copied."""


def validate_topic_configs(
    overrides: Mapping[str, str | None],
    *,
    broker: BrokerConfig | None = None,
    existing: Mapping[str, str] | None = None,
    nothing_tiered: bool = False,
) -> TopicConfig:
    """Check all overrides of a topic. Returns: the resulting settings.

    ``existing`` are the present overrides, None for a new topic. ``nothing_tiered``: the caller has ensured that nothing is
    tiered, and keeps it so until the change is made. Then the topic may become compacted.

    Raises: RequestRejected INVALID_CONFIG in Kafka's words: an unknown name, a value of the wrong type or out of range,
    settings that contradict each other, tiering turned off without permission to delete the tiered data (KIP-950). It is
    TierMustBeEmpty if the change were possible with an empty tier.
    """
    broker = broker or BrokerConfig()
    given: dict[str, str] = {}
    for name, text in overrides.items():
        useless = TOPIC_WITHOUT_EFFECT.get(name)
        if name not in TOPIC_DEFINITIONS and useless is None:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}.")
        if text is None:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}.")
        given[name] = text if useless is None else checked_text(useless, text)
    config = resolve_topic_config(broker, given)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            f"Conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms}).",
        )
    if config.firn_tier_kms_key_id:
        _check_kms_key(config.firn_tier_kms_key_id, broker.store_url)
    if config.firn_durability is Durability.OBJECT:
        _check_tiered(config)
    before = None if existing is None else resolve_topic_config(broker, existing)
    if (
        before is not None
        and before.compacted
        and config.compacted
        and before.remote_log_delete_on_disable
        and not config.remote_log_delete_on_disable
    ):
        _check_becomes_compacted(before, nothing_tiered)  # or the next change would not know of segments that were left
    if config.compacted and config.tiered:
        _check_becomes_compacted(before, nothing_tiered)
    elif config.remote_storage_enable and config.compacted:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list, and topics "
            "with firn.durability=object. For cleanup.policy=compact set remote.storage.enable=false, or leave it out.",
        )
    if config.tiered:
        _check_local_retention("ms", config.local_retention_ms, config.retention_ms, config.remote_log_copy_disable)
        _check_local_retention(
            "bytes", config.local_retention_bytes, config.retention_bytes, config.remote_log_copy_disable
        )
    elif before is not None and before.compacted and before.tiered:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            "A compacted topic cannot change from firn.durability=object to another durability, because its write-ahead log is "
            "deleted only as it is tiered. Make another topic, and copy the records.",
        )
    elif before is not None and not config.remote_log_delete_on_disable and before.tiered:
        if config.compacted:
            if nothing_tiered:
                return config
            raise TierMustBeEmpty(
                ErrorCode.INVALID_CONFIG,
                "cleanup.policy cannot become compact while segments of the topic are in the object store, because compacted "
                "topics stay on the local disk: to delete what is in the store alone, set "
                "cleanup.policy=compact,remote.storage.enable=false,remote.log.delete.on.disable=true; to keep it, make another "
                "topic with cleanup.policy=compact and copy the records.",
            )
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            "Remote storage cannot be turned off while the topic's remote data is kept: to keep it and copy nothing more, "
            "set remote.storage.enable=true,remote.log.copy.disable=true; to delete it, set "
            "remote.storage.enable=false,remote.log.delete.on.disable=true.",
        )
    return config


def _check_becomes_compacted(before: TopicConfig | None, nothing_tiered: bool) -> None:
    """J60: in the store is all of a compacted topic, or nothing of before. Raises: TierMustBeEmpty."""
    if before is None or nothing_tiered or (before.compacted and not before.remote_log_delete_on_disable):
        return
    raise TierMustBeEmpty(
        ErrorCode.INVALID_CONFIG,
        "A topic cannot become a compacted one with firn.durability=object while segments of it are in the object store, because "
        "its local log lacks them, or has lost their tombstones: make another topic and copy the records.",
    )


def _check_tiered(config: TopicConfig) -> None:
    """J43: the write-ahead log is not to be the only copy for ever. Raises: RequestRejected INVALID_CONFIG."""
    why = None
    if not config.remote_storage_enable:
        why = "its records go on to segments in the object store: set remote.storage.enable=true, or use disk"
    elif config.remote_log_copy_disable:
        why = "its records go on to segments in the object store: set remote.log.copy.disable=false, or use disk"
    if why is not None:
        raise invalid_value("firn.durability", "object", f"The topic must be tiered, because {why}.")


def _check_local_retention(unit: str, local: int, whole: int, copy_disabled: bool) -> None:
    if local == DERIVED:
        return
    if copy_disabled and local != whole:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            f"While remote.log.copy.disable is true, local.retention.{unit} must be -2 or equal retention.{unit}, because "
            "nothing more is copied to the object store.",
        )
    if whole < 0:
        return
    if local == -1:
        raise invalid_value(
            f"local.retention.{unit}", local, f"Value must not be -1 as retention.{unit} value is set as {whole}."
        )
    if local > whole:
        raise invalid_value(
            f"local.retention.{unit}", local, f"Value must not be more than retention.{unit} property value: {whole}"
        )


def _check_kms_key(key_id: str, store_url: str) -> None:
    if not _KMS_KEY.fullmatch(key_id):
        raise invalid_value(
            "firn.tier.kms.key.id", key_id, "It must be the id of a KMS key, its ARN, or its alias (alias/NAME)"
        )
    if not store_url.startswith("s3://"):
        raise invalid_value(
            "firn.tier.kms.key.id",
            key_id,
            "Only an S3 store encrypts with keys of KMS, and this cluster has another one",
        )


def check_broker_config(broker: BrokerConfig) -> None:
    """Refuse settings with which a broker must not start, including its topic defaults. Raises: ConfigError."""
    try:
        check_group_bounds(broker)
        check_connection_limits(broker)
        _check_wal(broker)
    except RequestRejected as error:
        raise ConfigError(str(error)) from None
    try:
        validate_topic_configs({}, broker=broker)
    except RequestRejected as error:
        raise ConfigError(f"The broker's topic defaults cannot be used: {clause(error)}.") from None


def _check_wal(broker: BrokerConfig) -> None:
    """Raises: RequestRejected INVALID_CONFIG."""
    if broker.wal_buffer_bytes < 2 * broker.wal_bytes:
        raise invalid_value(
            "wal.buffer.bytes",
            broker.wal_buffer_bytes,
            f"It must be at least twice wal.bytes, which is {broker.wal_bytes}",
        )


def _of_listener(name: str, setting: str) -> Definition:
    """The definition of a setting of one listener. Raises: RequestRejected if it cannot be altered while the broker runs."""
    definition = definition_of_listener(setting)
    if definition is not None and setting in LIMITS_OF_LISTENERS:
        return definition
    if definition is not None and setting in CHANGED_WHILE_RUNNING:
        return replace(definition, update=Update.PER_BROKER)
    if definition is not None and definition.sensitive:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"{name} would be written into the object store, for all to read who read the bucket. Give it in the broker's file of "
            "settings, and restart the broker.",
        )
    raise RequestRejected(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {name}.")


def validate_broker_configs(
    overrides: Mapping[str, str | None], *, broker: BrokerConfig | None = None, of_all: bool = False
) -> BrokerConfig:
    """Check dynamic overrides of one broker, or of all brokers (``of_all``). Returns: the resulting settings on ``broker``.

    Raises: RequestRejected INVALID_CONFIG for an unknown name or a bad value; INVALID_REQUEST for a setting that needs a
    restart, or that changes only for one broker at a time.
    """
    given: dict[str, str] = {}
    for name, text in overrides.items():
        useless = broker_setting_without_effect(name)
        definition = BROKER_DEFINITIONS.get(name) or (useless.definition if useless is not None else None)
        prefixed = split_prefixed(name)
        if prefixed is not None:
            definition = _of_listener(name, prefixed[1])
        elif name in CHANGED_WHILE_RUNNING:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST,
                f"These security configs can be dynamically updated only per-listener using the listener prefix: {name}.",
            )
        if definition is None and name not in TOPIC_BY_SYNONYM:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}.")
        if definition is not None and definition.update is Update.READ_ONLY:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {name}.")
        if definition is not None and definition.update is Update.PER_BROKER and of_all:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs at default cluster level, broker id must be specified: {name}.",
            )
        if text is None:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Null value not supported for broker configs: {name}.")
        given[name] = text
        if prefixed is not None and definition is not None:
            parse_value(definition, text, name=name)
        if useless is not None:
            checked_text(useless, text)
        elif name in TOPIC_BY_SYNONYM:
            parse_synonym(name, text)
    effective = apply_broker_overrides(broker or BrokerConfig(), given)
    check_group_bounds(effective)
    check_connection_limits(effective)
    _check_wal(effective)
    validate_topic_configs({}, broker=effective)
    return effective
