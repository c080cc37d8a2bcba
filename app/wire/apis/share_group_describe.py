"""ShareGroupDescribe, key 77, version 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class ShareGroupDescribeRequest:
    """The request."""

    group_ids: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False


@dataclass(slots=True)
class TopicPartitions:
    """``topic_partitions`` of Assignment."""

    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Assignment:
    """``assignment`` of Member."""

    topic_partitions: list[TopicPartitions] = field(default_factory=list)


@dataclass(slots=True)
class Member:
    """``members`` of DescribedGroup."""

    member_id: str = ""
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = field(default_factory=list)
    assignment: Assignment = field(default_factory=Assignment)


@dataclass(slots=True)
class DescribedGroup:
    """``groups`` of ShareGroupDescribeResponse."""

    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: list[Member] = field(default_factory=list)
    authorized_operations: int = -2147483648


@dataclass(slots=True)
class ShareGroupDescribeResponse:
    """The response."""

    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ShareGroupDescribeRequest": (
        ("group_ids", "string", True, 1, 1, False, None, ""),
        ("include_authorized_operations", "bool", False, 1, 1, False, None, False),
    ),
    "TopicPartitions": (
        ("topic_id", "uuid", False, 1, 1, False, None, ""),
        ("topic_name", "string", False, 1, 1, False, None, ""),
        ("partitions", "int32", True, 1, 1, False, None, ""),
    ),
    "Assignment": (("topic_partitions", "TopicPartitions", True, 1, 1, False, None, ""),),
    "Member": (
        ("member_id", "string", False, 1, 1, False, None, ""),
        ("rack_id", "string", False, 1, 1, True, None, None),
        ("member_epoch", "int32", False, 1, 1, False, None, 0),
        ("client_id", "string", False, 1, 1, False, None, ""),
        ("client_host", "string", False, 1, 1, False, None, ""),
        ("subscribed_topic_names", "string", True, 1, 1, False, None, ""),
        ("assignment", "Assignment", False, 1, 1, False, None, ""),
    ),
    "DescribedGroup": (
        ("error_code", "int16", False, 1, 1, False, None, 0),
        ("error_message", "string", False, 1, 1, True, None, None),
        ("group_id", "string", False, 1, 1, False, None, ""),
        ("group_state", "string", False, 1, 1, False, None, ""),
        ("group_epoch", "int32", False, 1, 1, False, None, 0),
        ("assignment_epoch", "int32", False, 1, 1, False, None, 0),
        ("assignor_name", "string", False, 1, 1, False, None, ""),
        ("members", "Member", True, 1, 1, False, None, ""),
        ("authorized_operations", "int32", False, 1, 1, False, None, -2147483648),
    ),
    "ShareGroupDescribeResponse": (
        ("throttle_time_ms", "int32", False, 1, 1, False, None, 0),
        ("groups", "DescribedGroup", True, 1, 1, False, None, ""),
    ),
}
