"""JoinGroup, key 11, versions 0 to 9. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class JoinGroupRequestProtocol:
    """``protocols`` of JoinGroupRequest."""

    name: str = ""
    metadata: bytes = b""


@dataclass(slots=True)
class JoinGroupRequest:
    """The request."""

    group_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = field(default_factory=list)
    reason: str | None = None


@dataclass(slots=True)
class JoinGroupResponseMember:
    """``members`` of JoinGroupResponse."""

    member_id: str = ""
    group_instance_id: str | None = None
    metadata: bytes = b""


@dataclass(slots=True)
class JoinGroupResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = ""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "JoinGroupRequestProtocol": (
        ("name", "string", False, 0, 9, False, None, ""),
        ("metadata", "bytes", False, 0, 9, False, None, ""),
    ),
    "JoinGroupRequest": (
        ("group_id", "string", False, 0, 9, False, None, ""),
        ("session_timeout_ms", "int32", False, 0, 9, False, None, 0),
        ("rebalance_timeout_ms", "int32", False, 1, 9, False, None, -1),
        ("member_id", "string", False, 0, 9, False, None, ""),
        ("group_instance_id", "string", False, 5, 9, True, None, None),
        ("protocol_type", "string", False, 0, 9, False, None, ""),
        ("protocols", "JoinGroupRequestProtocol", True, 0, 9, False, None, ""),
        ("reason", "string", False, 8, 9, True, None, None),
    ),
    "JoinGroupResponseMember": (
        ("member_id", "string", False, 0, 9, False, None, ""),
        ("group_instance_id", "string", False, 5, 9, True, None, None),
        ("metadata", "bytes", False, 0, 9, False, None, ""),
    ),
    "JoinGroupResponse": (
        ("throttle_time_ms", "int32", False, 2, 9, False, None, 0),
        ("error_code", "int16", False, 0, 9, False, None, 0),
        ("generation_id", "int32", False, 0, 9, False, None, -1),
        ("protocol_type", "string", False, 7, 9, True, None, None),
        ("protocol_name", "string", False, 0, 6, False, None, ""),
        ("protocol_name", "string", False, 7, 9, True, None, ""),
        ("leader", "string", False, 0, 9, False, None, ""),
        ("skip_assignment", "bool", False, 9, 9, False, None, False),
        ("member_id", "string", False, 0, 9, False, None, ""),
        ("members", "JoinGroupResponseMember", True, 0, 9, False, None, ""),
    ),
}
