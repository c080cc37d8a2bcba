"""InitializeShareGroupState, key 83, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class PartitionData:
    """``partitions`` of InitializeStateData."""

    partition: int = 0
    state_epoch: int = 0
    start_offset: int = 0


@dataclass(slots=True)
class InitializeStateData:
    """``topics`` of InitializeShareGroupStateRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True)
class InitializeShareGroupStateRequest:
    """The request."""

    group_id: str = ""
    topics: list[InitializeStateData] = field(default_factory=list)


@dataclass(slots=True)
class PartitionResult:
    """``partitions`` of InitializeStateResult."""

    partition: int = 0
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class InitializeStateResult:
    """``results`` of InitializeShareGroupStateResponse."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class InitializeShareGroupStateResponse:
    """The response."""

    results: list[InitializeStateResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "PartitionData": (
        ("partition", "int32", False, 0, 0, False, None, 0),
        ("state_epoch", "int32", False, 0, 0, False, None, 0),
        ("start_offset", "int64", False, 0, 0, False, None, 0),
    ),
    "InitializeStateData": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "PartitionData", True, 0, 0, False, None, ""),
    ),
    "InitializeShareGroupStateRequest": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("topics", "InitializeStateData", True, 0, 0, False, None, ""),
    ),
    "PartitionResult": (
        ("partition", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
    ),
    "InitializeStateResult": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "PartitionResult", True, 0, 0, False, None, ""),
    ),
    "InitializeShareGroupStateResponse": (("results", "InitializeStateResult", True, 0, 0, False, None, ""),),
}
