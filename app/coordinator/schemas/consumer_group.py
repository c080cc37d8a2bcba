"""Groups of the consumer protocol (KIP-848). Written by tools/generate_coordinator_records.py; do not edit.

Tests: ``tests/coordinator/test_records.py``, ``tests/groups/test_consumer.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.coordinator.record_type import RecordType
from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class ConsumerGroupMetadataKey:
    """A record's key."""

    group_id: str = ""


@dataclass(slots=True)
class ConsumerGroupMetadataValue:
    """A record's value."""

    epoch: int = 0
    metadata_hash: int = 0


@dataclass(slots=True)
class ConsumerGroupPartitionMetadataKey:
    """A record's key."""

    group_id: str = ""


@dataclass(slots=True)
class PartitionMetadata:
    """``partition_metadata`` of TopicMetadata."""

    partition: int = 0
    racks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TopicMetadata:
    """``topics`` of ConsumerGroupPartitionMetadataValue."""

    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    num_partitions: int = 0
    partition_metadata: list[PartitionMetadata] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupPartitionMetadataValue:
    """A record's value."""

    topics: list[TopicMetadata] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupMemberMetadataKey:
    """A record's key."""

    group_id: str = ""
    member_id: str = ""


@dataclass(slots=True)
class ClassicProtocol:
    """``supported_protocols`` of ClassicMemberMetadata."""

    name: str = ""
    metadata: bytes = b""


@dataclass(slots=True)
class ClassicMemberMetadata:
    """``classic_member_metadata`` of ConsumerGroupMemberMetadataValue."""

    session_timeout_ms: int = 0
    supported_protocols: list[ClassicProtocol] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupMemberMetadataValue:
    """A record's value."""

    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = field(default_factory=list)
    subscribed_topic_regex: str | None = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = ""
    classic_member_metadata: ClassicMemberMetadata | None = field(default_factory=ClassicMemberMetadata)


@dataclass(slots=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    """A record's key."""

    group_id: str = ""


@dataclass(slots=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    """A record's value."""

    assignment_epoch: int = 0
    assignment_timestamp: int = 0


@dataclass(slots=True)
class ConsumerGroupTargetAssignmentMemberKey:
    """A record's key."""

    group_id: str = ""
    member_id: str = ""


@dataclass(slots=True)
class TopicPartition:
    """``topic_partitions`` of ConsumerGroupTargetAssignmentMemberValue."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupTargetAssignmentMemberValue:
    """A record's value."""

    topic_partitions: list[TopicPartition] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    """A record's key."""

    group_id: str = ""
    member_id: str = ""


@dataclass(slots=True)
class TopicPartitions:
    """Part of ConsumerGroupCurrentMemberAssignmentValue."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)
    assignment_epochs: list[int] | None = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    """A record's value."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    assigned_partitions: list[TopicPartitions] = field(default_factory=list)
    partitions_pending_revocation: list[TopicPartitions] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupRegularExpressionKey:
    """A record's key."""

    group_id: str = ""
    regular_expression: str = ""


@dataclass(slots=True)
class ConsumerGroupRegularExpressionValue:
    """A record's value."""

    topics: list[str] = field(default_factory=list)
    version: int = 0
    timestamp: int = 0


FIELDS: Final[Rows] = {
    "ConsumerGroupMetadataKey": (("group_id", "string", False, 0, 0, False, None, ""),),
    "ConsumerGroupMetadataValue": (
        ("epoch", "int32", False, 0, 0, False, None, 0),
        ("metadata_hash", "int64", False, 0, 0, False, 0, 0),
    ),
    "ConsumerGroupPartitionMetadataKey": (("group_id", "string", False, 0, 0, False, None, ""),),
    "PartitionMetadata": (
        ("partition", "int32", False, 0, 0, False, None, 0),
        ("racks", "string", True, 0, 0, False, None, ""),
    ),
    "TopicMetadata": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("topic_name", "string", False, 0, 0, False, None, ""),
        ("num_partitions", "int32", False, 0, 0, False, None, 0),
        ("partition_metadata", "PartitionMetadata", True, 0, 0, False, None, ""),
    ),
    "ConsumerGroupPartitionMetadataValue": (("topics", "TopicMetadata", True, 0, 0, False, None, ""),),
    "ConsumerGroupMemberMetadataKey": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("member_id", "string", False, 0, 0, False, None, ""),
    ),
    "ClassicProtocol": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("metadata", "bytes", False, 0, 0, False, None, ""),
    ),
    "ClassicMemberMetadata": (
        ("session_timeout_ms", "int32", False, 0, 0, False, None, 0),
        ("supported_protocols", "ClassicProtocol", True, 0, 0, False, None, ""),
    ),
    "ConsumerGroupMemberMetadataValue": (
        ("instance_id", "string", False, 0, 0, True, None, ""),
        ("rack_id", "string", False, 0, 0, True, None, ""),
        ("client_id", "string", False, 0, 0, False, None, ""),
        ("client_host", "string", False, 0, 0, False, None, ""),
        ("subscribed_topic_names", "string", True, 0, 0, False, None, ""),
        ("subscribed_topic_regex", "string", False, 0, 0, True, None, ""),
        ("rebalance_timeout_ms", "int32", False, 0, 0, False, None, -1),
        ("server_assignor", "string", False, 0, 0, True, None, ""),
        ("classic_member_metadata", "ClassicMemberMetadata", False, 0, 0, True, 0, ""),
    ),
    "ConsumerGroupTargetAssignmentMetadataKey": (("group_id", "string", False, 0, 0, False, None, ""),),
    "ConsumerGroupTargetAssignmentMetadataValue": (
        ("assignment_epoch", "int32", False, 0, 0, False, None, 0),
        ("assignment_timestamp", "int64", False, 0, 0, False, 0, 0),
    ),
    "ConsumerGroupTargetAssignmentMemberKey": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("member_id", "string", False, 0, 0, False, None, ""),
    ),
    "TopicPartition": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "int32", True, 0, 0, False, None, ""),
    ),
    "ConsumerGroupTargetAssignmentMemberValue": (("topic_partitions", "TopicPartition", True, 0, 0, False, None, ""),),
    "ConsumerGroupCurrentMemberAssignmentKey": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("member_id", "string", False, 0, 0, False, None, ""),
    ),
    "TopicPartitions": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "int32", True, 0, 0, False, None, ""),
        ("assignment_epochs", "int32", True, 0, 0, True, 0, ""),
    ),
    "ConsumerGroupCurrentMemberAssignmentValue": (
        ("member_epoch", "int32", False, 0, 0, False, None, 0),
        ("previous_member_epoch", "int32", False, 0, 0, False, None, 0),
        ("state", "int8", False, 0, 0, False, None, 0),
        ("assigned_partitions", "TopicPartitions", True, 0, 0, False, None, ""),
        ("partitions_pending_revocation", "TopicPartitions", True, 0, 0, False, None, ""),
    ),
    "ConsumerGroupRegularExpressionKey": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("regular_expression", "string", False, 0, 0, False, None, ""),
    ),
    "ConsumerGroupRegularExpressionValue": (
        ("topics", "string", True, 0, 0, False, None, ""),
        ("version", "int64", False, 0, 0, False, None, 0),
        ("timestamp", "int64", False, 0, 0, False, None, 0),
    ),
}

RECORDS: Final = (
    RecordType(3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, 0, 0, 0),
    RecordType(4, ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue, 0, 0, 0),
    RecordType(5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, 0, 0, 0),
    RecordType(6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue, 0, 0, 0),
    RecordType(7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, 0, 0, 0),
    RecordType(8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, 0, 0, 0),
    RecordType(16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue, 0, 0, 0),
)
