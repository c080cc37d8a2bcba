"""Resolves the overrides of topics and brokers to effective settings. Tests: ``tests/test_configs.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.configs.broker import BrokerConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.kinds import ConfigType, Update, Value
from app.configs.listeners import CHANGED_WHILE_RUNNING, LIMITS_OF_LISTENERS, split_prefixed
from app.configs.topic import DERIVED, Durability, TopicConfig
from app.configs.topic_definitions import TOPIC_BY_SYNONYM, TOPIC_DEFINITIONS
from app.configs.values import parse_value


def resolve_topic_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """The effective settings of a topic with these overrides on a broker.

    ``broker`` must already have its dynamic overrides (``apply_broker_overrides``). Unknown names are ignored: they come from a
    newer version, which checked them.

    Raises: RequestRejected INVALID_CONFIG for a value that cannot be read.
    """
    values: dict[str, Any] = {
        definition.field: parse_value(definition, text)
        for name, text in overrides.items()
        if (definition := TOPIC_DEFINITIONS.get(name)) is not None
    }
    config = replace(broker.topic_defaults, **values)
    bent: dict[str, Any] = {}
    if config.firn_durability is Durability.OBJECT and "firn.durability" not in overrides:
        # Where the records of a topic are is said by the topic alone. A default changes nothing for topics that are there.
        bent["firn_durability"] = Durability.DISK
    if config.compacted and "remote.storage.enable" not in overrides:
        # As an object topic it is tiered, or its write-ahead log would be the only copy for ever (J43).
        bent["remote_storage_enable"] = bent.get("firn_durability", config.firn_durability) is Durability.OBJECT
    if "local.retention.ms" not in overrides and not _local_fits(
        config, config.local_retention_ms, config.retention_ms
    ):
        bent["local_retention_ms"] = DERIVED
    if "local.retention.bytes" not in overrides and not _local_fits(
        config, config.local_retention_bytes, config.retention_bytes
    ):
        bent["local_retention_bytes"] = DERIVED
    return replace(config, **bent) if bent else config


def _local_fits(config: TopicConfig, local: int, whole: int) -> bool:
    """Whether a default of ``local.retention.*`` is allowed with a topic's ``retention.*``."""
    if config.remote_log_copy_disable:
        return local in (DERIVED, whole)
    return whole < 0 or local == DERIVED or 0 <= local <= whole


def apply_broker_overrides(broker: BrokerConfig, overrides: Mapping[str, str]) -> BrokerConfig:
    """``broker`` with dynamic overrides. Apply those of all brokers first, then those of this broker.

    Names that are unknown, or can no longer be changed, are ignored.

    Raises: RequestRejected INVALID_CONFIG for a value that cannot be read.
    """
    topic: dict[str, Any] = {}
    for definition in TOPIC_DEFINITIONS.values():
        for synonym in definition.synonyms:
            if synonym.name in overrides:
                topic[definition.field] = parse_synonym(synonym.name, overrides[synonym.name])
                break
    own: dict[str, Any] = {
        definition.field: parse_value(definition, overrides[name])
        for name, definition in BROKER_DEFINITIONS.items()
        if name in overrides and definition.update is not Update.READ_ONLY
    }
    of_listeners = {
        name: text
        for name, text in overrides.items()
        if (parts := split_prefixed(name)) is not None
        and (parts[1] in LIMITS_OF_LISTENERS or parts[1] in CHANGED_WHILE_RUNNING)
    }
    if of_listeners:
        own["security"] = {**broker.security, **of_listeners}
    if topic:
        own["topic_defaults"] = replace(broker.topic_defaults, **topic)
    return replace(broker, **own) if own else broker


def parse_synonym(name: str, text: str) -> Value:
    """Convert ``text`` of a broker-wide name to the unit of its topic setting.

    Raises: RequestRejected INVALID_CONFIG for a value that cannot be read.
    """
    definition, synonym = TOPIC_BY_SYNONYM[name]
    if synonym.factor == 1:
        return parse_value(definition, text, name=name)
    number = parse_value(replace(definition, type=ConfigType.INT), text, name=name)
    assert isinstance(number, int)
    return number * synonym.factor if number >= 0 else number
