"""OffsetCommit, key 8, versions 2 to 10. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class OffsetCommitRequestPartition:
    """``partitions`` of OffsetCommitRequestTopic."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""


@dataclass(slots=True)
class OffsetCommitRequestTopic:
    """``topics`` of OffsetCommitRequest."""

    topic_id: UUID = ZERO_UUID
    name: str = ""
    partitions: list[OffsetCommitRequestPartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetCommitRequest:
    """The request."""

    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    topics: list[OffsetCommitRequestTopic] = field(default_factory=list)


@dataclass(slots=True)
class OffsetCommitResponsePartition:
    """``partitions`` of OffsetCommitResponseTopic."""

    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class OffsetCommitResponseTopic:
    """``topics`` of OffsetCommitResponse."""

    topic_id: UUID = ZERO_UUID
    name: str = ""
    partitions: list[OffsetCommitResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetCommitResponse:
    """The response."""

    throttle_time_ms: int = 0
    topics: list[OffsetCommitResponseTopic] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "OffsetCommitRequestPartition": (
        ("partition_index", "int32", False, 2, 10, False, None, 0),
        ("committed_offset", "int64", False, 2, 10, False, None, 0),
        ("committed_leader_epoch", "int32", False, 6, 10, False, None, -1),
        ("committed_metadata", "string", False, 2, 10, True, None, ""),
    ),
    "OffsetCommitRequestTopic": (
        ("topic_id", "uuid", False, 10, 10, False, None, ""),
        ("name", "string", False, 2, 9, False, None, ""),
        ("partitions", "OffsetCommitRequestPartition", True, 2, 10, False, None, ""),
    ),
    "OffsetCommitRequest": (
        ("group_id", "string", False, 2, 10, False, None, ""),
        ("generation_id_or_member_epoch", "int32", False, 2, 10, False, None, -1),
        ("member_id", "string", False, 2, 10, False, None, ""),
        ("group_instance_id", "string", False, 7, 10, True, None, None),
        ("retention_time_ms", "int64", False, 2, 4, False, None, -1),
        ("topics", "OffsetCommitRequestTopic", True, 2, 10, False, None, ""),
    ),
    "OffsetCommitResponsePartition": (
        ("partition_index", "int32", False, 2, 10, False, None, 0),
        ("error_code", "int16", False, 2, 10, False, None, 0),
    ),
    "OffsetCommitResponseTopic": (
        ("topic_id", "uuid", False, 10, 10, False, None, ""),
        ("name", "string", False, 2, 9, False, None, ""),
        ("partitions", "OffsetCommitResponsePartition", True, 2, 10, False, None, ""),
    ),
    "OffsetCommitResponse": (
        ("throttle_time_ms", "int32", False, 3, 10, False, None, 0),
        ("topics", "OffsetCommitResponseTopic", True, 2, 10, False, None, ""),
    ),
}
