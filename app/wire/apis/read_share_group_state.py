"""ReadShareGroupState, key 84, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class PartitionData:
    """``partitions`` of ReadStateData."""

    partition: int = 0
    leader_epoch: int = 0


@dataclass(slots=True)
class ReadStateData:
    """``topics`` of ReadShareGroupStateRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True)
class ReadShareGroupStateRequest:
    """The request."""

    group_id: str = ""
    topics: list[ReadStateData] = field(default_factory=list)


@dataclass(slots=True)
class StateBatch:
    """``state_batches`` of PartitionResult."""

    first_offset: int = 0
    last_offset: int = 0
    delivery_state: int = 0
    delivery_count: int = 0


@dataclass(slots=True)
class PartitionResult:
    """``partitions`` of ReadStateResult."""

    partition: int = 0
    error_code: int = 0
    error_message: str | None = None
    state_epoch: int = 0
    start_offset: int = 0
    state_batches: list[StateBatch] = field(default_factory=list)


@dataclass(slots=True)
class ReadStateResult:
    """``results`` of ReadShareGroupStateResponse."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class ReadShareGroupStateResponse:
    """The response."""

    results: list[ReadStateResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "PartitionData": (
        ("partition", "int32", False, 0, 0, False, None, 0),
        ("leader_epoch", "int32", False, 0, 0, False, None, 0),
    ),
    "ReadStateData": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "PartitionData", True, 0, 0, False, None, ""),
    ),
    "ReadShareGroupStateRequest": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("topics", "ReadStateData", True, 0, 0, False, None, ""),
    ),
    "StateBatch": (
        ("first_offset", "int64", False, 0, 0, False, None, 0),
        ("last_offset", "int64", False, 0, 0, False, None, 0),
        ("delivery_state", "int8", False, 0, 0, False, None, 0),
        ("delivery_count", "int16", False, 0, 0, False, None, 0),
    ),
    "PartitionResult": (
        ("partition", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
        ("state_epoch", "int32", False, 0, 0, False, None, 0),
        ("start_offset", "int64", False, 0, 0, False, None, 0),
        ("state_batches", "StateBatch", True, 0, 0, False, None, ""),
    ),
    "ReadStateResult": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "PartitionResult", True, 0, 0, False, None, ""),
    ),
    "ReadShareGroupStateResponse": (("results", "ReadStateResult", True, 0, 0, False, None, ""),),
}
