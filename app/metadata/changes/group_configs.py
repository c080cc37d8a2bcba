"""Settings of single groups, by Kafka's names (resource type GROUP, KIP-848 and KIP-932).

The cluster log stores them, like settings of topics. The group need not exist yet. All other settings of a group come from its
coordinator.

Tests: ``tests/groups/test_consumer.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from app.configs import BrokerConfig
from app.configs.definition import ConfigSource, Definition
from app.configs.describing import DescribedConfig, SourcedValue
from app.configs.group_bounds import BOUND_OF_GROUP, HEARTBEAT, SESSION, check_within, clamped
from app.configs.kinds import ConfigType
from app.configs.values import format_value, parse_value
from app.configs.without_effect import GROUP_WITHOUT_EFFECT, checked_text
from app.core.errors import ErrorCode, RequestRejected

AUTO_OFFSET_RESET: Final = "share.auto.offset.reset"
ISOLATION_LEVEL: Final = "share.isolation.level"
RENEW_ENABLE: Final = "share.renew.acknowledge.enable"
READ_COMMITTED: Final = "read_committed"
EARLIEST, LATEST, BY_DURATION = "earliest", "latest", "by_duration:"

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d{1,6})D)?(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9})(?:\.\d+)?S)?)?"
)


def _group(
    name: str, kind: ConfigType, default: str | int | bool, field: str, documentation: str, **bounds: int
) -> Definition:
    return Definition(
        name=name, type=kind, field=field, default=default, documentation=documentation, minimum=bounds.get("minimum")
    )


_DEFAULTS: Final = BrokerConfig()

GROUP_DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in (
            *(
                _group(
                    f"{kind}.{name}",
                    ConfigType.INT,
                    int(getattr(_DEFAULTS, f"group_{kind}_{field}")),
                    f"group_{kind}_{field}",
                    documentation,
                    minimum=minimum,
                )
                for kind, name, field, minimum, documentation in (
                    (
                        "consumer",
                        "session.timeout.ms",
                        "session_timeout_ms",
                        1,
                        "As group.consumer.session.timeout.ms.",
                    ),
                    (
                        "consumer",
                        "heartbeat.interval.ms",
                        "heartbeat_interval_ms",
                        1,
                        "As group.consumer.heartbeat.interval.ms.",
                    ),
                    (
                        "consumer",
                        "assignment.interval.ms",
                        "assignment_interval_ms",
                        0,
                        "As group.consumer.assignment.interval.ms.",
                    ),
                    ("share", "session.timeout.ms", "session_timeout_ms", 1, "As group.share.session.timeout.ms."),
                    (
                        "share",
                        "heartbeat.interval.ms",
                        "heartbeat_interval_ms",
                        1,
                        "As group.share.heartbeat.interval.ms.",
                    ),
                    (
                        "share",
                        "assignment.interval.ms",
                        "assignment_interval_ms",
                        0,
                        "As group.share.assignment.interval.ms.",
                    ),
                    (
                        "share",
                        "record.lock.duration.ms",
                        "record_lock_duration_ms",
                        1000,
                        "As group.share.record.lock.duration.ms.",
                    ),
                    (
                        "share",
                        "delivery.count.limit",
                        "delivery_count_limit",
                        2,
                        "As group.share.delivery.count.limit.",
                    ),
                    (
                        "share",
                        "partition.max.record.locks",
                        "partition_max_record_locks",
                        100,
                        "As group.share.partition.max.record.locks.",
                    ),
                )
            ),
            _group(
                RENEW_ENABLE,
                ConfigType.BOOLEAN,
                True,
                "",
                "Whether members of a share group may ask for more time with a record that they have (KIP-1222).",
            ),
            _group(
                AUTO_OFFSET_RESET,
                ConfigType.STRING,
                LATEST,
                "",
                "Where a share group begins to read a partition: latest, earliest, or by_duration:<ISO 8601 duration> for that "
                "long ago.",
            ),
            _group(
                ISOLATION_LEVEL,
                ConfigType.STRING,
                "read_uncommitted",
                "",
                "Whether a share group is given records of open and aborted transactions: read_uncommitted or read_committed.",
            ),
        )
    }
)


def validate_group_configs(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raises: RequestRejected INVALID_CONFIG for an unknown name, a bad value or one that ``broker`` does not allow."""
    for name, text in overrides.items():
        useless = GROUP_WITHOUT_EFFECT.get(name)
        if useless is not None:
            checked_text(useless, text)
            continue
        definition = GROUP_DEFINITIONS.get(name)
        if definition is None:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}.")
        value = parse_value(definition, text)
        bound = BOUND_OF_GROUP.get(name)
        if bound is not None and isinstance(value, int):
            check_within(broker, bound, name, value)
        if name == AUTO_OFFSET_RESET and text not in (EARLIEST, LATEST) and reset_duration_ms(text) is None:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}.")
        if name == ISOLATION_LEVEL and text not in ("read_uncommitted", READ_COMMITTED):
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}.")
    effective = config_of_group(broker, overrides)
    for kind in ("consumer", "share"):
        names = (f"{kind}.{SESSION}", f"{kind}.{HEARTBEAT}")
        session, heartbeat = (getattr(effective, f"group.{name}".replace(".", "_")) for name in names)
        if not overrides.keys().isdisjoint(names) and session <= heartbeat:
            raise RequestRejected(ErrorCode.INVALID_CONFIG, f"{names[0]} must be greater than {names[1]}.")


def reset_duration_ms(text: str) -> int | None:
    """The duration of ``by_duration:…``; None if ``text`` is not such a value."""
    found = _DURATION.fullmatch(text.removeprefix(BY_DURATION)) if text.startswith(BY_DURATION) else None
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.group("days", "hours", "minutes", "seconds"))
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def config_of_group(broker: BrokerConfig, overrides: Mapping[str, str] | None) -> BrokerConfig:
    """A coordinator's settings for one group, within the broker's present bounds."""
    if not overrides:
        return broker
    changes: dict[str, Any] = {}
    for name, text in overrides.items():
        definition = GROUP_DEFINITIONS.get(name)
        if definition is None or not definition.field:
            continue
        value = parse_value(definition, text)
        assert isinstance(value, int)
        changes[definition.field] = clamped(broker, BOUND_OF_GROUP[name], value)
    return replace(broker, **changes) if changes else broker


def describe_group(broker: BrokerConfig, overrides: Mapping[str, str]) -> list[DescribedConfig]:
    """Every setting of a group, by name."""
    described = []
    for name, definition in sorted(GROUP_DEFINITIONS.items()):
        inherited = format_value(getattr(broker, definition.field) if definition.field else definition.default)
        said = [SourcedValue(name, inherited, ConfigSource.DEFAULT_CONFIG)]
        if name in overrides:
            said.insert(0, SourcedValue(name, overrides[name], ConfigSource.DYNAMIC_GROUP_CONFIG))
        described.append(DescribedConfig(definition, name, said[0].value, said[0].source, False, said))
    for name, entry in GROUP_WITHOUT_EFFECT.items():
        if name in overrides:
            said = [SourcedValue(name, overrides[name], ConfigSource.DYNAMIC_GROUP_CONFIG)]
            described.append(DescribedConfig(entry.definition, name, overrides[name], said[0].source, False, said))
    return described
