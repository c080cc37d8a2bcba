"""ControllerRegistration, key 70, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class Listener:
    """``listeners`` of ControllerRegistrationRequest."""

    name: str = ""
    host: str = ""
    port: int = 0
    security_protocol: int = 0


@dataclass(slots=True)
class Feature:
    """``features`` of ControllerRegistrationRequest."""

    name: str = ""
    min_supported_version: int = 0
    max_supported_version: int = 0


@dataclass(slots=True)
class ControllerRegistrationRequest:
    """The request."""

    controller_id: int = 0
    incarnation_id: UUID = ZERO_UUID
    zk_migration_ready: bool = False
    listeners: list[Listener] = field(default_factory=list)
    features: list[Feature] = field(default_factory=list)


@dataclass(slots=True)
class ControllerRegistrationResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""


FIELDS: Final[Rows] = {
    "Listener": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("host", "string", False, 0, 0, False, None, ""),
        ("port", "uint16", False, 0, 0, False, None, 0),
        ("security_protocol", "int16", False, 0, 0, False, None, 0),
    ),
    "Feature": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("min_supported_version", "int16", False, 0, 0, False, None, 0),
        ("max_supported_version", "int16", False, 0, 0, False, None, 0),
    ),
    "ControllerRegistrationRequest": (
        ("controller_id", "int32", False, 0, 0, False, None, 0),
        ("incarnation_id", "uuid", False, 0, 0, False, None, ""),
        ("zk_migration_ready", "bool", False, 0, 0, False, None, False),
        ("listeners", "Listener", True, 0, 0, False, None, ""),
        ("features", "Feature", True, 0, 0, False, None, ""),
    ),
    "ControllerRegistrationResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, ""),
    ),
}
