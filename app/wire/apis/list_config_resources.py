"""ListConfigResources, key 74, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ListConfigResourcesRequest:
    """The request."""

    resource_types: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ConfigResource:
    """``config_resources`` of ListConfigResourcesResponse."""

    resource_name: str = ""
    resource_type: int = 16


@dataclass(slots=True)
class ListConfigResourcesResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: list[ConfigResource] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ListConfigResourcesRequest": (("resource_types", "int8", True, 1, 1, False, None, ""),),
    "ConfigResource": (
        ("resource_name", "string", False, 0, 1, False, None, ""),
        ("resource_type", "int8", False, 1, 1, False, None, 16),
    ),
    "ListConfigResourcesResponse": (
        ("throttle_time_ms", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("config_resources", "ConfigResource", True, 0, 1, False, None, ""),
    ),
}
