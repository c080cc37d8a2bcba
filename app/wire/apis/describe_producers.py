"""DescribeProducers, key 61, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class TopicRequest:
    """``topics`` of DescribeProducersRequest."""

    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DescribeProducersRequest:
    """The request."""

    topics: list[TopicRequest] = field(default_factory=list)


@dataclass(slots=True)
class ProducerState:
    """``active_producers`` of PartitionResponse."""

    producer_id: int = 0
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    current_txn_start_offset: int = -1


@dataclass(slots=True)
class PartitionResponse:
    """``partitions`` of TopicResponse."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = field(default_factory=list)


@dataclass(slots=True)
class TopicResponse:
    """``topics`` of DescribeProducersResponse."""

    name: str = ""
    partitions: list[PartitionResponse] = field(default_factory=list)


@dataclass(slots=True)
class DescribeProducersResponse:
    """The response."""

    throttle_time_ms: int = 0
    topics: list[TopicResponse] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "TopicRequest": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("partition_indexes", "int32", True, 0, 0, False, None, ""),
    ),
    "DescribeProducersRequest": (("topics", "TopicRequest", True, 0, 0, False, None, ""),),
    "ProducerState": (
        ("producer_id", "int64", False, 0, 0, False, None, 0),
        ("producer_epoch", "int32", False, 0, 0, False, None, 0),
        ("last_sequence", "int32", False, 0, 0, False, None, -1),
        ("last_timestamp", "int64", False, 0, 0, False, None, -1),
        ("coordinator_epoch", "int32", False, 0, 0, False, None, 0),
        ("current_txn_start_offset", "int64", False, 0, 0, False, None, -1),
    ),
    "PartitionResponse": (
        ("partition_index", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
        ("active_producers", "ProducerState", True, 0, 0, False, None, ""),
    ),
    "TopicResponse": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("partitions", "PartitionResponse", True, 0, 0, False, None, ""),
    ),
    "DescribeProducersResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("topics", "TopicResponse", True, 0, 0, False, None, ""),
    ),
}
