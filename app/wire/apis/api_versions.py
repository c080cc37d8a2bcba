"""ApiVersions, key 18, versions 0 to 4. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ApiVersionsRequest:
    """The request."""

    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(slots=True)
class ApiVersion:
    """``api_keys`` of ApiVersionsResponse."""

    api_key: int = 0
    min_version: int = 0
    max_version: int = 0


@dataclass(slots=True)
class SupportedFeatureKey:
    """``supported_features`` of ApiVersionsResponse."""

    name: str = ""
    min_version: int = 0
    max_version: int = 0


@dataclass(slots=True)
class FinalizedFeatureKey:
    """``finalized_features`` of ApiVersionsResponse."""

    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0


@dataclass(slots=True)
class ApiVersionsResponse:
    """The response."""

    error_code: int = 0
    api_keys: list[ApiVersion] = field(default_factory=list)
    throttle_time_ms: int = 0
    supported_features: list[SupportedFeatureKey] = field(default_factory=list)
    finalized_features_epoch: int = -1
    finalized_features: list[FinalizedFeatureKey] = field(default_factory=list)
    zk_migration_ready: bool = False


FIELDS: Final[Rows] = {
    "ApiVersionsRequest": (
        ("client_software_name", "string", False, 3, 4, False, None, ""),
        ("client_software_version", "string", False, 3, 4, False, None, ""),
    ),
    "ApiVersion": (
        ("api_key", "int16", False, 0, 4, False, None, 0),
        ("min_version", "int16", False, 0, 4, False, None, 0),
        ("max_version", "int16", False, 0, 4, False, None, 0),
    ),
    "SupportedFeatureKey": (
        ("name", "string", False, 3, 4, False, None, ""),
        ("min_version", "int16", False, 3, 4, False, None, 0),
        ("max_version", "int16", False, 3, 4, False, None, 0),
    ),
    "FinalizedFeatureKey": (
        ("name", "string", False, 3, 4, False, None, ""),
        ("max_version_level", "int16", False, 3, 4, False, None, 0),
        ("min_version_level", "int16", False, 3, 4, False, None, 0),
    ),
    "ApiVersionsResponse": (
        ("error_code", "int16", False, 0, 4, False, None, 0),
        ("api_keys", "ApiVersion", True, 0, 4, False, None, ""),
        ("throttle_time_ms", "int32", False, 1, 4, False, None, 0),
        ("supported_features", "SupportedFeatureKey", True, 3, 4, False, 0, ""),
        ("finalized_features_epoch", "int64", False, 3, 4, False, 1, -1),
        ("finalized_features", "FinalizedFeatureKey", True, 3, 4, False, 2, ""),
        ("zk_migration_ready", "bool", False, 3, 4, False, 3, False),
    ),
}
