"""PushTelemetry, key 72, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class PushTelemetryRequest:
    """The request."""

    client_instance_id: UUID = ZERO_UUID
    subscription_id: int = 0
    terminating: bool = False
    compression_type: int = 0
    metrics: bytes = b""


@dataclass(slots=True)
class PushTelemetryResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0


FIELDS: Final[Rows] = {
    "PushTelemetryRequest": (
        ("client_instance_id", "uuid", False, 0, 0, False, None, ""),
        ("subscription_id", "int32", False, 0, 0, False, None, 0),
        ("terminating", "bool", False, 0, 0, False, None, False),
        ("compression_type", "int8", False, 0, 0, False, None, 0),
        ("metrics", "bytes", False, 0, 0, False, None, ""),
    ),
    "PushTelemetryResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
    ),
}
