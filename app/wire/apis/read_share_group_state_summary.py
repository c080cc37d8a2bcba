"""ReadShareGroupStateSummary, key 87, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class PartitionData:
    """``partitions`` of ReadStateSummaryData."""

    partition: int = 0
    leader_epoch: int = 0


@dataclass(slots=True)
class ReadStateSummaryData:
    """``topics`` of ReadShareGroupStateSummaryRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True)
class ReadShareGroupStateSummaryRequest:
    """The request."""

    group_id: str = ""
    topics: list[ReadStateSummaryData] = field(default_factory=list)


@dataclass(slots=True)
class PartitionResult:
    """``partitions`` of ReadStateSummaryResult."""

    partition: int = 0
    error_code: int = 0
    error_message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = -1


@dataclass(slots=True)
class ReadStateSummaryResult:
    """``results`` of ReadShareGroupStateSummaryResponse."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class ReadShareGroupStateSummaryResponse:
    """The response."""

    results: list[ReadStateSummaryResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "PartitionData": (
        ("partition", "int32", False, 0, 1, False, None, 0),
        ("leader_epoch", "int32", False, 0, 1, False, None, 0),
    ),
    "ReadStateSummaryData": (
        ("topic_id", "uuid", False, 0, 1, False, None, ""),
        ("partitions", "PartitionData", True, 0, 1, False, None, ""),
    ),
    "ReadShareGroupStateSummaryRequest": (
        ("group_id", "string", False, 0, 1, False, None, ""),
        ("topics", "ReadStateSummaryData", True, 0, 1, False, None, ""),
    ),
    "PartitionResult": (
        ("partition", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, None),
        ("state_epoch", "int32", False, 0, 1, False, None, 0),
        ("leader_epoch", "int32", False, 0, 1, False, None, 0),
        ("start_offset", "int64", False, 0, 1, False, None, 0),
        ("delivery_complete_count", "int32", False, 1, 1, False, None, -1),
    ),
    "ReadStateSummaryResult": (
        ("topic_id", "uuid", False, 0, 1, False, None, ""),
        ("partitions", "PartitionResult", True, 0, 1, False, None, ""),
    ),
    "ReadShareGroupStateSummaryResponse": (("results", "ReadStateSummaryResult", True, 0, 1, False, None, ""),),
}
