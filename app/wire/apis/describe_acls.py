"""DescribeAcls, key 29, versions 1 to 3. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DescribeAclsRequest:
    """The request."""

    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


@dataclass(slots=True)
class AclDescription:
    """``acls`` of DescribeAclsResource."""

    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


@dataclass(slots=True)
class DescribeAclsResource:
    """``resources`` of DescribeAclsResponse."""

    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    acls: list[AclDescription] = field(default_factory=list)


@dataclass(slots=True)
class DescribeAclsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResource] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DescribeAclsRequest": (
        ("resource_type_filter", "int8", False, 1, 3, False, None, 0),
        ("resource_name_filter", "string", False, 1, 3, True, None, ""),
        ("pattern_type_filter", "int8", False, 1, 3, False, None, 3),
        ("principal_filter", "string", False, 1, 3, True, None, ""),
        ("host_filter", "string", False, 1, 3, True, None, ""),
        ("operation", "int8", False, 1, 3, False, None, 0),
        ("permission_type", "int8", False, 1, 3, False, None, 0),
    ),
    "AclDescription": (
        ("principal", "string", False, 1, 3, False, None, ""),
        ("host", "string", False, 1, 3, False, None, ""),
        ("operation", "int8", False, 1, 3, False, None, 0),
        ("permission_type", "int8", False, 1, 3, False, None, 0),
    ),
    "DescribeAclsResource": (
        ("resource_type", "int8", False, 1, 3, False, None, 0),
        ("resource_name", "string", False, 1, 3, False, None, ""),
        ("pattern_type", "int8", False, 1, 3, False, None, 3),
        ("acls", "AclDescription", True, 1, 3, False, None, ""),
    ),
    "DescribeAclsResponse": (
        ("throttle_time_ms", "int32", False, 1, 3, False, None, 0),
        ("error_code", "int16", False, 1, 3, False, None, 0),
        ("error_message", "string", False, 1, 3, True, None, ""),
        ("resources", "DescribeAclsResource", True, 1, 3, False, None, ""),
    ),
}
