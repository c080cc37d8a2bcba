"""ShareFetch, key 78, versions 1 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class AcknowledgementBatch:
    """``acknowledgement_batches`` of FetchPartition."""

    first_offset: int = 0
    last_offset: int = 0
    acknowledge_types: list[int] = field(default_factory=list)


@dataclass(slots=True)
class FetchPartition:
    """``partitions`` of FetchTopic."""

    partition_index: int = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field(default_factory=list)


@dataclass(slots=True)
class FetchTopic:
    """``topics`` of ShareFetchRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[FetchPartition] = field(default_factory=list)


@dataclass(slots=True)
class ForgottenTopic:
    """``forgotten_topics_data`` of ShareFetchRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ShareFetchRequest:
    """The request."""

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int = 0
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    max_records: int = 0
    batch_size: int = 0
    share_acquire_mode: int = 0
    is_renew_ack: bool = False
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)


@dataclass(slots=True)
class LeaderIdAndEpoch:
    """``current_leader`` of PartitionData."""

    leader_id: int = 0
    leader_epoch: int = 0


@dataclass(slots=True)
class AcquiredRecords:
    """``acquired_records`` of PartitionData."""

    first_offset: int = 0
    last_offset: int = 0
    delivery_count: int = 0


@dataclass(slots=True)
class PartitionData:
    """``partitions`` of ShareFetchableTopicResponse."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)
    records: bytes | memoryview | None = None
    acquired_records: list[AcquiredRecords] = field(default_factory=list)


@dataclass(slots=True)
class ShareFetchableTopicResponse:
    """``responses`` of ShareFetchResponse."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint:
    """``node_endpoints`` of ShareFetchResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


@dataclass(slots=True)
class ShareFetchResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    responses: list[ShareFetchableTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "AcknowledgementBatch": (
        ("first_offset", "int64", False, 1, 2, False, None, 0),
        ("last_offset", "int64", False, 1, 2, False, None, 0),
        ("acknowledge_types", "int8", True, 1, 2, False, None, ""),
    ),
    "FetchPartition": (
        ("partition_index", "int32", False, 1, 2, False, None, 0),
        ("acknowledgement_batches", "AcknowledgementBatch", True, 1, 2, False, None, ""),
    ),
    "FetchTopic": (
        ("topic_id", "uuid", False, 1, 2, False, None, ""),
        ("partitions", "FetchPartition", True, 1, 2, False, None, ""),
    ),
    "ForgottenTopic": (
        ("topic_id", "uuid", False, 1, 2, False, None, ""),
        ("partitions", "int32", True, 1, 2, False, None, ""),
    ),
    "ShareFetchRequest": (
        ("group_id", "string", False, 1, 2, True, None, None),
        ("member_id", "string", False, 1, 2, True, None, ""),
        ("share_session_epoch", "int32", False, 1, 2, False, None, 0),
        ("max_wait_ms", "int32", False, 1, 2, False, None, 0),
        ("min_bytes", "int32", False, 1, 2, False, None, 0),
        ("max_bytes", "int32", False, 1, 2, False, None, 2147483647),
        ("max_records", "int32", False, 1, 2, False, None, 0),
        ("batch_size", "int32", False, 1, 2, False, None, 0),
        ("share_acquire_mode", "int8", False, 2, 2, False, None, 0),
        ("is_renew_ack", "bool", False, 2, 2, False, None, False),
        ("topics", "FetchTopic", True, 1, 2, False, None, ""),
        ("forgotten_topics_data", "ForgottenTopic", True, 1, 2, False, None, ""),
    ),
    "LeaderIdAndEpoch": (
        ("leader_id", "int32", False, 1, 2, False, None, 0),
        ("leader_epoch", "int32", False, 1, 2, False, None, 0),
    ),
    "AcquiredRecords": (
        ("first_offset", "int64", False, 1, 2, False, None, 0),
        ("last_offset", "int64", False, 1, 2, False, None, 0),
        ("delivery_count", "int16", False, 1, 2, False, None, 0),
    ),
    "PartitionData": (
        ("partition_index", "int32", False, 1, 2, False, None, 0),
        ("error_code", "int16", False, 1, 2, False, None, 0),
        ("error_message", "string", False, 1, 2, True, None, None),
        ("acknowledge_error_code", "int16", False, 1, 2, False, None, 0),
        ("acknowledge_error_message", "string", False, 1, 2, True, None, None),
        ("current_leader", "LeaderIdAndEpoch", False, 1, 2, False, None, ""),
        ("records", "records", False, 1, 2, False, None, None),
        ("acquired_records", "AcquiredRecords", True, 1, 2, False, None, ""),
    ),
    "ShareFetchableTopicResponse": (
        ("topic_id", "uuid", False, 1, 2, False, None, ""),
        ("partitions", "PartitionData", True, 1, 2, False, None, ""),
    ),
    "NodeEndpoint": (
        ("node_id", "int32", False, 1, 2, False, None, 0),
        ("host", "string", False, 1, 2, False, None, ""),
        ("port", "int32", False, 1, 2, False, None, 0),
        ("rack", "string", False, 1, 2, True, None, None),
    ),
    "ShareFetchResponse": (
        ("throttle_time_ms", "int32", False, 1, 2, False, None, 0),
        ("error_code", "int16", False, 1, 2, False, None, 0),
        ("error_message", "string", False, 1, 2, True, None, None),
        ("acquisition_lock_timeout_ms", "int32", False, 1, 2, False, None, 0),
        ("responses", "ShareFetchableTopicResponse", True, 1, 2, False, None, ""),
        ("node_endpoints", "NodeEndpoint", True, 1, 2, False, None, ""),
    ),
}
