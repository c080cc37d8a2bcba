"""Heartbeat, key 12, versions 0 to 4. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class HeartbeatRequest:
    """The request."""

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(slots=True)
class HeartbeatResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0


FIELDS: Final[Rows] = {
    "HeartbeatRequest": (
        ("group_id", "string", False, 0, 4, False, None, ""),
        ("generation_id", "int32", False, 0, 4, False, None, 0),
        ("member_id", "string", False, 0, 4, False, None, ""),
        ("group_instance_id", "string", False, 3, 4, True, None, None),
    ),
    "HeartbeatResponse": (
        ("throttle_time_ms", "int32", False, 1, 4, False, None, 0),
        ("error_code", "int16", False, 0, 4, False, None, 0),
    ),
}
