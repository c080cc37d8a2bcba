"""DescribeGroups, key 15, versions 0 to 6. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DescribeGroupsRequest:
    """The request."""

    groups: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False


@dataclass(slots=True)
class DescribedGroupMember:
    """``members`` of DescribedGroup."""

    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@dataclass(slots=True)
class DescribedGroup:
    """``groups`` of DescribeGroupsResponse."""

    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = field(default_factory=list)
    authorized_operations: int = -2147483648


@dataclass(slots=True)
class DescribeGroupsResponse:
    """The response."""

    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DescribeGroupsRequest": (
        ("groups", "string", True, 0, 6, False, None, ""),
        ("include_authorized_operations", "bool", False, 3, 6, False, None, False),
    ),
    "DescribedGroupMember": (
        ("member_id", "string", False, 0, 6, False, None, ""),
        ("group_instance_id", "string", False, 4, 6, True, None, None),
        ("client_id", "string", False, 0, 6, False, None, ""),
        ("client_host", "string", False, 0, 6, False, None, ""),
        ("member_metadata", "bytes", False, 0, 6, False, None, ""),
        ("member_assignment", "bytes", False, 0, 6, False, None, ""),
    ),
    "DescribedGroup": (
        ("error_code", "int16", False, 0, 6, False, None, 0),
        ("error_message", "string", False, 6, 6, True, None, None),
        ("group_id", "string", False, 0, 6, False, None, ""),
        ("group_state", "string", False, 0, 6, False, None, ""),
        ("protocol_type", "string", False, 0, 6, False, None, ""),
        ("protocol_data", "string", False, 0, 6, False, None, ""),
        ("members", "DescribedGroupMember", True, 0, 6, False, None, ""),
        ("authorized_operations", "int32", False, 3, 6, False, None, -2147483648),
    ),
    "DescribeGroupsResponse": (
        ("throttle_time_ms", "int32", False, 1, 6, False, None, 0),
        ("groups", "DescribedGroup", True, 0, 6, False, None, ""),
    ),
}
