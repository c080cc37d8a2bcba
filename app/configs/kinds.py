"""Types, importance and names of settings: the words in which a setting is declared. Tests: ``tests/test_declaring.py``."""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum
from typing import NamedTuple


class ConfigType(IntEnum):
    """Type of a setting, with its number in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Update(Enum):
    """When a broker setting can change."""

    READ_ONLY = "read-only"
    """Only by a restart of the broker."""
    CLUSTER_WIDE = "cluster-wide"
    """While brokers run, for all of them; one broker may differ."""
    PER_BROKER = "per-broker"
    """While brokers run, for one broker at a time."""


Value = bool | int | float | str | frozenset[str] | tuple[str, ...] | None


class Synonym(NamedTuple):
    """A broker-wide name of a topic setting; one of its units is ``factor`` of the topic setting's."""

    name: str
    factor: int = 1
