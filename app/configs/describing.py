"""DescribeConfigs of a topic or a broker: every value, and every place that sets it. Tests: ``tests/test_configs.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from app.configs.broker import BrokerConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS, definition_of_listener
from app.configs.definition import ConfigSource, Definition
from app.configs.kinds import Synonym, Update, Value
from app.configs.listeners import CHANGED_WHILE_RUNNING, split_prefixed
from app.configs.resolving import apply_broker_overrides, resolve_topic_config
from app.configs.security_definitions import SECURITY_DEFINITIONS
from app.configs.topic_definitions import TOPIC_BY_SYNONYM, TOPIC_DEFINITIONS
from app.configs.values import format_value
from app.configs.without_effect import TOPIC_WITHOUT_EFFECT, WithoutEffect, broker_setting_without_effect

_STATIC: Final = ConfigSource.STATIC_BROKER_CONFIG


class SourcedValue(NamedTuple):
    """A value of a setting under one of its names, with its source."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """The description of one setting of one resource."""

    definition: Definition
    name: str
    value: str | None
    """The effective value; None if there is none, or if it is sensitive."""
    source: ConfigSource
    read_only: bool
    synonyms: Sequence[SourcedValue]
    """Every place that sets the value. The effective one is first."""


def describe_topic(
    broker: BrokerConfig,
    overrides: Mapping[str, str],
    *,
    broker_overrides: Mapping[str, str] = MappingProxyType({}),
    cluster_overrides: Mapping[str, str] = MappingProxyType({}),
) -> list[DescribedConfig]:
    """Every setting of a topic, by name. Settings without effect are included only if they were set.

    ``broker``: the static settings, without dynamic overrides.
    """
    effective_broker = apply_broker_overrides(apply_broker_overrides(broker, cluster_overrides), broker_overrides)
    effective = resolve_topic_config(effective_broker, overrides)
    described = []
    for name, definition in sorted(TOPIC_DEFINITIONS.items()):
        said = []
        if name in overrides:
            said.append(SourcedValue(name, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        said += _said_by_brokers(definition, broker, broker_overrides, cluster_overrides)
        value = overrides.get(name) or format_value(getattr(effective, definition.field))
        described.append(DescribedConfig(definition, name, value, said[0].source, False, said))
    for name, entry in TOPIC_WITHOUT_EFFECT.items():
        if name in overrides:
            said = [SourcedValue(name, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG)]
            described.append(DescribedConfig(entry.definition, name, overrides[name], said[0].source, False, said))
    return sorted(described, key=lambda config: config.name)


def describe_broker(
    broker: BrokerConfig,
    *,
    broker_overrides: Mapping[str, str] = MappingProxyType({}),
    cluster_overrides: Mapping[str, str] = MappingProxyType({}),
) -> list[DescribedConfig]:
    """Every setting of a broker, by name. Settings without effect are included only if they were set.

    ``broker``: the static settings, without dynamic overrides.
    """
    effective = apply_broker_overrides(apply_broker_overrides(broker, cluster_overrides), broker_overrides)
    layers = (
        (broker_overrides, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (cluster_overrides, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    )
    described = []
    for name, definition in BROKER_DEFINITIONS.items():
        said = [SourcedValue(name, layer[name], source) for layer, source in layers if name in layer]
        static = _static_text(broker, definition)
        if static != format_value(definition.default):
            said.append(SourcedValue(name, static, ConfigSource.STATIC_BROKER_CONFIG))
        if definition.default is not None or not said:
            said.append(SourcedValue(name, format_value(definition.default), ConfigSource.DEFAULT_CONFIG))
        if definition.sensitive:
            said = [entry._replace(value=None) for entry in said]
        value = said[0].value
        described.append(
            DescribedConfig(definition, name, value, said[0].source, definition.update is Update.READ_ONLY, said)
        )
    for name, (definition, synonym) in TOPIC_BY_SYNONYM.items():
        said = _said_by_brokers(definition, broker, broker_overrides, cluster_overrides)
        value = _in_unit(getattr(effective.topic_defaults, definition.field), synonym)
        described.append(DescribedConfig(definition, name, value, said[0].source, False, said))
    prefixed = {name for layer in (broker.security, *(layer for layer, _ in layers)) for name in layer}
    for name in prefixed:
        parts = split_prefixed(name)
        if parts is not None:
            described.append(_of_one_listener(name, parts[1], (*layers, (broker.security, _STATIC))))
    static_texts = dict(broker.without_effect)
    for name in {*static_texts, *broker_overrides, *cluster_overrides}:
        entry = broker_setting_without_effect(name)
        if entry is not None:
            described.append(_described_without_effect(entry, name, (*layers, (static_texts, _STATIC))))
    return sorted(described, key=lambda config: config.name)


def _of_one_listener(
    name: str, setting: str, layers: Iterable[tuple[Mapping[str, str], ConfigSource]]
) -> DescribedConfig:
    base = definition_of_listener(setting) or SECURITY_DEFINITIONS["sasl.jaas.config"]
    update = Update.PER_BROKER if setting in CHANGED_WHILE_RUNNING else base.update
    definition = replace(base, name=name, update=update)
    said = [
        SourcedValue(name, None if definition.sensitive else layer[name], source)
        for layer, source in layers
        if name in layer
    ]
    read_only = definition.update is Update.READ_ONLY
    return DescribedConfig(definition, name, said[0].value, said[0].source, read_only, said)


def _described_without_effect(
    entry: WithoutEffect, name: str, layers: Iterable[tuple[Mapping[str, str], ConfigSource]]
) -> DescribedConfig:
    definition = entry.definition
    said = [SourcedValue(name, layer[name], source) for layer, source in layers if name in layer]
    if definition.default is not None:
        said.append(SourcedValue(name, format_value(definition.default), ConfigSource.DEFAULT_CONFIG))
    if definition.sensitive:
        said = [known._replace(value=None) for known in said]
    return DescribedConfig(definition, name, said[0].value, said[0].source, definition.update is Update.READ_ONLY, said)


def _said_by_brokers(
    definition: Definition,
    broker: BrokerConfig,
    broker_overrides: Mapping[str, str],
    cluster_overrides: Mapping[str, str],
) -> list[SourcedValue]:
    """The values of a topic setting from brokers, the effective one first."""
    if not definition.synonyms:
        return [SourcedValue(definition.name, format_value(definition.default), ConfigSource.DEFAULT_CONFIG)]
    said = [
        SourcedValue(synonym.name, layer[synonym.name], source)
        for layer, source in (
            (broker_overrides, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (cluster_overrides, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        )
        for synonym in definition.synonyms
        if synonym.name in layer
    ]
    static = getattr(broker.topic_defaults, definition.field)
    if static != definition.default:
        said.append(SourcedValue(definition.synonyms[0].name, format_value(static), ConfigSource.STATIC_BROKER_CONFIG))
    coarsest = definition.synonyms[-1]
    said.append(SourcedValue(coarsest.name, _in_unit(definition.default, coarsest), ConfigSource.DEFAULT_CONFIG))
    return said


def _in_unit(value: Value, synonym: Synonym) -> str | None:
    """A topic setting's value in the unit of a broker-wide name; None if it is not a whole number of units."""
    if synonym.factor == 1 or not isinstance(value, int) or value < 0:
        return format_value(value)
    return None if value % synonym.factor else str(value // synonym.factor)


def _static_text(broker: BrokerConfig, definition: Definition) -> str | None:
    if definition.name == "listeners":
        return ",".join(f"{one.name}://{one.host}:{one.port}" for one in broker.served)
    if definition.name == "advertised.listeners":
        if not any(one.advertised_host for one in broker.served):
            return None
        return ",".join(
            f"{one.name}://{one.advertised_host or one.host}:{one.advertised_port or one.port}" for one in broker.served
        )
    if definition.name in SECURITY_DEFINITIONS:
        return broker.security.get(definition.name, format_value(definition.default))
    return format_value(getattr(broker, definition.field))
