"""AssignReplicasToDirs, key 73, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class AssignReplicasToDirsRequestPartitionData:
    """``partitions`` of AssignReplicasToDirsRequestTopicData."""

    partition_index: int = 0


@dataclass(slots=True)
class AssignReplicasToDirsRequestTopicData:
    """``topics`` of AssignReplicasToDirsRequestDirectoryData."""

    topic_id: UUID = ZERO_UUID
    partitions: list[AssignReplicasToDirsRequestPartitionData] = field(default_factory=list)


@dataclass(slots=True)
class AssignReplicasToDirsRequestDirectoryData:
    """``directories`` of AssignReplicasToDirsRequest."""

    id_: UUID = ZERO_UUID
    topics: list[AssignReplicasToDirsRequestTopicData] = field(default_factory=list)


@dataclass(slots=True)
class AssignReplicasToDirsRequest:
    """The request."""

    broker_id: int = 0
    broker_epoch: int = -1
    directories: list[AssignReplicasToDirsRequestDirectoryData] = field(default_factory=list)


@dataclass(slots=True)
class AssignReplicasToDirsResponsePartitionData:
    """``partitions`` of AssignReplicasToDirsResponseTopicData."""

    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class AssignReplicasToDirsResponseTopicData:
    """``topics`` of AssignReplicasToDirsResponseDirectoryData."""

    topic_id: UUID = ZERO_UUID
    partitions: list[AssignReplicasToDirsResponsePartitionData] = field(default_factory=list)


@dataclass(slots=True)
class AssignReplicasToDirsResponseDirectoryData:
    """``directories`` of AssignReplicasToDirsResponse."""

    id_: UUID = ZERO_UUID
    topics: list[AssignReplicasToDirsResponseTopicData] = field(default_factory=list)


@dataclass(slots=True)
class AssignReplicasToDirsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    directories: list[AssignReplicasToDirsResponseDirectoryData] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "AssignReplicasToDirsRequestPartitionData": (("partition_index", "int32", False, 0, 0, False, None, 0),),
    "AssignReplicasToDirsRequestTopicData": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "AssignReplicasToDirsRequestPartitionData", True, 0, 0, False, None, ""),
    ),
    "AssignReplicasToDirsRequestDirectoryData": (
        ("id_", "uuid", False, 0, 0, False, None, ""),
        ("topics", "AssignReplicasToDirsRequestTopicData", True, 0, 0, False, None, ""),
    ),
    "AssignReplicasToDirsRequest": (
        ("broker_id", "int32", False, 0, 0, False, None, 0),
        ("broker_epoch", "int64", False, 0, 0, False, None, -1),
        ("directories", "AssignReplicasToDirsRequestDirectoryData", True, 0, 0, False, None, ""),
    ),
    "AssignReplicasToDirsResponsePartitionData": (
        ("partition_index", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
    ),
    "AssignReplicasToDirsResponseTopicData": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "AssignReplicasToDirsResponsePartitionData", True, 0, 0, False, None, ""),
    ),
    "AssignReplicasToDirsResponseDirectoryData": (
        ("id_", "uuid", False, 0, 0, False, None, ""),
        ("topics", "AssignReplicasToDirsResponseTopicData", True, 0, 0, False, None, ""),
    ),
    "AssignReplicasToDirsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("directories", "AssignReplicasToDirsResponseDirectoryData", True, 0, 0, False, None, ""),
    ),
}
