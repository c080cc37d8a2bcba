"""Vote, key 52, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class VoteRequestPartitionData:
    """``partitions`` of VoteRequestTopicData."""

    partition_index: int = 0
    replica_epoch: int = 0
    replica_id: int = 0
    replica_directory_id: UUID = ZERO_UUID
    voter_directory_id: UUID = ZERO_UUID
    last_offset_epoch: int = 0
    last_offset: int = 0
    pre_vote: bool = False


@dataclass(slots=True)
class VoteRequestTopicData:
    """``topics`` of VoteRequest."""

    topic_name: str = ""
    partitions: list[VoteRequestPartitionData] = field(default_factory=list)


@dataclass(slots=True)
class VoteRequest:
    """The request."""

    cluster_id: str | None = None
    voter_id: int = -1
    topics: list[VoteRequestTopicData] = field(default_factory=list)


@dataclass(slots=True)
class VoteResponsePartitionData:
    """``partitions`` of VoteResponseTopicData."""

    partition_index: int = 0
    error_code: int = 0
    leader_id: int = 0
    leader_epoch: int = 0
    vote_granted: bool = False


@dataclass(slots=True)
class VoteResponseTopicData:
    """``topics`` of VoteResponse."""

    topic_name: str = ""
    partitions: list[VoteResponsePartitionData] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint:
    """``node_endpoints`` of VoteResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0


@dataclass(slots=True)
class VoteResponse:
    """The response."""

    error_code: int = 0
    topics: list[VoteResponseTopicData] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "VoteRequestPartitionData": (
        ("partition_index", "int32", False, 0, 2, False, None, 0),
        ("replica_epoch", "int32", False, 0, 2, False, None, 0),
        ("replica_id", "int32", False, 0, 2, False, None, 0),
        ("replica_directory_id", "uuid", False, 1, 2, False, None, ""),
        ("voter_directory_id", "uuid", False, 1, 2, False, None, ""),
        ("last_offset_epoch", "int32", False, 0, 2, False, None, 0),
        ("last_offset", "int64", False, 0, 2, False, None, 0),
        ("pre_vote", "bool", False, 2, 2, False, None, False),
    ),
    "VoteRequestTopicData": (
        ("topic_name", "string", False, 0, 2, False, None, ""),
        ("partitions", "VoteRequestPartitionData", True, 0, 2, False, None, ""),
    ),
    "VoteRequest": (
        ("cluster_id", "string", False, 0, 2, True, None, None),
        ("voter_id", "int32", False, 1, 2, False, None, -1),
        ("topics", "VoteRequestTopicData", True, 0, 2, False, None, ""),
    ),
    "VoteResponsePartitionData": (
        ("partition_index", "int32", False, 0, 2, False, None, 0),
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("leader_id", "int32", False, 0, 2, False, None, 0),
        ("leader_epoch", "int32", False, 0, 2, False, None, 0),
        ("vote_granted", "bool", False, 0, 2, False, None, False),
    ),
    "VoteResponseTopicData": (
        ("topic_name", "string", False, 0, 2, False, None, ""),
        ("partitions", "VoteResponsePartitionData", True, 0, 2, False, None, ""),
    ),
    "NodeEndpoint": (
        ("node_id", "int32", False, 1, 2, False, None, 0),
        ("host", "string", False, 1, 2, False, None, ""),
        ("port", "uint16", False, 1, 2, False, None, 0),
    ),
    "VoteResponse": (
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("topics", "VoteResponseTopicData", True, 0, 2, False, None, ""),
        ("node_endpoints", "NodeEndpoint", True, 1, 2, False, 0, ""),
    ),
}
