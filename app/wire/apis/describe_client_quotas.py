"""DescribeClientQuotas, key 48, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ComponentData:
    """``components`` of DescribeClientQuotasRequest."""

    entity_type: str = ""
    match_type: int = 0
    match: str | None = ""


@dataclass(slots=True)
class DescribeClientQuotasRequest:
    """The request."""

    components: list[ComponentData] = field(default_factory=list)
    strict: bool = False


@dataclass(slots=True)
class EntityData:
    """``entity`` of EntryData."""

    entity_type: str = ""
    entity_name: str | None = ""


@dataclass(slots=True)
class ValueData:
    """``values`` of EntryData."""

    key: str = ""
    value: float = 0.0


@dataclass(slots=True)
class EntryData:
    """``entries`` of DescribeClientQuotasResponse."""

    entity: list[EntityData] = field(default_factory=list)
    values: list[ValueData] = field(default_factory=list)


@dataclass(slots=True)
class DescribeClientQuotasResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ComponentData": (
        ("entity_type", "string", False, 0, 1, False, None, ""),
        ("match_type", "int8", False, 0, 1, False, None, 0),
        ("match", "string", False, 0, 1, True, None, ""),
    ),
    "DescribeClientQuotasRequest": (
        ("components", "ComponentData", True, 0, 1, False, None, ""),
        ("strict", "bool", False, 0, 1, False, None, False),
    ),
    "EntityData": (
        ("entity_type", "string", False, 0, 1, False, None, ""),
        ("entity_name", "string", False, 0, 1, True, None, ""),
    ),
    "ValueData": (
        ("key", "string", False, 0, 1, False, None, ""),
        ("value", "float64", False, 0, 1, False, None, 0.0),
    ),
    "EntryData": (
        ("entity", "EntityData", True, 0, 1, False, None, ""),
        ("values", "ValueData", True, 0, 1, False, None, ""),
    ),
    "DescribeClientQuotasResponse": (
        ("throttle_time_ms", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, ""),
        ("entries", "EntryData", True, 0, 1, True, None, ""),
    ),
}
