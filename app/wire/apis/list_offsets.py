"""ListOffsets, key 2, versions 1 to 11. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ListOffsetsPartition:
    """``partitions`` of ListOffsetsTopic."""

    partition_index: int = 0
    current_leader_epoch: int = -1
    timestamp: int = 0


@dataclass(slots=True)
class ListOffsetsTopic:
    """``topics`` of ListOffsetsRequest."""

    name: str = ""
    partitions: list[ListOffsetsPartition] = field(default_factory=list)


@dataclass(slots=True)
class ListOffsetsRequest:
    """The request."""

    replica_id: int = 0
    isolation_level: int = 0
    topics: list[ListOffsetsTopic] = field(default_factory=list)
    timeout_ms: int = 0


@dataclass(slots=True)
class ListOffsetsPartitionResponse:
    """``partitions`` of ListOffsetsTopicResponse."""

    partition_index: int = 0
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class ListOffsetsTopicResponse:
    """``topics`` of ListOffsetsResponse."""

    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = field(default_factory=list)


@dataclass(slots=True)
class ListOffsetsResponse:
    """The response."""

    throttle_time_ms: int = 0
    topics: list[ListOffsetsTopicResponse] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ListOffsetsPartition": (
        ("partition_index", "int32", False, 1, 11, False, None, 0),
        ("current_leader_epoch", "int32", False, 4, 11, False, None, -1),
        ("timestamp", "int64", False, 1, 11, False, None, 0),
    ),
    "ListOffsetsTopic": (
        ("name", "string", False, 1, 11, False, None, ""),
        ("partitions", "ListOffsetsPartition", True, 1, 11, False, None, ""),
    ),
    "ListOffsetsRequest": (
        ("replica_id", "int32", False, 1, 11, False, None, 0),
        ("isolation_level", "int8", False, 2, 11, False, None, 0),
        ("topics", "ListOffsetsTopic", True, 1, 11, False, None, ""),
        ("timeout_ms", "int32", False, 10, 11, False, None, 0),
    ),
    "ListOffsetsPartitionResponse": (
        ("partition_index", "int32", False, 1, 11, False, None, 0),
        ("error_code", "int16", False, 1, 11, False, None, 0),
        ("timestamp", "int64", False, 1, 11, False, None, -1),
        ("offset", "int64", False, 1, 11, False, None, -1),
        ("leader_epoch", "int32", False, 4, 11, False, None, -1),
    ),
    "ListOffsetsTopicResponse": (
        ("name", "string", False, 1, 11, False, None, ""),
        ("partitions", "ListOffsetsPartitionResponse", True, 1, 11, False, None, ""),
    ),
    "ListOffsetsResponse": (
        ("throttle_time_ms", "int32", False, 2, 11, False, None, 0),
        ("topics", "ListOffsetsTopicResponse", True, 1, 11, False, None, ""),
    ),
}
