"""Share groups (KIP-932). Written by tools/generate_coordinator_records.py; do not edit.

Tests: ``tests/coordinator/test_records.py``, ``tests/groups/test_share.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.coordinator.record_type import RecordType
from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class ShareGroupMemberMetadataKey:
    """A record's key."""

    group_id: str = ""
    member_id: str = ""


@dataclass(slots=True)
class ShareGroupMemberMetadataValue:
    """A record's value."""

    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ShareGroupMetadataKey:
    """A record's key."""

    group_id: str = ""


@dataclass(slots=True)
class ShareGroupMetadataValue:
    """A record's value."""

    epoch: int = 0
    metadata_hash: int = 0


@dataclass(slots=True)
class ShareGroupTargetAssignmentMetadataKey:
    """A record's key."""

    group_id: str = ""


@dataclass(slots=True)
class ShareGroupTargetAssignmentMetadataValue:
    """A record's value."""

    assignment_epoch: int = 0
    assignment_timestamp: int = 0


@dataclass(slots=True)
class ShareGroupTargetAssignmentMemberKey:
    """A record's key."""

    group_id: str = ""
    member_id: str = ""


@dataclass(slots=True)
class TopicPartition:
    """``topic_partitions`` of ShareGroupTargetAssignmentMemberValue."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ShareGroupTargetAssignmentMemberValue:
    """A record's value."""

    topic_partitions: list[TopicPartition] = field(default_factory=list)


@dataclass(slots=True)
class ShareGroupCurrentMemberAssignmentKey:
    """A record's key."""

    group_id: str = ""
    member_id: str = ""


@dataclass(slots=True)
class TopicPartitions:
    """``assigned_partitions`` of ShareGroupCurrentMemberAssignmentValue."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ShareGroupCurrentMemberAssignmentValue:
    """A record's value."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    assigned_partitions: list[TopicPartitions] = field(default_factory=list)


@dataclass(slots=True)
class ShareGroupStatePartitionMetadataKey:
    """A record's key."""

    group_id: str = ""


@dataclass(slots=True)
class TopicPartitionsInfo:
    """Part of ShareGroupStatePartitionMetadataValue."""

    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TopicInfo:
    """``deleting_topics`` of ShareGroupStatePartitionMetadataValue."""

    topic_id: UUID = ZERO_UUID
    topic_name: str = ""


@dataclass(slots=True)
class ShareGroupStatePartitionMetadataValue:
    """A record's value."""

    initializing_topics: list[TopicPartitionsInfo] = field(default_factory=list)
    initialized_topics: list[TopicPartitionsInfo] = field(default_factory=list)
    deleting_topics: list[TopicInfo] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ShareGroupMemberMetadataKey": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("member_id", "string", False, 0, 0, False, None, ""),
    ),
    "ShareGroupMemberMetadataValue": (
        ("rack_id", "string", False, 0, 0, True, None, ""),
        ("client_id", "string", False, 0, 0, False, None, ""),
        ("client_host", "string", False, 0, 0, False, None, ""),
        ("subscribed_topic_names", "string", True, 0, 0, False, None, ""),
    ),
    "ShareGroupMetadataKey": (("group_id", "string", False, 0, 0, False, None, ""),),
    "ShareGroupMetadataValue": (
        ("epoch", "int32", False, 0, 0, False, None, 0),
        ("metadata_hash", "int64", False, 0, 0, False, None, 0),
    ),
    "ShareGroupTargetAssignmentMetadataKey": (("group_id", "string", False, 0, 0, False, None, ""),),
    "ShareGroupTargetAssignmentMetadataValue": (
        ("assignment_epoch", "int32", False, 0, 0, False, None, 0),
        ("assignment_timestamp", "int64", False, 0, 0, False, 0, 0),
    ),
    "ShareGroupTargetAssignmentMemberKey": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("member_id", "string", False, 0, 0, False, None, ""),
    ),
    "TopicPartition": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "int32", True, 0, 0, False, None, ""),
    ),
    "ShareGroupTargetAssignmentMemberValue": (("topic_partitions", "TopicPartition", True, 0, 0, False, None, ""),),
    "ShareGroupCurrentMemberAssignmentKey": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("member_id", "string", False, 0, 0, False, None, ""),
    ),
    "TopicPartitions": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "int32", True, 0, 0, False, None, ""),
    ),
    "ShareGroupCurrentMemberAssignmentValue": (
        ("member_epoch", "int32", False, 0, 0, False, None, 0),
        ("previous_member_epoch", "int32", False, 0, 0, False, None, 0),
        ("state", "int8", False, 0, 0, False, None, 0),
        ("assigned_partitions", "TopicPartitions", True, 0, 0, False, None, ""),
    ),
    "ShareGroupStatePartitionMetadataKey": (("group_id", "string", False, 0, 0, False, None, ""),),
    "TopicPartitionsInfo": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("topic_name", "string", False, 0, 0, False, None, ""),
        ("partitions", "int32", True, 0, 0, False, None, ""),
    ),
    "TopicInfo": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("topic_name", "string", False, 0, 0, False, None, ""),
    ),
    "ShareGroupStatePartitionMetadataValue": (
        ("initializing_topics", "TopicPartitionsInfo", True, 0, 0, False, None, ""),
        ("initialized_topics", "TopicPartitionsInfo", True, 0, 0, False, None, ""),
        ("deleting_topics", "TopicInfo", True, 0, 0, False, None, ""),
    ),
}

RECORDS: Final = (
    RecordType(10, ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue, 0, 0, 0),
    RecordType(11, ShareGroupMetadataKey, ShareGroupMetadataValue, 0, 0, 0),
    RecordType(12, ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue, 0, 0, 0),
    RecordType(13, ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue, 0, 0, 0),
    RecordType(14, ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue, 0, 0, 0),
    RecordType(15, ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue, 0, 0, 0),
)
