"""Every setting of a broker that is not the default of a topic's: made from the fields of ``BrokerConfig``.

Tests: ``tests/test_configs.py``, ``tests/test_declaring.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from app.configs.broker import BrokerConfig
from app.configs.defining import definitions_of
from app.configs.definition import Definition
from app.configs.kinds import ConfigType, Importance
from app.configs.listeners import LIMITS_OF_LISTENERS
from app.configs.security_definitions import SECURITY_DEFINITIONS
from app.configs.values import documented

_LISTENERS: Final = "PLAINTEXT://127.0.0.1:9092"
_KAFKA_LISTENERS: Final = "PLAINTEXT://:9092"

_OF_SEVERAL_FIELDS: Final = (
    Definition(
        name="listeners",
        type=ConfigType.LIST,
        field="",
        default=_LISTENERS,
        documentation=documented(
            "Addresses at which the broker accepts connections, each as NAME://HOST:PORT.", _LISTENERS, _KAFKA_LISTENERS
        ),
        kafka_default=_KAFKA_LISTENERS,
        importance=Importance.HIGH,
    ),
    Definition(
        name="advertised.listeners",
        type=ConfigType.LIST,
        field="",
        default=None,
        documentation="Addresses that the broker gives to clients to connect to, one for each listener. Default: those of "
        "listeners.",
        importance=Importance.HIGH,
    ),
)

BROKER_DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in (*_OF_SEVERAL_FIELDS, *definitions_of(BrokerConfig), *SECURITY_DEFINITIONS.values())
    }
)
"""Settings of a broker that are not defaults of topic settings, by name."""


def definition_of_listener(setting: str) -> Definition | None:
    """The definition of ``listener.name.<name>.<setting>``; None for a setting that no listener has of its own."""
    if setting in LIMITS_OF_LISTENERS:
        return BROKER_DEFINITIONS[setting]
    return SECURITY_DEFINITIONS.get(setting) or SECURITY_DEFINITIONS.get(setting.partition(".")[2])
