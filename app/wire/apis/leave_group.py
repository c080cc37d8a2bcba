"""LeaveGroup, key 13, versions 0 to 5. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class MemberIdentity:
    """``members`` of LeaveGroupRequest."""

    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(slots=True)
class LeaveGroupRequest:
    """The request."""

    group_id: str = ""
    members: list[MemberIdentity] = field(default_factory=list)
    member_id: str = ""


@dataclass(slots=True)
class MemberResponse:
    """``members`` of LeaveGroupResponse."""

    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: int = 0


@dataclass(slots=True)
class LeaveGroupResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    members: list[MemberResponse] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "MemberIdentity": (
        ("member_id", "string", False, 3, 5, False, None, ""),
        ("group_instance_id", "string", False, 3, 5, True, None, None),
        ("reason", "string", False, 5, 5, True, None, None),
    ),
    "LeaveGroupRequest": (
        ("group_id", "string", False, 0, 5, False, None, ""),
        ("members", "MemberIdentity", True, 3, 5, False, None, ""),
        ("member_id", "string", False, 0, 2, False, None, ""),
    ),
    "MemberResponse": (
        ("member_id", "string", False, 3, 5, False, None, ""),
        ("group_instance_id", "string", False, 3, 5, True, None, ""),
        ("error_code", "int16", False, 3, 5, False, None, 0),
    ),
    "LeaveGroupResponse": (
        ("throttle_time_ms", "int32", False, 1, 5, False, None, 0),
        ("error_code", "int16", False, 0, 5, False, None, 0),
        ("members", "MemberResponse", True, 3, 5, False, None, ""),
    ),
}
