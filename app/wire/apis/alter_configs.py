"""AlterConfigs, key 33, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class AlterableConfig:
    """``configs`` of AlterConfigsResource."""

    name: str = ""
    value: str | None = ""


@dataclass(slots=True)
class AlterConfigsResource:
    """``resources`` of AlterConfigsRequest."""

    resource_type: int = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = field(default_factory=list)


@dataclass(slots=True)
class AlterConfigsRequest:
    """The request."""

    resources: list[AlterConfigsResource] = field(default_factory=list)
    validate_only: bool = False


@dataclass(slots=True)
class AlterConfigsResourceResponse:
    """``responses`` of AlterConfigsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""


@dataclass(slots=True)
class AlterConfigsResponse:
    """The response."""

    throttle_time_ms: int = 0
    responses: list[AlterConfigsResourceResponse] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "AlterableConfig": (
        ("name", "string", False, 0, 2, False, None, ""),
        ("value", "string", False, 0, 2, True, None, ""),
    ),
    "AlterConfigsResource": (
        ("resource_type", "int8", False, 0, 2, False, None, 0),
        ("resource_name", "string", False, 0, 2, False, None, ""),
        ("configs", "AlterableConfig", True, 0, 2, False, None, ""),
    ),
    "AlterConfigsRequest": (
        ("resources", "AlterConfigsResource", True, 0, 2, False, None, ""),
        ("validate_only", "bool", False, 0, 2, False, None, False),
    ),
    "AlterConfigsResourceResponse": (
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("error_message", "string", False, 0, 2, True, None, ""),
        ("resource_type", "int8", False, 0, 2, False, None, 0),
        ("resource_name", "string", False, 0, 2, False, None, ""),
    ),
    "AlterConfigsResponse": (
        ("throttle_time_ms", "int32", False, 0, 2, False, None, 0),
        ("responses", "AlterConfigsResourceResponse", True, 0, 2, False, None, ""),
    ),
}
