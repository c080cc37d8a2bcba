"""State of share-partitions (KIP-932). Written by tools/generate_coordinator_records.py; do not edit.

Tests: ``tests/coordinator/test_records.py``, ``tests/groups/test_share_state.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.coordinator.record_type import RecordType
from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class ShareSnapshotKey:
    """A record's key."""

    group_id: str = ""
    topic_id: UUID = ZERO_UUID
    partition: int = 0


@dataclass(slots=True)
class StateBatch:
    """``state_batches`` of ShareSnapshotValue, ``state_batches`` of ShareUpdateValue."""

    first_offset: int = 0
    last_offset: int = 0
    delivery_state: int = 0
    delivery_count: int = 0


@dataclass(slots=True)
class ShareSnapshotValue:
    """A record's value."""

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = -1
    create_timestamp: int = 0
    write_timestamp: int = 0
    state_batches: list[StateBatch] = field(default_factory=list)


@dataclass(slots=True)
class ShareUpdateKey:
    """A record's key."""

    group_id: str = ""
    topic_id: UUID = ZERO_UUID
    partition: int = 0


@dataclass(slots=True)
class ShareUpdateValue:
    """A record's value."""

    snapshot_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = -1
    state_batches: list[StateBatch] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ShareSnapshotKey": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partition", "int32", False, 0, 0, False, None, 0),
    ),
    "StateBatch": (
        ("first_offset", "int64", False, 0, 0, False, None, 0),
        ("last_offset", "int64", False, 0, 0, False, None, 0),
        ("delivery_state", "int8", False, 0, 0, False, None, 0),
        ("delivery_count", "int16", False, 0, 0, False, None, 0),
    ),
    "ShareSnapshotValue": (
        ("snapshot_epoch", "int32", False, 0, 0, False, None, 0),
        ("state_epoch", "int32", False, 0, 0, False, None, 0),
        ("leader_epoch", "int32", False, 0, 0, False, None, 0),
        ("start_offset", "int64", False, 0, 0, False, None, 0),
        ("delivery_complete_count", "int32", False, 0, 0, False, 0, -1),
        ("create_timestamp", "int64", False, 0, 0, False, None, 0),
        ("write_timestamp", "int64", False, 0, 0, False, None, 0),
        ("state_batches", "StateBatch", True, 0, 0, False, None, ""),
    ),
    "ShareUpdateKey": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partition", "int32", False, 0, 0, False, None, 0),
    ),
    "ShareUpdateValue": (
        ("snapshot_epoch", "int32", False, 0, 0, False, None, 0),
        ("leader_epoch", "int32", False, 0, 0, False, None, 0),
        ("start_offset", "int64", False, 0, 0, False, None, 0),
        ("delivery_complete_count", "int32", False, 0, 0, False, 0, -1),
        ("state_batches", "StateBatch", True, 0, 0, False, None, ""),
    ),
}

RECORDS: Final = (
    RecordType(0, ShareSnapshotKey, ShareSnapshotValue, 0, 0, 0),
    RecordType(1, ShareUpdateKey, ShareUpdateValue, 0, 0, 0),
)
