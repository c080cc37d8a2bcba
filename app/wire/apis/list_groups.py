"""ListGroups, key 16, versions 0 to 5. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ListGroupsRequest:
    """The request."""

    states_filter: list[str] = field(default_factory=list)
    types_filter: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ListedGroup:
    """``groups`` of ListGroupsResponse."""

    group_id: str = ""
    protocol_type: str = ""
    group_state: str = ""
    group_type: str = ""


@dataclass(slots=True)
class ListGroupsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    groups: list[ListedGroup] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ListGroupsRequest": (
        ("states_filter", "string", True, 4, 5, False, None, ""),
        ("types_filter", "string", True, 5, 5, False, None, ""),
    ),
    "ListedGroup": (
        ("group_id", "string", False, 0, 5, False, None, ""),
        ("protocol_type", "string", False, 0, 5, False, None, ""),
        ("group_state", "string", False, 4, 5, False, None, ""),
        ("group_type", "string", False, 5, 5, False, None, ""),
    ),
    "ListGroupsResponse": (
        ("throttle_time_ms", "int32", False, 1, 5, False, None, 0),
        ("error_code", "int16", False, 0, 5, False, None, 0),
        ("groups", "ListedGroup", True, 0, 5, False, None, ""),
    ),
}
