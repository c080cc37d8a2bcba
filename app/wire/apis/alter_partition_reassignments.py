"""AlterPartitionReassignments, key 45, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ReassignablePartition:
    """``partitions`` of ReassignableTopic."""

    partition_index: int = 0
    replicas: list[int] | None = None


@dataclass(slots=True)
class ReassignableTopic:
    """``topics`` of AlterPartitionReassignmentsRequest."""

    name: str = ""
    partitions: list[ReassignablePartition] = field(default_factory=list)


@dataclass(slots=True)
class AlterPartitionReassignmentsRequest:
    """The request."""

    timeout_ms: int = 60000
    allow_replication_factor_change: bool = True
    topics: list[ReassignableTopic] = field(default_factory=list)


@dataclass(slots=True)
class ReassignablePartitionResponse:
    """``partitions`` of ReassignableTopicResponse."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""


@dataclass(slots=True)
class ReassignableTopicResponse:
    """``responses`` of AlterPartitionReassignmentsResponse."""

    name: str = ""
    partitions: list[ReassignablePartitionResponse] = field(default_factory=list)


@dataclass(slots=True)
class AlterPartitionReassignmentsResponse:
    """The response."""

    throttle_time_ms: int = 0
    allow_replication_factor_change: bool = True
    error_code: int = 0
    error_message: str | None = ""
    responses: list[ReassignableTopicResponse] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ReassignablePartition": (
        ("partition_index", "int32", False, 0, 1, False, None, 0),
        ("replicas", "int32", True, 0, 1, True, None, None),
    ),
    "ReassignableTopic": (
        ("name", "string", False, 0, 1, False, None, ""),
        ("partitions", "ReassignablePartition", True, 0, 1, False, None, ""),
    ),
    "AlterPartitionReassignmentsRequest": (
        ("timeout_ms", "int32", False, 0, 1, False, None, 60000),
        ("allow_replication_factor_change", "bool", False, 1, 1, False, None, True),
        ("topics", "ReassignableTopic", True, 0, 1, False, None, ""),
    ),
    "ReassignablePartitionResponse": (
        ("partition_index", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, ""),
    ),
    "ReassignableTopicResponse": (
        ("name", "string", False, 0, 1, False, None, ""),
        ("partitions", "ReassignablePartitionResponse", True, 0, 1, False, None, ""),
    ),
    "AlterPartitionReassignmentsResponse": (
        ("throttle_time_ms", "int32", False, 0, 1, False, None, 0),
        ("allow_replication_factor_change", "bool", False, 1, 1, False, None, True),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, ""),
        ("responses", "ReassignableTopicResponse", True, 0, 1, False, None, ""),
    ),
}
