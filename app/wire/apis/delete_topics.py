"""DeleteTopics, key 20, versions 1 to 6. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class DeleteTopicState:
    """``topics`` of DeleteTopicsRequest."""

    name: str | None = None
    topic_id: UUID = ZERO_UUID


@dataclass(slots=True)
class DeleteTopicsRequest:
    """The request."""

    topics: list[DeleteTopicState] = field(default_factory=list)
    topic_names: list[str] = field(default_factory=list)
    timeout_ms: int = 0


@dataclass(slots=True)
class DeletableTopicResult:
    """``responses`` of DeleteTopicsResponse."""

    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class DeleteTopicsResponse:
    """The response."""

    throttle_time_ms: int = 0
    responses: list[DeletableTopicResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DeleteTopicState": (
        ("name", "string", False, 6, 6, True, None, None),
        ("topic_id", "uuid", False, 6, 6, False, None, ""),
    ),
    "DeleteTopicsRequest": (
        ("topics", "DeleteTopicState", True, 6, 6, False, None, ""),
        ("topic_names", "string", True, 1, 5, False, None, ""),
        ("timeout_ms", "int32", False, 1, 6, False, None, 0),
    ),
    "DeletableTopicResult": (
        ("name", "string", False, 1, 5, False, None, ""),
        ("name", "string", False, 6, 6, True, None, ""),
        ("topic_id", "uuid", False, 6, 6, False, None, ""),
        ("error_code", "int16", False, 1, 6, False, None, 0),
        ("error_message", "string", False, 5, 6, True, None, None),
    ),
    "DeleteTopicsResponse": (
        ("throttle_time_ms", "int32", False, 1, 6, False, None, 0),
        ("responses", "DeletableTopicResult", True, 1, 6, False, None, ""),
    ),
}
