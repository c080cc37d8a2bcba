"""DescribeTopicPartitions, key 75, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class TopicRequest:
    """``topics`` of DescribeTopicPartitionsRequest."""

    name: str = ""


@dataclass(slots=True)
class Cursor:
    """``cursor`` of DescribeTopicPartitionsRequest, ``next_cursor`` of DescribeTopicPartitionsResponse."""

    topic_name: str = ""
    partition_index: int = 0


@dataclass(slots=True)
class DescribeTopicPartitionsRequest:
    """The request."""

    topics: list[TopicRequest] = field(default_factory=list)
    response_partition_limit: int = 2000
    cursor: Cursor | None = None


@dataclass(slots=True)
class DescribeTopicPartitionsResponsePartition:
    """``partitions`` of DescribeTopicPartitionsResponseTopic."""

    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = field(default_factory=list)
    isr_nodes: list[int] = field(default_factory=list)
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None
    offline_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DescribeTopicPartitionsResponseTopic:
    """``topics`` of DescribeTopicPartitionsResponse."""

    error_code: int = 0
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int = -2147483648


@dataclass(slots=True)
class DescribeTopicPartitionsResponse:
    """The response."""

    throttle_time_ms: int = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = field(default_factory=list)
    next_cursor: Cursor | None = None


FIELDS: Final[Rows] = {
    "TopicRequest": (("name", "string", False, 0, 0, False, None, ""),),
    "Cursor": (
        ("topic_name", "string", False, 0, 0, False, None, ""),
        ("partition_index", "int32", False, 0, 0, False, None, 0),
    ),
    "DescribeTopicPartitionsRequest": (
        ("topics", "TopicRequest", True, 0, 0, False, None, ""),
        ("response_partition_limit", "int32", False, 0, 0, False, None, 2000),
        ("cursor", "Cursor", False, 0, 0, True, None, None),
    ),
    "DescribeTopicPartitionsResponsePartition": (
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("partition_index", "int32", False, 0, 0, False, None, 0),
        ("leader_id", "int32", False, 0, 0, False, None, 0),
        ("leader_epoch", "int32", False, 0, 0, False, None, -1),
        ("replica_nodes", "int32", True, 0, 0, False, None, ""),
        ("isr_nodes", "int32", True, 0, 0, False, None, ""),
        ("eligible_leader_replicas", "int32", True, 0, 0, True, None, None),
        ("last_known_elr", "int32", True, 0, 0, True, None, None),
        ("offline_replicas", "int32", True, 0, 0, False, None, ""),
    ),
    "DescribeTopicPartitionsResponseTopic": (
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("name", "string", False, 0, 0, True, None, ""),
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("is_internal", "bool", False, 0, 0, False, None, False),
        ("partitions", "DescribeTopicPartitionsResponsePartition", True, 0, 0, False, None, ""),
        ("topic_authorized_operations", "int32", False, 0, 0, False, None, -2147483648),
    ),
    "DescribeTopicPartitionsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("topics", "DescribeTopicPartitionsResponseTopic", True, 0, 0, False, None, ""),
        ("next_cursor", "Cursor", False, 0, 0, True, None, None),
    ),
}
