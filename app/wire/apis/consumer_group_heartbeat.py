"""ConsumerGroupHeartbeat, key 68, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class TopicPartitions:
    """``topic_partitions`` of ConsumerGroupHeartbeatRequest, ``topic_partitions`` of Assignment."""

    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupHeartbeatRequest:
    """The request."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = field(default_factory=list)


@dataclass(slots=True)
class Assignment:
    """``assignment`` of ConsumerGroupHeartbeatResponse."""

    topic_partitions: list[TopicPartitions] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupHeartbeatResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


FIELDS: Final[Rows] = {
    "TopicPartitions": (
        ("topic_id", "uuid", False, 0, 1, False, None, ""),
        ("partitions", "int32", True, 0, 1, False, None, ""),
    ),
    "ConsumerGroupHeartbeatRequest": (
        ("group_id", "string", False, 0, 1, False, None, ""),
        ("member_id", "string", False, 0, 1, False, None, ""),
        ("member_epoch", "int32", False, 0, 1, False, None, 0),
        ("instance_id", "string", False, 0, 1, True, None, None),
        ("rack_id", "string", False, 0, 1, True, None, None),
        ("rebalance_timeout_ms", "int32", False, 0, 1, False, None, -1),
        ("subscribed_topic_names", "string", True, 0, 1, True, None, None),
        ("subscribed_topic_regex", "string", False, 1, 1, True, None, None),
        ("server_assignor", "string", False, 0, 1, True, None, None),
        ("topic_partitions", "TopicPartitions", True, 0, 1, True, None, ""),
    ),
    "Assignment": (("topic_partitions", "TopicPartitions", True, 0, 1, False, None, ""),),
    "ConsumerGroupHeartbeatResponse": (
        ("throttle_time_ms", "int32", False, 0, 1, False, None, 0),
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("error_message", "string", False, 0, 1, True, None, None),
        ("member_id", "string", False, 0, 1, True, None, None),
        ("member_epoch", "int32", False, 0, 1, False, None, 0),
        ("heartbeat_interval_ms", "int32", False, 0, 1, False, None, 0),
        ("assignment", "Assignment", False, 0, 1, True, None, None),
    ),
}
