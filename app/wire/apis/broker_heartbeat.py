"""BrokerHeartbeat, key 63, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import Rows


@dataclass(slots=True)
class BrokerHeartbeatRequest:
    """The request."""

    broker_id: int = 0
    broker_epoch: int = -1
    current_metadata_offset: int = 0
    want_fence: bool = False
    want_shut_down: bool = False
    offline_log_dirs: list[UUID] = field(default_factory=list)
    cordoned_log_dirs: list[UUID] | None = None
    wal_next: int = 0


@dataclass(slots=True)
class BrokerHeartbeatResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False


FIELDS: Final[Rows] = {
    "BrokerHeartbeatRequest": (
        ("broker_id", "int32", False, 0, 2, False, None, 0),
        ("broker_epoch", "int64", False, 0, 2, False, None, -1),
        ("current_metadata_offset", "int64", False, 0, 2, False, None, 0),
        ("want_fence", "bool", False, 0, 2, False, None, False),
        ("want_shut_down", "bool", False, 0, 2, False, None, False),
        ("offline_log_dirs", "uuid", True, 1, 2, False, 0, ""),
        ("cordoned_log_dirs", "uuid", True, 2, 2, True, 1, None),
        ("wal_next", "int64", False, 0, 2, False, 10000, 0),
    ),
    "BrokerHeartbeatResponse": (
        ("throttle_time_ms", "int32", False, 0, 2, False, None, 0),
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("is_caught_up", "bool", False, 0, 2, False, None, False),
        ("is_fenced", "bool", False, 0, 2, False, None, True),
        ("should_shut_down", "bool", False, 0, 2, False, None, False),
    ),
}
