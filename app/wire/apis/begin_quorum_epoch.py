"""BeginQuorumEpoch, key 53, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class BeginQuorumEpochRequestPartitionData:
    """``partitions`` of BeginQuorumEpochRequestTopicData."""

    partition_index: int = 0
    voter_directory_id: UUID = ZERO_UUID
    leader_id: int = 0
    leader_epoch: int = 0


@dataclass(slots=True)
class BeginQuorumEpochRequestTopicData:
    """``topics`` of BeginQuorumEpochRequest."""

    topic_name: str = ""
    partitions: list[BeginQuorumEpochRequestPartitionData] = field(default_factory=list)


@dataclass(slots=True)
class LeaderEndpoint:
    """``leader_endpoints`` of BeginQuorumEpochRequest."""

    name: str = ""
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class BeginQuorumEpochRequest:
    """The request."""

    cluster_id: str | None = None
    voter_id: int = -1
    topics: list[BeginQuorumEpochRequestTopicData] = field(default_factory=list)
    leader_endpoints: list[LeaderEndpoint] = field(default_factory=list)


@dataclass(slots=True)
class BeginQuorumEpochResponsePartitionData:
    """``partitions`` of BeginQuorumEpochResponseTopicData."""

    partition_index: int = 0
    error_code: int = 0
    leader_id: int = 0
    leader_epoch: int = 0


@dataclass(slots=True)
class BeginQuorumEpochResponseTopicData:
    """``topics`` of BeginQuorumEpochResponse."""

    topic_name: str = ""
    partitions: list[BeginQuorumEpochResponsePartitionData] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint:
    """``node_endpoints`` of BeginQuorumEpochResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class BeginQuorumEpochResponse:
    """The response."""

    error_code: int = 0
    topics: list[BeginQuorumEpochResponseTopicData] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "BeginQuorumEpochRequestPartitionData": (
        ("partition_index", "int32", False, 0, 1, False, None, 0),
        ("voter_directory_id", "uuid", False, 1, 1, False, None, ""),
        ("leader_id", "int32", False, 0, 1, False, None, 0),
        ("leader_epoch", "int32", False, 0, 1, False, None, 0),
    ),
    "BeginQuorumEpochRequestTopicData": (
        ("topic_name", "string", False, 0, 1, False, None, ""),
        ("partitions", "BeginQuorumEpochRequestPartitionData", True, 0, 1, False, None, ""),
    ),
    "LeaderEndpoint": (
        ("name", "string", False, 1, 1, False, None, ""),
        ("host", "string", False, 1, 1, False, None, ""),
        ("port", "uint16", False, 1, 1, False, None, 0),
    ),
    "BeginQuorumEpochRequest": (
        ("cluster_id", "string", False, 0, 1, True, None, None),
        ("voter_id", "int32", False, 1, 1, False, None, -1),
        ("topics", "BeginQuorumEpochRequestTopicData", True, 0, 1, False, None, ""),
        ("leader_endpoints", "LeaderEndpoint", True, 1, 1, False, None, ""),
    ),
    "BeginQuorumEpochResponsePartitionData": (
        ("partition_index", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("leader_id", "int32", False, 0, 1, False, None, 0),
        ("leader_epoch", "int32", False, 0, 1, False, None, 0),
    ),
    "BeginQuorumEpochResponseTopicData": (
        ("topic_name", "string", False, 0, 1, False, None, ""),
        ("partitions", "BeginQuorumEpochResponsePartitionData", True, 0, 1, False, None, ""),
    ),
    "NodeEndpoint": (
        ("node_id", "int32", False, 1, 1, False, None, 0),
        ("host", "string", False, 1, 1, False, None, ""),
        ("port", "uint16", False, 1, 1, False, None, 0),
    ),
    "BeginQuorumEpochResponse": (
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("topics", "BeginQuorumEpochResponseTopicData", True, 0, 1, False, None, ""),
        ("node_endpoints", "NodeEndpoint", True, 1, 1, False, 0, ""),
    ),
}
