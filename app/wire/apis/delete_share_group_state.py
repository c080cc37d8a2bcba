"""DeleteShareGroupState, key 86, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class PartitionData:
    """``partitions`` of DeleteStateData."""

    partition: int = 0


@dataclass(slots=True)
class DeleteStateData:
    """``topics`` of DeleteShareGroupStateRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True)
class DeleteShareGroupStateRequest:
    """The request."""

    group_id: str = ""
    topics: list[DeleteStateData] = field(default_factory=list)


@dataclass(slots=True)
class PartitionResult:
    """``partitions`` of DeleteStateResult."""

    partition: int = 0
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class DeleteStateResult:
    """``results`` of DeleteShareGroupStateResponse."""

    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class DeleteShareGroupStateResponse:
    """The response."""

    results: list[DeleteStateResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "PartitionData": (("partition", "int32", False, 0, 0, False, None, 0),),
    "DeleteStateData": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "PartitionData", True, 0, 0, False, None, ""),
    ),
    "DeleteShareGroupStateRequest": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("topics", "DeleteStateData", True, 0, 0, False, None, ""),
    ),
    "PartitionResult": (
        ("partition", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
    ),
    "DeleteStateResult": (
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("partitions", "PartitionResult", True, 0, 0, False, None, ""),
    ),
    "DeleteShareGroupStateResponse": (("results", "DeleteStateResult", True, 0, 0, False, None, ""),),
}
