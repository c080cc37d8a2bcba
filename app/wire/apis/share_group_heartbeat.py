"""ShareGroupHeartbeat, key 76, version 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class ShareGroupHeartbeatRequest:
    """The request."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None


@dataclass(slots=True)
class TopicPartitions:
    """``topic_partitions`` of Assignment."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Assignment:
    """``assignment`` of ShareGroupHeartbeatResponse."""

    topic_partitions: list[TopicPartitions] = field(default_factory=list)


@dataclass(slots=True)
class ShareGroupHeartbeatResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


FIELDS: Final[Rows] = {
    "ShareGroupHeartbeatRequest": (
        ("group_id", "string", False, 1, 1, False, None, ""),
        ("member_id", "string", False, 1, 1, False, None, ""),
        ("member_epoch", "int32", False, 1, 1, False, None, 0),
        ("rack_id", "string", False, 1, 1, True, None, None),
        ("subscribed_topic_names", "string", True, 1, 1, True, None, None),
    ),
    "TopicPartitions": (
        ("topic_id", "uuid", False, 1, 1, False, None, ""),
        ("partitions", "int32", True, 1, 1, False, None, ""),
    ),
    "Assignment": (("topic_partitions", "TopicPartitions", True, 1, 1, False, None, ""),),
    "ShareGroupHeartbeatResponse": (
        ("throttle_time_ms", "int32", False, 1, 1, False, None, 0),
        ("error_code", "int16", False, 1, 1, False, None, 0),
        ("error_message", "string", False, 1, 1, True, None, None),
        ("member_id", "string", False, 1, 1, True, None, None),
        ("member_epoch", "int32", False, 1, 1, False, None, 0),
        ("heartbeat_interval_ms", "int32", False, 1, 1, False, None, 0),
        ("assignment", "Assignment", False, 1, 1, True, None, None),
    ),
}
