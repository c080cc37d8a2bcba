"""AlterShareGroupOffsets, key 91, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class AlterShareGroupOffsetsRequestPartition:
    """``partitions`` of AlterShareGroupOffsetsRequestTopic."""

    partition_index: int = 0
    start_offset: int = 0


@dataclass(slots=True)
class AlterShareGroupOffsetsRequestTopic:
    """``topics`` of AlterShareGroupOffsetsRequest."""

    topic_name: str = ""
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field(default_factory=list)


@dataclass(slots=True)
class AlterShareGroupOffsetsRequest:
    """The request."""

    group_id: str = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = field(default_factory=list)


@dataclass(slots=True)
class AlterShareGroupOffsetsResponsePartition:
    """``partitions`` of AlterShareGroupOffsetsResponseTopic."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class AlterShareGroupOffsetsResponseTopic:
    """``responses`` of AlterShareGroupOffsetsResponse."""

    topic_name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class AlterShareGroupOffsetsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "AlterShareGroupOffsetsRequestPartition": (
        ("partition_index", "int32", False, 0, 0, False, None, 0),
        ("start_offset", "int64", False, 0, 0, False, None, 0),
    ),
    "AlterShareGroupOffsetsRequestTopic": (
        ("topic_name", "string", False, 0, 0, False, None, ""),
        ("partitions", "AlterShareGroupOffsetsRequestPartition", True, 0, 0, False, None, ""),
    ),
    "AlterShareGroupOffsetsRequest": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("topics", "AlterShareGroupOffsetsRequestTopic", True, 0, 0, False, None, ""),
    ),
    "AlterShareGroupOffsetsResponsePartition": (
        ("partition_index", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
    ),
    "AlterShareGroupOffsetsResponseTopic": (
        ("topic_name", "string", False, 0, 0, False, None, ""),
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "AlterShareGroupOffsetsResponsePartition", True, 0, 0, False, None, ""),
    ),
    "AlterShareGroupOffsetsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
        ("responses", "AlterShareGroupOffsetsResponseTopic", True, 0, 0, False, None, ""),
    ),
}
