"""AlterClientQuotas, key 49, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class EntityData:
    """``entity`` of AlterClientQuotasRequestEntryData, ``entity`` of AlterClientQuotasResponseEntryData."""

    entity_type: str = ""
    entity_name: str | None = ""


@dataclass(slots=True)
class OpData:
    """``ops`` of AlterClientQuotasRequestEntryData."""

    key: str = ""
    value: float = 0.0
    remove: bool = False


@dataclass(slots=True)
class AlterClientQuotasRequestEntryData:
    """``entries`` of AlterClientQuotasRequest."""

    entity: list[EntityData] = field(default_factory=list)
    ops: list[OpData] = field(default_factory=list)


@dataclass(slots=True)
class AlterClientQuotasRequest:
    """The request."""

    entries: list[AlterClientQuotasRequestEntryData] = field(default_factory=list)
    validate_only: bool = False


@dataclass(slots=True)
class AlterClientQuotasResponseEntryData:
    """``entries`` of AlterClientQuotasResponse."""

    error_code: int = 0
    error_message: str | None = ""
    entity: list[EntityData] = field(default_factory=list)


@dataclass(slots=True)
class AlterClientQuotasResponse:
    """The response."""

    throttle_time_ms: int = 0
    entries: list[AlterClientQuotasResponseEntryData] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "EntityData": (
        ("entity_type", "string", False, 0, 1, False, None, ""),
        ("entity_name", "string", False, 0, 1, True, None, ""),
    ),
    "OpData": (
        ("key", "string", False, 0, 1, False, None, ""),
        ("value", "float64", False, 0, 1, False, None, 0.0),
        ("remove", "bool", False, 0, 1, False, None, False),
    ),
    "AlterClientQuotasRequestEntryData": (
        ("entity", "EntityData", True, 0, 1, False, None, ""),
        ("ops", "OpData", True, 0, 1, False, None, ""),
    ),
    "AlterClientQuotasRequest": (
        ("entries", "AlterClientQuotasRequestEntryData", True, 0, 1, False, None, ""),
        ("validate_only", "bool", False, 0, 1, False, None, False),
    ),
    "AlterClientQuotasResponseEntryData": (
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, ""),
        ("entity", "EntityData", True, 0, 1, False, None, ""),
    ),
    "AlterClientQuotasResponse": (
        ("throttle_time_ms", "int32", False, 0, 1, False, None, 0),
        ("entries", "AlterClientQuotasResponseEntryData", True, 0, 1, False, None, ""),
    ),
}
