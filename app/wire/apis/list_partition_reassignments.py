"""ListPartitionReassignments, key 46, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ListPartitionReassignmentsTopics:
    """``topics`` of ListPartitionReassignmentsRequest."""

    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ListPartitionReassignmentsRequest:
    """The request."""

    timeout_ms: int = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = field(default_factory=list)


@dataclass(slots=True)
class OngoingPartitionReassignment:
    """``partitions`` of OngoingTopicReassignment."""

    partition_index: int = 0
    replicas: list[int] = field(default_factory=list)
    adding_replicas: list[int] = field(default_factory=list)
    removing_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OngoingTopicReassignment:
    """``topics`` of ListPartitionReassignmentsResponse."""

    name: str = ""
    partitions: list[OngoingPartitionReassignment] = field(default_factory=list)


@dataclass(slots=True)
class ListPartitionReassignmentsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    topics: list[OngoingTopicReassignment] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ListPartitionReassignmentsTopics": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("partition_indexes", "int32", True, 0, 0, False, None, ""),
    ),
    "ListPartitionReassignmentsRequest": (
        ("timeout_ms", "int32", False, 0, 0, False, None, 60000),
        ("topics", "ListPartitionReassignmentsTopics", True, 0, 0, True, None, ""),
    ),
    "OngoingPartitionReassignment": (
        ("partition_index", "int32", False, 0, 0, False, None, 0),
        ("replicas", "int32", True, 0, 0, False, None, ""),
        ("adding_replicas", "int32", True, 0, 0, False, None, ""),
        ("removing_replicas", "int32", True, 0, 0, False, None, ""),
    ),
    "OngoingTopicReassignment": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("partitions", "OngoingPartitionReassignment", True, 0, 0, False, None, ""),
    ),
    "ListPartitionReassignmentsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, ""),
        ("topics", "OngoingTopicReassignment", True, 0, 0, False, None, ""),
    ),
}
