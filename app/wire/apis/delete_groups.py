"""DeleteGroups, key 42, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DeleteGroupsRequest:
    """The request."""

    groups_names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DeletableGroupResult:
    """``results`` of DeleteGroupsResponse."""

    group_id: str = ""
    error_code: int = 0


@dataclass(slots=True)
class DeleteGroupsResponse:
    """The response."""

    throttle_time_ms: int = 0
    results: list[DeletableGroupResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DeleteGroupsRequest": (("groups_names", "string", True, 0, 2, False, None, ""),),
    "DeletableGroupResult": (
        ("group_id", "string", False, 0, 2, False, None, ""),
        ("error_code", "int16", False, 0, 2, False, None, 0),
    ),
    "DeleteGroupsResponse": (
        ("throttle_time_ms", "int32", False, 0, 2, False, None, 0),
        ("results", "DeletableGroupResult", True, 0, 2, False, None, ""),
    ),
}
