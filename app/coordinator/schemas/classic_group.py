"""Committed offsets and groups of the classic protocol. Written by tools/generate_coordinator_records.py; do not edit.

Tests: ``tests/coordinator/test_records.py``, ``tests/groups/test_classic.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.coordinator.record_type import RecordType
from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class LegacyOffsetCommitKey:
    """A record's key."""

    group: str = ""
    topic: str = ""
    partition: int = 0


@dataclass(slots=True)
class LegacyOffsetCommitValue:
    """A record's value."""

    offset: int = 0
    metadata: str = ""
    commit_timestamp: int = 0


@dataclass(slots=True)
class OffsetCommitKey:
    """A record's key."""

    group: str = ""
    topic: str = ""
    partition: int = 0


@dataclass(slots=True)
class OffsetCommitValue:
    """A record's value."""

    offset: int = 0
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = 0
    expire_timestamp: int = -1
    topic_id: UUID = ZERO_UUID


@dataclass(slots=True)
class GroupMetadataKey:
    """A record's key."""

    group: str = ""


@dataclass(slots=True)
class MemberMetadata:
    """``members`` of GroupMetadataValue."""

    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: int = -1
    session_timeout: int = 0
    subscription: bytes = b""
    assignment: bytes = b""


@dataclass(slots=True)
class GroupMetadataValue:
    """A record's value."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = ""
    leader: str | None = ""
    current_state_timestamp: int = -1
    members: list[MemberMetadata] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "LegacyOffsetCommitKey": (
        ("group", "string", False, 0, 0, False, None, ""),
        ("topic", "string", False, 0, 0, False, None, ""),
        ("partition", "int32", False, 0, 0, False, None, 0),
    ),
    "LegacyOffsetCommitValue": (
        ("offset", "int64", False, 0, 0, False, None, 0),
        ("metadata", "string", False, 0, 0, False, None, ""),
        ("commit_timestamp", "int64", False, 0, 0, False, None, 0),
    ),
    "OffsetCommitKey": (
        ("group", "string", False, 0, 0, False, None, ""),
        ("topic", "string", False, 0, 0, False, None, ""),
        ("partition", "int32", False, 0, 0, False, None, 0),
    ),
    "OffsetCommitValue": (
        ("offset", "int64", False, 0, 4, False, None, 0),
        ("leader_epoch", "int32", False, 3, 4, False, None, -1),
        ("metadata", "string", False, 0, 4, False, None, ""),
        ("commit_timestamp", "int64", False, 0, 4, False, None, 0),
        ("expire_timestamp", "int64", False, 1, 1, False, None, -1),
        ("topic_id", "uuid", False, 4, 4, False, 0, ""),
    ),
    "GroupMetadataKey": (("group", "string", False, 0, 0, False, None, ""),),
    "MemberMetadata": (
        ("member_id", "string", False, 0, 4, False, None, ""),
        ("group_instance_id", "string", False, 3, 4, True, None, None),
        ("client_id", "string", False, 0, 4, False, None, ""),
        ("client_host", "string", False, 0, 4, False, None, ""),
        ("rebalance_timeout", "int32", False, 1, 4, False, None, -1),
        ("session_timeout", "int32", False, 0, 4, False, None, 0),
        ("subscription", "bytes", False, 0, 4, False, None, ""),
        ("assignment", "bytes", False, 0, 4, False, None, ""),
    ),
    "GroupMetadataValue": (
        ("protocol_type", "string", False, 0, 4, False, None, ""),
        ("generation", "int32", False, 0, 4, False, None, 0),
        ("protocol", "string", False, 0, 4, True, None, ""),
        ("leader", "string", False, 0, 4, True, None, ""),
        ("current_state_timestamp", "int64", False, 2, 4, False, None, -1),
        ("members", "MemberMetadata", True, 0, 4, False, None, ""),
    ),
}

RECORDS: Final = (
    RecordType(0, LegacyOffsetCommitKey, LegacyOffsetCommitValue, 0, 0, 1),
    RecordType(1, OffsetCommitKey, OffsetCommitValue, 0, 4, 4),
    RecordType(2, GroupMetadataKey, GroupMetadataValue, 0, 4, 4),
)
