"""DeleteShareGroupOffsets, key 92, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class DeleteShareGroupOffsetsRequestTopic:
    """``topics`` of DeleteShareGroupOffsetsRequest."""

    topic_name: str = ""


@dataclass(slots=True)
class DeleteShareGroupOffsetsRequest:
    """The request."""

    group_id: str = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field(default_factory=list)


@dataclass(slots=True)
class DeleteShareGroupOffsetsResponseTopic:
    """``responses`` of DeleteShareGroupOffsetsResponse."""

    topic_name: str = ""
    topic_id: UUID = ZERO_UUID
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class DeleteShareGroupOffsetsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DeleteShareGroupOffsetsRequestTopic": (("topic_name", "string", False, 0, 0, False, None, ""),),
    "DeleteShareGroupOffsetsRequest": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("topics", "DeleteShareGroupOffsetsRequestTopic", True, 0, 0, False, None, ""),
    ),
    "DeleteShareGroupOffsetsResponseTopic": (
        ("topic_name", "string", False, 0, 0, False, None, ""),
        ("topic_id", "uuid", False, 0, 0, False, None, ""),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
    ),
    "DeleteShareGroupOffsetsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
        ("responses", "DeleteShareGroupOffsetsResponseTopic", True, 0, 0, False, None, ""),
    ),
}
