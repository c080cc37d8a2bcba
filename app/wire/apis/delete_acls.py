"""DeleteAcls, key 31, versions 1 to 3. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DeleteAclsFilter:
    """``filters`` of DeleteAclsRequest."""

    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


@dataclass(slots=True)
class DeleteAclsRequest:
    """The request."""

    filters: list[DeleteAclsFilter] = field(default_factory=list)


@dataclass(slots=True)
class DeleteAclsMatchingAcl:
    """``matching_acls`` of DeleteAclsFilterResult."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


@dataclass(slots=True)
class DeleteAclsFilterResult:
    """``filter_results`` of DeleteAclsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = field(default_factory=list)


@dataclass(slots=True)
class DeleteAclsResponse:
    """The response."""

    throttle_time_ms: int = 0
    filter_results: list[DeleteAclsFilterResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DeleteAclsFilter": (
        ("resource_type_filter", "int8", False, 1, 3, False, None, 0),
        ("resource_name_filter", "string", False, 1, 3, True, None, ""),
        ("pattern_type_filter", "int8", False, 1, 3, False, None, 3),
        ("principal_filter", "string", False, 1, 3, True, None, ""),
        ("host_filter", "string", False, 1, 3, True, None, ""),
        ("operation", "int8", False, 1, 3, False, None, 0),
        ("permission_type", "int8", False, 1, 3, False, None, 0),
    ),
    "DeleteAclsRequest": (("filters", "DeleteAclsFilter", True, 1, 3, False, None, ""),),
    "DeleteAclsMatchingAcl": (
        ("error_code", "int16", False, 1, 3, False, None, 0),
        ("error_message", "string", False, 1, 3, True, None, ""),
        ("resource_type", "int8", False, 1, 3, False, None, 0),
        ("resource_name", "string", False, 1, 3, False, None, ""),
        ("pattern_type", "int8", False, 1, 3, False, None, 3),
        ("principal", "string", False, 1, 3, False, None, ""),
        ("host", "string", False, 1, 3, False, None, ""),
        ("operation", "int8", False, 1, 3, False, None, 0),
        ("permission_type", "int8", False, 1, 3, False, None, 0),
    ),
    "DeleteAclsFilterResult": (
        ("error_code", "int16", False, 1, 3, False, None, 0),
        ("error_message", "string", False, 1, 3, True, None, ""),
        ("matching_acls", "DeleteAclsMatchingAcl", True, 1, 3, False, None, ""),
    ),
    "DeleteAclsResponse": (
        ("throttle_time_ms", "int32", False, 1, 3, False, None, 0),
        ("filter_results", "DeleteAclsFilterResult", True, 1, 3, False, None, ""),
    ),
}
