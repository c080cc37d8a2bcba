"""ElectLeaders, key 43, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class TopicPartitions:
    """``topic_partitions`` of ElectLeadersRequest."""

    topic: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ElectLeadersRequest:
    """The request."""

    election_type: int = 0
    topic_partitions: list[TopicPartitions] | None = field(default_factory=list)
    timeout_ms: int = 60000


@dataclass(slots=True)
class PartitionResult:
    """``partition_result`` of ReplicaElectionResult."""

    partition_id: int = 0
    error_code: int = 0
    error_message: str | None = ""


@dataclass(slots=True)
class ReplicaElectionResult:
    """``replica_election_results`` of ElectLeadersResponse."""

    topic: str = ""
    partition_result: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class ElectLeadersResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    replica_election_results: list[ReplicaElectionResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "TopicPartitions": (
        ("topic", "string", False, 0, 2, False, None, ""),
        ("partitions", "int32", True, 0, 2, False, None, ""),
    ),
    "ElectLeadersRequest": (
        ("election_type", "int8", False, 1, 2, False, None, 0),
        ("topic_partitions", "TopicPartitions", True, 0, 2, True, None, ""),
        ("timeout_ms", "int32", False, 0, 2, False, None, 60000),
    ),
    "PartitionResult": (
        ("partition_id", "int32", False, 0, 2, False, None, 0),
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("error_message", "string", False, 0, 2, True, None, ""),
    ),
    "ReplicaElectionResult": (
        ("topic", "string", False, 0, 2, False, None, ""),
        ("partition_result", "PartitionResult", True, 0, 2, False, None, ""),
    ),
    "ElectLeadersResponse": (
        ("throttle_time_ms", "int32", False, 0, 2, False, None, 0),
        ("error_code", "int16", False, 1, 2, False, None, 0),
        ("replica_election_results", "ReplicaElectionResult", True, 0, 2, False, None, ""),
    ),
}
