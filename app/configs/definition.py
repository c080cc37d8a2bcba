"""The definition of a setting: its names, type, bounds, default and meaning.

Tests: ``tests/test_configs.py``, ``tests/handlers/test_admin_configs.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from app.configs.kinds import ConfigType, Importance, Synonym, Update, Value


class ConfigSource(IntEnum):
    """Where a value comes from, with its number in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One setting."""

    name: str
    type: ConfigType
    field: str
    """Its field in ``TopicConfig`` or ``BrokerConfig``; empty if one setting has several fields (``listeners``)."""
    default: Value
    documentation: str
    """Its meaning, in a sentence or two. Mentions a default that differs from Kafka's."""
    importance: Importance = Importance.MEDIUM
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    any_case: bool = False
    """The choices may be written in any case; the value is in lower case."""
    ordered: bool = False
    """A non-empty list whose order counts."""
    replicas: bool = False
    """A list of ``<partition>:<broker>``, or ``*`` for all."""
    synonyms: tuple[Synonym, ...] = ()
    """Broker-wide names of a topic setting. The first one that is set counts. Empty for a setting of single topics."""
    kafka_default: str | None = None
    """Kafka's default, if it differs."""
    update: Update = Update.READ_ONLY
    idle: str = ""
    """Why the setting is described although it has no effect, as a clause after a colon; empty for a setting with effect."""

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is ConfigType.PASSWORD
