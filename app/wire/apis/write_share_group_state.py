"""WriteShareGroupState, key 85, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class StateBatch:
    """``state_batches`` of PartitionData."""

    first_offset: int = 0
    last_offset: int = 0
    delivery_state: int = 0
    delivery_count: int = 0


@dataclass(slots=True)
class PartitionData:
    """``partitions`` of WriteStateData."""

    partition: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = -1
    state_batches: list[StateBatch] = field(default_factory=list)


@dataclass(slots=True)
class WriteStateData:
    """``topics`` of WriteShareGroupStateRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True)
class WriteShareGroupStateRequest:
    """The request."""

    group_id: str = ""
    topics: list[WriteStateData] = field(default_factory=list)


@dataclass(slots=True)
class PartitionResult:
    """``partitions`` of WriteStateResult."""

    partition: int = 0
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class WriteStateResult:
    """``results`` of WriteShareGroupStateResponse."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class WriteShareGroupStateResponse:
    """The response."""

    results: list[WriteStateResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "StateBatch": (
        ("first_offset", "int64", False, 0, 1, False, None, 0),
        ("last_offset", "int64", False, 0, 1, False, None, 0),
        ("delivery_state", "int8", False, 0, 1, False, None, 0),
        ("delivery_count", "int16", False, 0, 1, False, None, 0),
    ),
    "PartitionData": (
        ("partition", "int32", False, 0, 1, False, None, 0),
        ("state_epoch", "int32", False, 0, 1, False, None, 0),
        ("leader_epoch", "int32", False, 0, 1, False, None, 0),
        ("start_offset", "int64", False, 0, 1, False, None, 0),
        ("delivery_complete_count", "int32", False, 1, 1, False, None, -1),
        ("state_batches", "StateBatch", True, 0, 1, False, None, ""),
    ),
    "WriteStateData": (
        ("topic_id", "uuid", False, 0, 1, False, None, ""),
        ("partitions", "PartitionData", True, 0, 1, False, None, ""),
    ),
    "WriteShareGroupStateRequest": (
        ("group_id", "string", False, 0, 1, False, None, ""),
        ("topics", "WriteStateData", True, 0, 1, False, None, ""),
    ),
    "PartitionResult": (
        ("partition", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, None),
    ),
    "WriteStateResult": (
        ("topic_id", "uuid", False, 0, 1, False, None, ""),
        ("partitions", "PartitionResult", True, 0, 1, False, None, ""),
    ),
    "WriteShareGroupStateResponse": (("results", "WriteStateResult", True, 0, 1, False, None, ""),),
}
