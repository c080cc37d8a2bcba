"""DescribeShareGroupOffsets, key 90, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class DescribeShareGroupOffsetsRequestTopic:
    """``topics`` of DescribeShareGroupOffsetsRequestGroup."""

    topic_name: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DescribeShareGroupOffsetsRequestGroup:
    """``groups`` of DescribeShareGroupOffsetsRequest."""

    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field(default_factory=list)


@dataclass(slots=True)
class DescribeShareGroupOffsetsRequest:
    """The request."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = field(default_factory=list)


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponsePartition:
    """``partitions`` of DescribeShareGroupOffsetsResponseTopic."""

    partition_index: int = 0
    start_offset: int = 0
    leader_epoch: int = 0
    lag: int = -1
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponseTopic:
    """``topics`` of DescribeShareGroupOffsetsResponseGroup."""

    topic_name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponseGroup:
    """``groups`` of DescribeShareGroupOffsetsResponse."""

    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field(default_factory=list)
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponse:
    """The response."""

    throttle_time_ms: int = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DescribeShareGroupOffsetsRequestTopic": (
        ("topic_name", "string", False, 0, 1, False, None, ""),
        ("partitions", "int32", True, 0, 1, False, None, ""),
    ),
    "DescribeShareGroupOffsetsRequestGroup": (
        ("group_id", "string", False, 0, 1, False, None, ""),
        ("topics", "DescribeShareGroupOffsetsRequestTopic", True, 0, 1, True, None, ""),
    ),
    "DescribeShareGroupOffsetsRequest": (
        ("groups", "DescribeShareGroupOffsetsRequestGroup", True, 0, 1, False, None, ""),
    ),
    "DescribeShareGroupOffsetsResponsePartition": (
        ("partition_index", "int32", False, 0, 1, False, None, 0),
        ("start_offset", "int64", False, 0, 1, False, None, 0),
        ("leader_epoch", "int32", False, 0, 1, False, None, 0),
        ("lag", "int64", False, 1, 1, False, None, -1),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, None),
    ),
    "DescribeShareGroupOffsetsResponseTopic": (
        ("topic_name", "string", False, 0, 1, False, None, ""),
        ("topic_id", "uuid", False, 0, 1, False, None, ""),
        ("partitions", "DescribeShareGroupOffsetsResponsePartition", True, 0, 1, False, None, ""),
    ),
    "DescribeShareGroupOffsetsResponseGroup": (
        ("group_id", "string", False, 0, 1, False, None, ""),
        ("topics", "DescribeShareGroupOffsetsResponseTopic", True, 0, 1, False, None, ""),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, None),
    ),
    "DescribeShareGroupOffsetsResponse": (
        ("throttle_time_ms", "int32", False, 0, 1, False, None, 0),
        ("groups", "DescribeShareGroupOffsetsResponseGroup", True, 0, 1, False, None, ""),
    ),
}
