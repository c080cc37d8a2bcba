"""OffsetForLeaderEpoch, key 23, versions 2 to 4. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class OffsetForLeaderPartition:
    """``partitions`` of OffsetForLeaderTopic."""

    partition: int = 0
    current_leader_epoch: int = -1
    leader_epoch: int = 0


@dataclass(slots=True)
class OffsetForLeaderTopic:
    """``topics`` of OffsetForLeaderEpochRequest."""

    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetForLeaderEpochRequest:
    """The request."""

    replica_id: int = -2
    topics: list[OffsetForLeaderTopic] = field(default_factory=list)


@dataclass(slots=True)
class EpochEndOffset:
    """``partitions`` of OffsetForLeaderTopicResult."""

    error_code: int = 0
    partition: int = 0
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(slots=True)
class OffsetForLeaderTopicResult:
    """``topics`` of OffsetForLeaderEpochResponse."""

    topic: str = ""
    partitions: list[EpochEndOffset] = field(default_factory=list)


@dataclass(slots=True)
class OffsetForLeaderEpochResponse:
    """The response."""

    throttle_time_ms: int = 0
    topics: list[OffsetForLeaderTopicResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "OffsetForLeaderPartition": (
        ("partition", "int32", False, 2, 4, False, None, 0),
        ("current_leader_epoch", "int32", False, 2, 4, False, None, -1),
        ("leader_epoch", "int32", False, 2, 4, False, None, 0),
    ),
    "OffsetForLeaderTopic": (
        ("topic", "string", False, 2, 4, False, None, ""),
        ("partitions", "OffsetForLeaderPartition", True, 2, 4, False, None, ""),
    ),
    "OffsetForLeaderEpochRequest": (
        ("replica_id", "int32", False, 3, 4, False, None, -2),
        ("topics", "OffsetForLeaderTopic", True, 2, 4, False, None, ""),
    ),
    "EpochEndOffset": (
        ("error_code", "int16", False, 2, 4, False, None, 0),
        ("partition", "int32", False, 2, 4, False, None, 0),
        ("leader_epoch", "int32", False, 2, 4, False, None, -1),
        ("end_offset", "int64", False, 2, 4, False, None, -1),
    ),
    "OffsetForLeaderTopicResult": (
        ("topic", "string", False, 2, 4, False, None, ""),
        ("partitions", "EpochEndOffset", True, 2, 4, False, None, ""),
    ),
    "OffsetForLeaderEpochResponse": (
        ("throttle_time_ms", "int32", False, 2, 4, False, None, 0),
        ("topics", "OffsetForLeaderTopicResult", True, 2, 4, False, None, ""),
    ),
}
