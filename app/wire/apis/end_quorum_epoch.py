"""EndQuorumEpoch, key 54, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class ReplicaInfo:
    """``preferred_candidates`` of EndQuorumEpochRequestPartitionData."""

    candidate_id: int = 0
    candidate_directory_id: UUID = ZERO_UUID


@dataclass(slots=True)
class EndQuorumEpochRequestPartitionData:
    """``partitions`` of EndQuorumEpochRequestTopicData."""

    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = 0
    preferred_candidates: list[ReplicaInfo] = field(default_factory=list)
    preferred_successors: list[int] = field(default_factory=list)


@dataclass(slots=True)
class EndQuorumEpochRequestTopicData:
    """``topics`` of EndQuorumEpochRequest."""

    topic_name: str = ""
    partitions: list[EndQuorumEpochRequestPartitionData] = field(default_factory=list)


@dataclass(slots=True)
class LeaderEndpoint:
    """``leader_endpoints`` of EndQuorumEpochRequest."""

    name: str = ""
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class EndQuorumEpochRequest:
    """The request."""

    cluster_id: str | None = None
    topics: list[EndQuorumEpochRequestTopicData] = field(default_factory=list)
    leader_endpoints: list[LeaderEndpoint] = field(default_factory=list)


@dataclass(slots=True)
class EndQuorumEpochResponsePartitionData:
    """``partitions`` of EndQuorumEpochResponseTopicData."""

    partition_index: int = 0
    error_code: int = 0
    leader_id: int = 0
    leader_epoch: int = 0


@dataclass(slots=True)
class EndQuorumEpochResponseTopicData:
    """``topics`` of EndQuorumEpochResponse."""

    topic_name: str = ""
    partitions: list[EndQuorumEpochResponsePartitionData] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint:
    """``node_endpoints`` of EndQuorumEpochResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class EndQuorumEpochResponse:
    """The response."""

    error_code: int = 0
    topics: list[EndQuorumEpochResponseTopicData] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ReplicaInfo": (
        ("candidate_id", "int32", False, 1, 1, False, None, 0),
        ("candidate_directory_id", "uuid", False, 1, 1, False, None, ""),
    ),
    "EndQuorumEpochRequestPartitionData": (
        ("partition_index", "int32", False, 0, 1, False, None, 0),
        ("leader_id", "int32", False, 0, 1, False, None, 0),
        ("leader_epoch", "int32", False, 0, 1, False, None, 0),
        ("preferred_candidates", "ReplicaInfo", True, 1, 1, False, None, ""),
        ("preferred_successors", "int32", True, 0, 0, False, None, ""),
    ),
    "EndQuorumEpochRequestTopicData": (
        ("topic_name", "string", False, 0, 1, False, None, ""),
        ("partitions", "EndQuorumEpochRequestPartitionData", True, 0, 1, False, None, ""),
    ),
    "LeaderEndpoint": (
        ("name", "string", False, 1, 1, False, None, ""),
        ("host", "string", False, 1, 1, False, None, ""),
        ("port", "uint16", False, 1, 1, False, None, 0),
    ),
    "EndQuorumEpochRequest": (
        ("cluster_id", "string", False, 0, 1, True, None, None),
        ("topics", "EndQuorumEpochRequestTopicData", True, 0, 1, False, None, ""),
        ("leader_endpoints", "LeaderEndpoint", True, 1, 1, False, None, ""),
    ),
    "EndQuorumEpochResponsePartitionData": (
        ("partition_index", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("leader_id", "int32", False, 0, 1, False, None, 0),
        ("leader_epoch", "int32", False, 0, 1, False, None, 0),
    ),
    "EndQuorumEpochResponseTopicData": (
        ("topic_name", "string", False, 0, 1, False, None, ""),
        ("partitions", "EndQuorumEpochResponsePartitionData", True, 0, 1, False, None, ""),
    ),
    "NodeEndpoint": (
        ("node_id", "int32", False, 1, 1, False, None, 0),
        ("host", "string", False, 1, 1, False, None, ""),
        ("port", "uint16", False, 1, 1, False, None, 0),
    ),
    "EndQuorumEpochResponse": (
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("topics", "EndQuorumEpochResponseTopicData", True, 0, 1, False, None, ""),
        ("node_endpoints", "NodeEndpoint", True, 1, 1, False, 0, ""),
    ),
}
