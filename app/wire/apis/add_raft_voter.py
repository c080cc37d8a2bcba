"""AddRaftVoter, key 80, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class Listener:
    """``listeners`` of AddRaftVoterRequest."""

    name: str = ""
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class AddRaftVoterRequest:
    """The request."""

    cluster_id: str | None = ""
    timeout_ms: int = 0
    voter_id: int = 0
    voter_directory_id: UUID = ZERO_UUID
    listeners: list[Listener] = field(default_factory=list)
    ack_when_committed: bool = True


@dataclass(slots=True)
class AddRaftVoterResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""


FIELDS: Final[Rows] = {
    "Listener": (
        ("name", "string", False, 0, 1, False, None, ""),
        ("host", "string", False, 0, 1, False, None, ""),
        ("port", "uint16", False, 0, 1, False, None, 0),
    ),
    "AddRaftVoterRequest": (
        ("cluster_id", "string", False, 0, 1, True, None, ""),
        ("timeout_ms", "int32", False, 0, 1, False, None, 0),
        ("voter_id", "int32", False, 0, 1, False, None, 0),
        ("voter_directory_id", "uuid", False, 0, 1, False, None, ""),
        ("listeners", "Listener", True, 0, 1, False, None, ""),
        ("ack_when_committed", "bool", False, 1, 1, False, None, True),
    ),
    "AddRaftVoterResponse": (
        ("throttle_time_ms", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, ""),
    ),
}
