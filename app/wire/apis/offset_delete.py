"""OffsetDelete, key 47, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class OffsetDeleteRequestPartition:
    """``partitions`` of OffsetDeleteRequestTopic."""

    partition_index: int = 0


@dataclass(slots=True)
class OffsetDeleteRequestTopic:
    """``topics`` of OffsetDeleteRequest."""

    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetDeleteRequest:
    """The request."""

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = field(default_factory=list)


@dataclass(slots=True)
class OffsetDeleteResponsePartition:
    """``partitions`` of OffsetDeleteResponseTopic."""

    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class OffsetDeleteResponseTopic:
    """``topics`` of OffsetDeleteResponse."""

    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetDeleteResponse:
    """The response."""

    error_code: int = 0
    throttle_time_ms: int = 0
    topics: list[OffsetDeleteResponseTopic] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "OffsetDeleteRequestPartition": (("partition_index", "int32", False, 0, 0, False, None, 0),),
    "OffsetDeleteRequestTopic": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("partitions", "OffsetDeleteRequestPartition", True, 0, 0, False, None, ""),
    ),
    "OffsetDeleteRequest": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("topics", "OffsetDeleteRequestTopic", True, 0, 0, False, None, ""),
    ),
    "OffsetDeleteResponsePartition": (
        ("partition_index", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
    ),
    "OffsetDeleteResponseTopic": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("partitions", "OffsetDeleteResponsePartition", True, 0, 0, False, None, ""),
    ),
    "OffsetDeleteResponse": (
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("topics", "OffsetDeleteResponseTopic", True, 0, 0, False, None, ""),
    ),
}
