"""ShareAcknowledge, key 79, versions 1 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class AcknowledgementBatch:
    """``acknowledgement_batches`` of AcknowledgePartition."""

    first_offset: int = 0
    last_offset: int = 0
    acknowledge_types: list[int] = field(default_factory=list)


@dataclass(slots=True)
class AcknowledgePartition:
    """``partitions`` of AcknowledgeTopic."""

    partition_index: int = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field(default_factory=list)


@dataclass(slots=True)
class AcknowledgeTopic:
    """``topics`` of ShareAcknowledgeRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[AcknowledgePartition] = field(default_factory=list)


@dataclass(slots=True)
class ShareAcknowledgeRequest:
    """The request."""

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int = 0
    is_renew_ack: bool = False
    topics: list[AcknowledgeTopic] = field(default_factory=list)


@dataclass(slots=True)
class LeaderIdAndEpoch:
    """``current_leader`` of PartitionData."""

    leader_id: int = 0
    leader_epoch: int = 0


@dataclass(slots=True)
class PartitionData:
    """``partitions`` of ShareAcknowledgeTopicResponse."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)


@dataclass(slots=True)
class ShareAcknowledgeTopicResponse:
    """``responses`` of ShareAcknowledgeResponse."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint:
    """``node_endpoints`` of ShareAcknowledgeResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


@dataclass(slots=True)
class ShareAcknowledgeResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    responses: list[ShareAcknowledgeTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "AcknowledgementBatch": (
        ("first_offset", "int64", False, 1, 2, False, None, 0),
        ("last_offset", "int64", False, 1, 2, False, None, 0),
        ("acknowledge_types", "int8", True, 1, 2, False, None, ""),
    ),
    "AcknowledgePartition": (
        ("partition_index", "int32", False, 1, 2, False, None, 0),
        ("acknowledgement_batches", "AcknowledgementBatch", True, 1, 2, False, None, ""),
    ),
    "AcknowledgeTopic": (
        ("topic_id", "uuid", False, 1, 2, False, None, ""),
        ("partitions", "AcknowledgePartition", True, 1, 2, False, None, ""),
    ),
    "ShareAcknowledgeRequest": (
        ("group_id", "string", False, 1, 2, True, None, None),
        ("member_id", "string", False, 1, 2, True, None, ""),
        ("share_session_epoch", "int32", False, 1, 2, False, None, 0),
        ("is_renew_ack", "bool", False, 2, 2, False, None, False),
        ("topics", "AcknowledgeTopic", True, 1, 2, False, None, ""),
    ),
    "LeaderIdAndEpoch": (
        ("leader_id", "int32", False, 1, 2, False, None, 0),
        ("leader_epoch", "int32", False, 1, 2, False, None, 0),
    ),
    "PartitionData": (
        ("partition_index", "int32", False, 1, 2, False, None, 0),
        ("error_code", "int16", False, 1, 2, False, None, 0),
        ("error_message", "string", False, 1, 2, True, None, None),
        ("current_leader", "LeaderIdAndEpoch", False, 1, 2, False, None, ""),
    ),
    "ShareAcknowledgeTopicResponse": (
        ("topic_id", "uuid", False, 1, 2, False, None, ""),
        ("partitions", "PartitionData", True, 1, 2, False, None, ""),
    ),
    "NodeEndpoint": (
        ("node_id", "int32", False, 1, 2, False, None, 0),
        ("host", "string", False, 1, 2, False, None, ""),
        ("port", "int32", False, 1, 2, False, None, 0),
        ("rack", "string", False, 1, 2, True, None, None),
    ),
    "ShareAcknowledgeResponse": (
        ("throttle_time_ms", "int32", False, 1, 2, False, None, 0),
        ("error_code", "int16", False, 1, 2, False, None, 0),
        ("error_message", "string", False, 1, 2, True, None, None),
        ("acquisition_lock_timeout_ms", "int32", False, 2, 2, False, None, 0),
        ("responses", "ShareAcknowledgeTopicResponse", True, 1, 2, False, None, ""),
        ("node_endpoints", "NodeEndpoint", True, 1, 2, False, None, ""),
    ),
}
