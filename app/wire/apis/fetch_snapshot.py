"""FetchSnapshot, key 59, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class SnapshotId:
    """``snapshot_id`` of FetchSnapshotRequestPartitionSnapshot, ``snapshot_id`` of FetchSnapshotResponsePartitionSnapshot."""

    end_offset: int = 0
    epoch: int = 0


@dataclass(slots=True)
class FetchSnapshotRequestPartitionSnapshot:
    """``partitions`` of FetchSnapshotRequestTopicSnapshot."""

    partition: int = 0
    current_leader_epoch: int = 0
    snapshot_id: SnapshotId = field(default_factory=SnapshotId)
    position: int = 0
    replica_directory_id: UUID = ZERO_UUID


@dataclass(slots=True)
class FetchSnapshotRequestTopicSnapshot:
    """``topics`` of FetchSnapshotRequest."""

    name: str = ""
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = field(default_factory=list)


@dataclass(slots=True)
class FetchSnapshotRequest:
    """The request."""

    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2147483647
    topics: list[FetchSnapshotRequestTopicSnapshot] = field(default_factory=list)


@dataclass(slots=True)
class LeaderIdAndEpoch:
    """``current_leader`` of FetchSnapshotResponsePartitionSnapshot."""

    leader_id: int = 0
    leader_epoch: int = 0


@dataclass(slots=True)
class FetchSnapshotResponsePartitionSnapshot:
    """``partitions`` of FetchSnapshotResponseTopicSnapshot."""

    index: int = 0
    error_code: int = 0
    snapshot_id: SnapshotId = field(default_factory=SnapshotId)
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)
    size: int = 0
    position: int = 0
    unaligned_records: bytes | memoryview | None = None


@dataclass(slots=True)
class FetchSnapshotResponseTopicSnapshot:
    """``topics`` of FetchSnapshotResponse."""

    name: str = ""
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint:
    """``node_endpoints`` of FetchSnapshotResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class FetchSnapshotResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    topics: list[FetchSnapshotResponseTopicSnapshot] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "SnapshotId": (
        ("end_offset", "int64", False, 0, 1, False, None, 0),
        ("epoch", "int32", False, 0, 1, False, None, 0),
    ),
    "FetchSnapshotRequestPartitionSnapshot": (
        ("partition", "int32", False, 0, 1, False, None, 0),
        ("current_leader_epoch", "int32", False, 0, 1, False, None, 0),
        ("snapshot_id", "SnapshotId", False, 0, 1, False, None, ""),
        ("position", "int64", False, 0, 1, False, None, 0),
        ("replica_directory_id", "uuid", False, 1, 1, False, 0, ""),
    ),
    "FetchSnapshotRequestTopicSnapshot": (
        ("name", "string", False, 0, 1, False, None, ""),
        ("partitions", "FetchSnapshotRequestPartitionSnapshot", True, 0, 1, False, None, ""),
    ),
    "FetchSnapshotRequest": (
        ("cluster_id", "string", False, 0, 1, True, 0, None),
        ("replica_id", "int32", False, 0, 1, False, None, -1),
        ("max_bytes", "int32", False, 0, 1, False, None, 2147483647),
        ("topics", "FetchSnapshotRequestTopicSnapshot", True, 0, 1, False, None, ""),
    ),
    "LeaderIdAndEpoch": (
        ("leader_id", "int32", False, 0, 1, False, None, 0),
        ("leader_epoch", "int32", False, 0, 1, False, None, 0),
    ),
    "FetchSnapshotResponsePartitionSnapshot": (
        ("index", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("snapshot_id", "SnapshotId", False, 0, 1, False, None, ""),
        ("current_leader", "LeaderIdAndEpoch", False, 0, 1, False, 0, ""),
        ("size", "int64", False, 0, 1, False, None, 0),
        ("position", "int64", False, 0, 1, False, None, 0),
        ("unaligned_records", "records", False, 0, 1, False, None, None),
    ),
    "FetchSnapshotResponseTopicSnapshot": (
        ("name", "string", False, 0, 1, False, None, ""),
        ("partitions", "FetchSnapshotResponsePartitionSnapshot", True, 0, 1, False, None, ""),
    ),
    "NodeEndpoint": (
        ("node_id", "int32", False, 1, 1, False, None, 0),
        ("host", "string", False, 1, 1, False, None, ""),
        ("port", "uint16", False, 1, 1, False, None, 0),
    ),
    "FetchSnapshotResponse": (
        ("throttle_time_ms", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("topics", "FetchSnapshotResponseTopicSnapshot", True, 0, 1, False, None, ""),
        ("node_endpoints", "NodeEndpoint", True, 1, 1, False, 0, ""),
    ),
}
