"""CreateAcls, key 30, versions 1 to 3. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class AclCreation:
    """``creations`` of CreateAclsRequest."""

    resource_type: int = 0
    resource_name: str = ""
    resource_pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


@dataclass(slots=True)
class CreateAclsRequest:
    """The request."""

    creations: list[AclCreation] = field(default_factory=list)


@dataclass(slots=True)
class AclCreationResult:
    """``results`` of CreateAclsResponse."""

    error_code: int = 0
    error_message: str | None = ""


@dataclass(slots=True)
class CreateAclsResponse:
    """The response."""

    throttle_time_ms: int = 0
    results: list[AclCreationResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "AclCreation": (
        ("resource_type", "int8", False, 1, 3, False, None, 0),
        ("resource_name", "string", False, 1, 3, False, None, ""),
        ("resource_pattern_type", "int8", False, 1, 3, False, None, 3),
        ("principal", "string", False, 1, 3, False, None, ""),
        ("host", "string", False, 1, 3, False, None, ""),
        ("operation", "int8", False, 1, 3, False, None, 0),
        ("permission_type", "int8", False, 1, 3, False, None, 0),
    ),
    "CreateAclsRequest": (("creations", "AclCreation", True, 1, 3, False, None, ""),),
    "AclCreationResult": (
        ("error_code", "int16", False, 1, 3, False, None, 0),
        ("error_message", "string", False, 1, 3, True, None, ""),
    ),
    "CreateAclsResponse": (
        ("throttle_time_ms", "int32", False, 1, 3, False, None, 0),
        ("results", "AclCreationResult", True, 1, 3, False, None, ""),
    ),
}
