"""BrokerRegistration, key 62, versions 0 to 4. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class Listener:
    """``listeners`` of BrokerRegistrationRequest."""

    name: str = ""
    host: str = ""
    port: int = 0
    security_protocol: int = 0


@dataclass(slots=True)
class Feature:
    """``features`` of BrokerRegistrationRequest."""

    name: str = ""
    min_supported_version: int = 0
    max_supported_version: int = 0


@dataclass(slots=True)
class BrokerRegistrationRequest:
    """The request."""

    broker_id: int = 0
    cluster_id: str = ""
    incarnation_id: UUID = ZERO_UUID
    listeners: list[Listener] = field(default_factory=list)
    features: list[Feature] = field(default_factory=list)
    rack: str | None = ""
    is_migrating_zk_broker: bool = False
    log_dirs: list[UUID] = field(default_factory=list)
    previous_broker_epoch: int = -1


@dataclass(slots=True)
class BrokerRegistrationResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    broker_epoch: int = -1


FIELDS: Final[Rows] = {
    "Listener": (
        ("name", "string", False, 0, 4, False, None, ""),
        ("host", "string", False, 0, 4, False, None, ""),
        ("port", "uint16", False, 0, 4, False, None, 0),
        ("security_protocol", "int16", False, 0, 4, False, None, 0),
    ),
    "Feature": (
        ("name", "string", False, 0, 4, False, None, ""),
        ("min_supported_version", "int16", False, 0, 4, False, None, 0),
        ("max_supported_version", "int16", False, 0, 4, False, None, 0),
    ),
    "BrokerRegistrationRequest": (
        ("broker_id", "int32", False, 0, 4, False, None, 0),
        ("cluster_id", "string", False, 0, 4, False, None, ""),
        ("incarnation_id", "uuid", False, 0, 4, False, None, ""),
        ("listeners", "Listener", True, 0, 4, False, None, ""),
        ("features", "Feature", True, 0, 4, False, None, ""),
        ("rack", "string", False, 0, 4, True, None, ""),
        ("is_migrating_zk_broker", "bool", False, 1, 4, False, None, False),
        ("log_dirs", "uuid", True, 2, 4, False, None, ""),
        ("previous_broker_epoch", "int64", False, 3, 4, False, None, -1),
    ),
    "BrokerRegistrationResponse": (
        ("throttle_time_ms", "int32", False, 0, 4, False, None, 0),
        ("error_code", "int16", False, 0, 4, False, None, 0),
        ("broker_epoch", "int64", False, 0, 4, False, None, -1),
    ),
}
