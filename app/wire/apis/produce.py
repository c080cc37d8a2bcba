"""Produce, key 0, versions 3 to 13. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class PartitionProduceData:
    """``partition_data`` of TopicProduceData."""

    index: int = 0
    records: bytes | memoryview | None = None


@dataclass(slots=True)
class TopicProduceData:
    """``topic_data`` of ProduceRequest."""

    topic_id: UUID = ZERO_UUID
    name: str = ""
    partition_data: list[PartitionProduceData] = field(default_factory=list)


@dataclass(slots=True)
class ProduceRequest:
    """The request."""

    transactional_id: str | None = None
    acks: int = 0
    timeout_ms: int = 0
    topic_data: list[TopicProduceData] = field(default_factory=list)


@dataclass(slots=True)
class BatchIndexAndErrorMessage:
    """``record_errors`` of PartitionProduceResponse."""

    batch_index: int = 0
    batch_index_error_message: str | None = None


@dataclass(slots=True)
class LeaderIdAndEpoch:
    """``current_leader`` of PartitionProduceResponse."""

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class PartitionProduceResponse:
    """``partition_responses`` of TopicProduceResponse."""

    index: int = 0
    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: list[BatchIndexAndErrorMessage] = field(default_factory=list)
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)


@dataclass(slots=True)
class TopicProduceResponse:
    """``responses`` of ProduceResponse."""

    topic_id: UUID = ZERO_UUID
    name: str = ""
    partition_responses: list[PartitionProduceResponse] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint:
    """``node_endpoints`` of ProduceResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


@dataclass(slots=True)
class ProduceResponse:
    """The response."""

    responses: list[TopicProduceResponse] = field(default_factory=list)
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "PartitionProduceData": (
        ("index", "int32", False, 3, 13, False, None, 0),
        ("records", "records", False, 3, 13, True, None, None),
    ),
    "TopicProduceData": (
        ("topic_id", "uuid", False, 13, 13, False, None, ""),
        ("name", "string", False, 3, 12, False, None, ""),
        ("partition_data", "PartitionProduceData", True, 3, 13, False, None, ""),
    ),
    "ProduceRequest": (
        ("transactional_id", "string", False, 3, 13, True, None, None),
        ("acks", "int16", False, 3, 13, False, None, 0),
        ("timeout_ms", "int32", False, 3, 13, False, None, 0),
        ("topic_data", "TopicProduceData", True, 3, 13, False, None, ""),
    ),
    "BatchIndexAndErrorMessage": (
        ("batch_index", "int32", False, 8, 13, False, None, 0),
        ("batch_index_error_message", "string", False, 8, 13, True, None, None),
    ),
    "LeaderIdAndEpoch": (
        ("leader_id", "int32", False, 10, 13, False, None, -1),
        ("leader_epoch", "int32", False, 10, 13, False, None, -1),
    ),
    "PartitionProduceResponse": (
        ("index", "int32", False, 3, 13, False, None, 0),
        ("error_code", "int16", False, 3, 13, False, None, 0),
        ("base_offset", "int64", False, 3, 13, False, None, 0),
        ("log_append_time_ms", "int64", False, 3, 13, False, None, -1),
        ("log_start_offset", "int64", False, 5, 13, False, None, -1),
        ("record_errors", "BatchIndexAndErrorMessage", True, 8, 13, False, None, ""),
        ("error_message", "string", False, 8, 13, True, None, None),
        ("current_leader", "LeaderIdAndEpoch", False, 10, 13, False, 0, ""),
    ),
    "TopicProduceResponse": (
        ("topic_id", "uuid", False, 13, 13, False, None, ""),
        ("name", "string", False, 3, 12, False, None, ""),
        ("partition_responses", "PartitionProduceResponse", True, 3, 13, False, None, ""),
    ),
    "NodeEndpoint": (
        ("node_id", "int32", False, 10, 13, False, None, 0),
        ("host", "string", False, 10, 13, False, None, ""),
        ("port", "int32", False, 10, 13, False, None, 0),
        ("rack", "string", False, 10, 13, True, None, None),
    ),
    "ProduceResponse": (
        ("responses", "TopicProduceResponse", True, 3, 13, False, None, ""),
        ("throttle_time_ms", "int32", False, 3, 13, False, None, 0),
        ("node_endpoints", "NodeEndpoint", True, 10, 13, False, 0, ""),
    ),
}
