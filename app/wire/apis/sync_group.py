"""SyncGroup, key 14, versions 0 to 5. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class SyncGroupRequestAssignment:
    """``assignments`` of SyncGroupRequest."""

    member_id: str = ""
    assignment: bytes = b""


@dataclass(slots=True)
class SyncGroupRequest:
    """The request."""

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)


@dataclass(slots=True)
class SyncGroupResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


FIELDS: Final[Rows] = {
    "SyncGroupRequestAssignment": (
        ("member_id", "string", False, 0, 5, False, None, ""),
        ("assignment", "bytes", False, 0, 5, False, None, ""),
    ),
    "SyncGroupRequest": (
        ("group_id", "string", False, 0, 5, False, None, ""),
        ("generation_id", "int32", False, 0, 5, False, None, 0),
        ("member_id", "string", False, 0, 5, False, None, ""),
        ("group_instance_id", "string", False, 3, 5, True, None, None),
        ("protocol_type", "string", False, 5, 5, True, None, None),
        ("protocol_name", "string", False, 5, 5, True, None, None),
        ("assignments", "SyncGroupRequestAssignment", True, 0, 5, False, None, ""),
    ),
    "SyncGroupResponse": (
        ("throttle_time_ms", "int32", False, 1, 5, False, None, 0),
        ("error_code", "int16", False, 0, 5, False, None, 0),
        ("protocol_type", "string", False, 5, 5, True, None, None),
        ("protocol_name", "string", False, 5, 5, True, None, None),
        ("assignment", "bytes", False, 0, 5, False, None, ""),
    ),
}
