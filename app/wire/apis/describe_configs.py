"""DescribeConfigs, key 32, versions 1 to 4. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DescribeConfigsResource:
    """``resources`` of DescribeConfigsRequest."""

    resource_type: int = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = field(default_factory=list)


@dataclass(slots=True)
class DescribeConfigsRequest:
    """The request."""

    resources: list[DescribeConfigsResource] = field(default_factory=list)
    include_synonyms: bool = False
    include_documentation: bool = False


@dataclass(slots=True)
class DescribeConfigsSynonym:
    """``synonyms`` of DescribeConfigsResourceResult."""

    name: str = ""
    value: str | None = ""
    source: int = 0


@dataclass(slots=True)
class DescribeConfigsResourceResult:
    """``configs`` of DescribeConfigsResult."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = field(default_factory=list)
    config_type: int = 0
    documentation: str | None = ""


@dataclass(slots=True)
class DescribeConfigsResult:
    """``results`` of DescribeConfigsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = field(default_factory=list)


@dataclass(slots=True)
class DescribeConfigsResponse:
    """The response."""

    throttle_time_ms: int = 0
    results: list[DescribeConfigsResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DescribeConfigsResource": (
        ("resource_type", "int8", False, 1, 4, False, None, 0),
        ("resource_name", "string", False, 1, 4, False, None, ""),
        ("configuration_keys", "string", True, 1, 4, True, None, ""),
    ),
    "DescribeConfigsRequest": (
        ("resources", "DescribeConfigsResource", True, 1, 4, False, None, ""),
        ("include_synonyms", "bool", False, 1, 4, False, None, False),
        ("include_documentation", "bool", False, 3, 4, False, None, False),
    ),
    "DescribeConfigsSynonym": (
        ("name", "string", False, 1, 4, False, None, ""),
        ("value", "string", False, 1, 4, True, None, ""),
        ("source", "int8", False, 1, 4, False, None, 0),
    ),
    "DescribeConfigsResourceResult": (
        ("name", "string", False, 1, 4, False, None, ""),
        ("value", "string", False, 1, 4, True, None, ""),
        ("read_only", "bool", False, 1, 4, False, None, False),
        ("config_source", "int8", False, 1, 4, False, None, -1),
        ("is_sensitive", "bool", False, 1, 4, False, None, False),
        ("synonyms", "DescribeConfigsSynonym", True, 1, 4, False, None, ""),
        ("config_type", "int8", False, 3, 4, False, None, 0),
        ("documentation", "string", False, 3, 4, True, None, ""),
    ),
    "DescribeConfigsResult": (
        ("error_code", "int16", False, 1, 4, False, None, 0),
        ("error_message", "string", False, 1, 4, True, None, ""),
        ("resource_type", "int8", False, 1, 4, False, None, 0),
        ("resource_name", "string", False, 1, 4, False, None, ""),
        ("configs", "DescribeConfigsResourceResult", True, 1, 4, False, None, ""),
    ),
    "DescribeConfigsResponse": (
        ("throttle_time_ms", "int32", False, 1, 4, False, None, 0),
        ("results", "DescribeConfigsResult", True, 1, 4, False, None, ""),
    ),
}
