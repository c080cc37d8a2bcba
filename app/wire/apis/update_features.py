"""UpdateFeatures, key 57, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class FeatureUpdateKey:
    """``feature_updates`` of UpdateFeaturesRequest."""

    feature: str = ""
    max_version_level: int = 0
    upgrade_type: int = 1
    allow_downgrade: bool = False


@dataclass(slots=True)
class UpdateFeaturesRequest:
    """The request."""

    timeout_ms: int = 60000
    feature_updates: list[FeatureUpdateKey] = field(default_factory=list)
    validate_only: bool = False


@dataclass(slots=True)
class UpdatableFeatureResult:
    """``results`` of UpdateFeaturesResponse."""

    feature: str = ""
    error_code: int = 0
    error_message: str | None = ""


@dataclass(slots=True)
class UpdateFeaturesResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: list[UpdatableFeatureResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "FeatureUpdateKey": (
        ("feature", "string", False, 0, 2, False, None, ""),
        ("max_version_level", "int16", False, 0, 2, False, None, 0),
        ("upgrade_type", "int8", False, 1, 2, False, None, 1),
        ("allow_downgrade", "bool", False, 0, 0, False, None, False),
    ),
    "UpdateFeaturesRequest": (
        ("timeout_ms", "int32", False, 0, 2, False, None, 60000),
        ("feature_updates", "FeatureUpdateKey", True, 0, 2, False, None, ""),
        ("validate_only", "bool", False, 1, 2, False, None, False),
    ),
    "UpdatableFeatureResult": (
        ("feature", "string", False, 0, 1, False, None, ""),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, ""),
    ),
    "UpdateFeaturesResponse": (
        ("throttle_time_ms", "int32", False, 0, 2, False, None, 0),
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("error_message", "string", False, 0, 2, True, None, ""),
        ("results", "UpdatableFeatureResult", True, 0, 1, False, None, ""),
    ),
}
