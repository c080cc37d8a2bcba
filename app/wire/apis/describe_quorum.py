"""DescribeQuorum, key 55, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class DescribeQuorumRequestPartitionData:
    """``partitions`` of DescribeQuorumRequestTopicData."""

    partition_index: int = 0


@dataclass(slots=True)
class DescribeQuorumRequestTopicData:
    """``topics`` of DescribeQuorumRequest."""

    topic_name: str = ""
    partitions: list[DescribeQuorumRequestPartitionData] = field(default_factory=list)


@dataclass(slots=True)
class DescribeQuorumRequest:
    """The request."""

    topics: list[DescribeQuorumRequestTopicData] = field(default_factory=list)


@dataclass(slots=True)
class ReplicaState:
    """``current_voters`` of DescribeQuorumResponsePartitionData, ``observers`` of DescribeQuorumResponsePartitionData."""

    replica_id: int = 0
    replica_directory_id: UUID = ZERO_UUID
    log_end_offset: int = 0
    last_fetch_timestamp: int = -1
    last_caught_up_timestamp: int = -1


@dataclass(slots=True)
class DescribeQuorumResponsePartitionData:
    """``partitions`` of DescribeQuorumResponseTopicData."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""
    leader_id: int = 0
    leader_epoch: int = 0
    high_watermark: int = 0
    current_voters: list[ReplicaState] = field(default_factory=list)
    observers: list[ReplicaState] = field(default_factory=list)


@dataclass(slots=True)
class DescribeQuorumResponseTopicData:
    """``topics`` of DescribeQuorumResponse."""

    topic_name: str = ""
    partitions: list[DescribeQuorumResponsePartitionData] = field(default_factory=list)


@dataclass(slots=True)
class Listener:
    """``listeners`` of Node."""

    name: str = ""
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class Node:
    """``nodes`` of DescribeQuorumResponse."""

    node_id: int = 0
    listeners: list[Listener] = field(default_factory=list)


@dataclass(slots=True)
class DescribeQuorumResponse:
    """The response."""

    error_code: int = 0
    error_message: str | None = ""
    topics: list[DescribeQuorumResponseTopicData] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DescribeQuorumRequestPartitionData": (("partition_index", "int32", False, 0, 2, False, None, 0),),
    "DescribeQuorumRequestTopicData": (
        ("topic_name", "string", False, 0, 2, False, None, ""),
        ("partitions", "DescribeQuorumRequestPartitionData", True, 0, 2, False, None, ""),
    ),
    "DescribeQuorumRequest": (("topics", "DescribeQuorumRequestTopicData", True, 0, 2, False, None, ""),),
    "ReplicaState": (
        ("replica_id", "int32", False, 0, 2, False, None, 0),
        ("replica_directory_id", "uuid", False, 2, 2, False, None, ""),
        ("log_end_offset", "int64", False, 0, 2, False, None, 0),
        ("last_fetch_timestamp", "int64", False, 1, 2, False, None, -1),
        ("last_caught_up_timestamp", "int64", False, 1, 2, False, None, -1),
    ),
    "DescribeQuorumResponsePartitionData": (
        ("partition_index", "int32", False, 0, 2, False, None, 0),
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("error_message", "string", False, 2, 2, True, None, ""),
        ("leader_id", "int32", False, 0, 2, False, None, 0),
        ("leader_epoch", "int32", False, 0, 2, False, None, 0),
        ("high_watermark", "int64", False, 0, 2, False, None, 0),
        ("current_voters", "ReplicaState", True, 0, 2, False, None, ""),
        ("observers", "ReplicaState", True, 0, 2, False, None, ""),
    ),
    "DescribeQuorumResponseTopicData": (
        ("topic_name", "string", False, 0, 2, False, None, ""),
        ("partitions", "DescribeQuorumResponsePartitionData", True, 0, 2, False, None, ""),
    ),
    "Listener": (
        ("name", "string", False, 2, 2, False, None, ""),
        ("host", "string", False, 2, 2, False, None, ""),
        ("port", "uint16", False, 2, 2, False, None, 0),
    ),
    "Node": (
        ("node_id", "int32", False, 2, 2, False, None, 0),
        ("listeners", "Listener", True, 2, 2, False, None, ""),
    ),
    "DescribeQuorumResponse": (
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("error_message", "string", False, 2, 2, True, None, ""),
        ("topics", "DescribeQuorumResponseTopicData", True, 0, 2, False, None, ""),
        ("nodes", "Node", True, 2, 2, False, None, ""),
    ),
}
