"""RemoveRaftVoter, key 81, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class RemoveRaftVoterRequest:
    """The request."""

    cluster_id: str | None = ""
    voter_id: int = 0
    voter_directory_id: UUID = ZERO_UUID


@dataclass(slots=True)
class RemoveRaftVoterResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""


FIELDS: Final[Rows] = {
    "RemoveRaftVoterRequest": (
        ("cluster_id", "string", False, 0, 0, True, None, ""),
        ("voter_id", "int32", False, 0, 0, False, None, 0),
        ("voter_directory_id", "uuid", False, 0, 0, False, None, ""),
    ),
    "RemoveRaftVoterResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, ""),
    ),
}
