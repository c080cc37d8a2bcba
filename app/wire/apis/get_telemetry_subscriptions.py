"""GetTelemetrySubscriptions, key 71, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class GetTelemetrySubscriptionsRequest:
    """The request."""

    client_instance_id: UUID = ZERO_UUID


@dataclass(slots=True)
class GetTelemetrySubscriptionsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    client_instance_id: UUID = ZERO_UUID
    subscription_id: int = 0
    accepted_compression_types: list[int] = field(default_factory=list)
    push_interval_ms: int = 0
    telemetry_max_bytes: int = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "GetTelemetrySubscriptionsRequest": (("client_instance_id", "uuid", False, 0, 0, False, None, ""),),
    "GetTelemetrySubscriptionsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("client_instance_id", "uuid", False, 0, 0, False, None, ""),
        ("subscription_id", "int32", False, 0, 0, False, None, 0),
        ("accepted_compression_types", "int8", True, 0, 0, False, None, ""),
        ("push_interval_ms", "int32", False, 0, 0, False, None, 0),
        ("telemetry_max_bytes", "int32", False, 0, 0, False, None, 0),
        ("delta_temporality", "bool", False, 0, 0, False, None, False),
        ("requested_metrics", "string", True, 0, 0, False, None, ""),
    ),
}
