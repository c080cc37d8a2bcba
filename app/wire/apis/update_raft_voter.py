"""UpdateRaftVoter, key 82, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class Listener:
    """``listeners`` of UpdateRaftVoterRequest."""

    name: str = ""
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class KRaftVersionFeature:
    """``k_raft_version_feature`` of UpdateRaftVoterRequest."""

    min_supported_version: int = 0
    max_supported_version: int = 0


@dataclass(slots=True)
class UpdateRaftVoterRequest:
    """The request."""

    cluster_id: str | None = ""
    current_leader_epoch: int = 0
    voter_id: int = 0
    voter_directory_id: UUID = ZERO_UUID
    listeners: list[Listener] = field(default_factory=list)
    k_raft_version_feature: KRaftVersionFeature = field(default_factory=KRaftVersionFeature)


@dataclass(slots=True)
class CurrentLeader:
    """``current_leader`` of UpdateRaftVoterResponse."""

    leader_id: int = -1
    leader_epoch: int = -1
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class UpdateRaftVoterResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    current_leader: CurrentLeader = field(default_factory=CurrentLeader)


FIELDS: Final[Rows] = {
    "Listener": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("host", "string", False, 0, 0, False, None, ""),
        ("port", "uint16", False, 0, 0, False, None, 0),
    ),
    "KRaftVersionFeature": (
        ("min_supported_version", "int16", False, 0, 0, False, None, 0),
        ("max_supported_version", "int16", False, 0, 0, False, None, 0),
    ),
    "UpdateRaftVoterRequest": (
        ("cluster_id", "string", False, 0, 0, True, None, ""),
        ("current_leader_epoch", "int32", False, 0, 0, False, None, 0),
        ("voter_id", "int32", False, 0, 0, False, None, 0),
        ("voter_directory_id", "uuid", False, 0, 0, False, None, ""),
        ("listeners", "Listener", True, 0, 0, False, None, ""),
        ("k_raft_version_feature", "KRaftVersionFeature", False, 0, 0, False, None, ""),
    ),
    "CurrentLeader": (
        ("leader_id", "int32", False, 0, 0, False, None, -1),
        ("leader_epoch", "int32", False, 0, 0, False, None, -1),
        ("host", "string", False, 0, 0, False, None, ""),
        ("port", "int32", False, 0, 0, False, None, 0),
    ),
    "UpdateRaftVoterResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("current_leader", "CurrentLeader", False, 0, 0, False, 0, ""),
    ),
}
