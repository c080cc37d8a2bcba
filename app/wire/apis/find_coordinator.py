"""FindCoordinator, key 10, versions 0 to 6. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class FindCoordinatorRequest:
    """The request."""

    key: str = ""
    key_type: int = 0
    coordinator_keys: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Coordinator:
    """``coordinators`` of FindCoordinatorResponse."""

    key: str = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    error_code: int = 0
    error_message: str | None = ""


@dataclass(slots=True)
class FindCoordinatorResponse:
    """The response."""

    throttle_time_ms: int = 0
    coordinators: list[Coordinator] = field(default_factory=list)
    error_code: int = 0
    error_message: str | None = ""
    node_id: int = 0
    host: str = ""
    port: int = 0


FIELDS: Final[Rows] = {
    "FindCoordinatorRequest": (
        ("key", "string", False, 0, 3, False, None, ""),
        ("key_type", "int8", False, 1, 6, False, None, 0),
        ("coordinator_keys", "string", True, 4, 6, False, None, ""),
    ),
    "Coordinator": (
        ("key", "string", False, 4, 6, False, None, ""),
        ("node_id", "int32", False, 4, 6, False, None, 0),
        ("host", "string", False, 4, 6, False, None, ""),
        ("port", "int32", False, 4, 6, False, None, 0),
        ("error_code", "int16", False, 4, 6, False, None, 0),
        ("error_message", "string", False, 4, 6, True, None, ""),
    ),
    "FindCoordinatorResponse": (
        ("throttle_time_ms", "int32", False, 1, 6, False, None, 0),
        ("coordinators", "Coordinator", True, 4, 6, False, None, ""),
        ("error_code", "int16", False, 0, 3, False, None, 0),
        ("error_message", "string", False, 1, 3, True, None, ""),
        ("node_id", "int32", False, 0, 3, False, None, 0),
        ("host", "string", False, 0, 3, False, None, ""),
        ("port", "int32", False, 0, 3, False, None, 0),
    ),
}
