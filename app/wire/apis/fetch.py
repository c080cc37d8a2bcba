"""Fetch, key 1, versions 4 to 18. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class ReplicaState:
    """``replica_state`` of FetchRequest."""

    replica_id: int = -1
    replica_epoch: int = -1


@dataclass(slots=True)
class FetchPartition:
    """``partitions`` of FetchTopic."""

    partition: int = 0
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_max_bytes: int = 0
    replica_directory_id: UUID = ZERO_UUID
    high_watermark: int = 9223372036854775807


@dataclass(slots=True)
class FetchTopic:
    """``topics`` of FetchRequest."""

    topic_id: UUID = ZERO_UUID
    topic: str = ""
    partitions: list[FetchPartition] = field(default_factory=list)


@dataclass(slots=True)
class ForgottenTopic:
    """``forgotten_topics_data`` of FetchRequest."""

    topic_id: UUID = ZERO_UUID
    topic: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class FetchRequest:
    """The request."""

    cluster_id: str | None = None
    replica_state: ReplicaState = field(default_factory=ReplicaState)
    replica_id: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""


@dataclass(slots=True)
class EpochEndOffset:
    """``diverging_epoch`` of PartitionData."""

    epoch: int = -1
    end_offset: int = -1


@dataclass(slots=True)
class LeaderIdAndEpoch:
    """``current_leader`` of PartitionData."""

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class SnapshotId:
    """``snapshot_id`` of PartitionData."""

    end_offset: int = -1
    epoch: int = -1


@dataclass(slots=True)
class AbortedTransaction:
    """``aborted_transactions`` of PartitionData."""

    producer_id: int = 0
    first_offset: int = 0


@dataclass(slots=True)
class PartitionData:
    """``partitions`` of FetchableTopicResponse."""

    partition_index: int = 0
    error_code: int = 0
    high_watermark: int = 0
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset = field(default_factory=EpochEndOffset)
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)
    snapshot_id: SnapshotId = field(default_factory=SnapshotId)
    aborted_transactions: list[AbortedTransaction] | None = field(default_factory=list)
    preferred_read_replica: int = -1
    records: bytes | memoryview | None = None


@dataclass(slots=True)
class FetchableTopicResponse:
    """``responses`` of FetchResponse."""

    topic_id: UUID = ZERO_UUID
    topic: str = ""
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint:
    """``node_endpoints`` of FetchResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


@dataclass(slots=True)
class FetchResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    responses: list[FetchableTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ReplicaState": (
        ("replica_id", "int32", False, 15, 18, False, None, -1),
        ("replica_epoch", "int64", False, 15, 18, False, None, -1),
    ),
    "FetchPartition": (
        ("partition", "int32", False, 4, 18, False, None, 0),
        ("current_leader_epoch", "int32", False, 9, 18, False, None, -1),
        ("fetch_offset", "int64", False, 4, 18, False, None, 0),
        ("last_fetched_epoch", "int32", False, 12, 18, False, None, -1),
        ("log_start_offset", "int64", False, 5, 18, False, None, -1),
        ("partition_max_bytes", "int32", False, 4, 18, False, None, 0),
        ("replica_directory_id", "uuid", False, 17, 18, False, 0, ""),
        ("high_watermark", "int64", False, 18, 18, False, 1, 9223372036854775807),
    ),
    "FetchTopic": (
        ("topic_id", "uuid", False, 13, 18, False, None, ""),
        ("topic", "string", False, 4, 12, False, None, ""),
        ("partitions", "FetchPartition", True, 4, 18, False, None, ""),
    ),
    "ForgottenTopic": (
        ("topic_id", "uuid", False, 13, 18, False, None, ""),
        ("topic", "string", False, 7, 12, False, None, ""),
        ("partitions", "int32", True, 7, 18, False, None, ""),
    ),
    "FetchRequest": (
        ("cluster_id", "string", False, 12, 18, True, 0, None),
        ("replica_state", "ReplicaState", False, 15, 18, False, 1, ""),
        ("replica_id", "int32", False, 4, 14, False, None, -1),
        ("max_wait_ms", "int32", False, 4, 18, False, None, 0),
        ("min_bytes", "int32", False, 4, 18, False, None, 0),
        ("max_bytes", "int32", False, 4, 18, False, None, 2147483647),
        ("isolation_level", "int8", False, 4, 18, False, None, 0),
        ("session_id", "int32", False, 7, 18, False, None, 0),
        ("session_epoch", "int32", False, 7, 18, False, None, -1),
        ("topics", "FetchTopic", True, 4, 18, False, None, ""),
        ("forgotten_topics_data", "ForgottenTopic", True, 7, 18, False, None, ""),
        ("rack_id", "string", False, 11, 18, False, None, ""),
    ),
    "EpochEndOffset": (
        ("epoch", "int32", False, 12, 18, False, None, -1),
        ("end_offset", "int64", False, 12, 18, False, None, -1),
    ),
    "LeaderIdAndEpoch": (
        ("leader_id", "int32", False, 12, 18, False, None, -1),
        ("leader_epoch", "int32", False, 12, 18, False, None, -1),
    ),
    "SnapshotId": (
        ("end_offset", "int64", False, 12, 18, False, None, -1),
        ("epoch", "int32", False, 12, 18, False, None, -1),
    ),
    "AbortedTransaction": (
        ("producer_id", "int64", False, 4, 18, False, None, 0),
        ("first_offset", "int64", False, 4, 18, False, None, 0),
    ),
    "PartitionData": (
        ("partition_index", "int32", False, 4, 18, False, None, 0),
        ("error_code", "int16", False, 4, 18, False, None, 0),
        ("high_watermark", "int64", False, 4, 18, False, None, 0),
        ("last_stable_offset", "int64", False, 4, 18, False, None, -1),
        ("log_start_offset", "int64", False, 5, 18, False, None, -1),
        ("diverging_epoch", "EpochEndOffset", False, 12, 18, False, 0, ""),
        ("current_leader", "LeaderIdAndEpoch", False, 12, 18, False, 1, ""),
        ("snapshot_id", "SnapshotId", False, 12, 18, False, 2, ""),
        ("aborted_transactions", "AbortedTransaction", True, 4, 18, True, None, ""),
        ("preferred_read_replica", "int32", False, 11, 18, False, None, -1),
        ("records", "records", False, 4, 18, True, None, None),
    ),
    "FetchableTopicResponse": (
        ("topic_id", "uuid", False, 13, 18, False, None, ""),
        ("topic", "string", False, 4, 12, False, None, ""),
        ("partitions", "PartitionData", True, 4, 18, False, None, ""),
    ),
    "NodeEndpoint": (
        ("node_id", "int32", False, 16, 18, False, None, 0),
        ("host", "string", False, 16, 18, False, None, ""),
        ("port", "int32", False, 16, 18, False, None, 0),
        ("rack", "string", False, 16, 18, True, None, None),
    ),
    "FetchResponse": (
        ("throttle_time_ms", "int32", False, 4, 18, False, None, 0),
        ("error_code", "int16", False, 7, 18, False, None, 0),
        ("session_id", "int32", False, 7, 18, False, None, 0),
        ("responses", "FetchableTopicResponse", True, 4, 18, False, None, ""),
        ("node_endpoints", "NodeEndpoint", True, 16, 18, False, 0, ""),
    ),
}
