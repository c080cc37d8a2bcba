"""StreamsGroupDescribe, key 89, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class StreamsGroupDescribeRequest:
    """The request."""

    group_ids: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False


@dataclass(slots=True)
class KeyValue:
    """``topic_configs`` of TopicInfo, ``client_tags`` of Member."""

    key: str = ""
    value: str = ""


@dataclass(slots=True)
class TopicInfo:
    """``state_changelog_topics`` of Subtopology, ``repartition_source_topics`` of Subtopology."""

    name: str = ""
    partitions: int = 0
    replication_factor: int = 0
    topic_configs: list[KeyValue] = field(default_factory=list)


@dataclass(slots=True)
class Subtopology:
    """``subtopologies`` of Topology."""

    subtopology_id: str = ""
    source_topics: list[str] = field(default_factory=list)
    repartition_sink_topics: list[str] = field(default_factory=list)
    state_changelog_topics: list[TopicInfo] = field(default_factory=list)
    repartition_source_topics: list[TopicInfo] = field(default_factory=list)


@dataclass(slots=True)
class Topology:
    """``topology`` of DescribedGroup."""

    epoch: int = 0
    subtopologies: list[Subtopology] | None = field(default_factory=list)


@dataclass(slots=True)
class Endpoint:
    """``user_endpoint`` of Member."""

    host: str = ""
    port: int = 0


@dataclass(slots=True)
class TaskOffset:
    """``task_offsets`` of Member, ``task_end_offsets`` of Member."""

    subtopology_id: str = ""
    partition: int = 0
    offset: int = 0


@dataclass(slots=True)
class TaskIds:
    """``active_tasks`` of Assignment, ``standby_tasks`` of Assignment, ``warmup_tasks`` of Assignment."""

    subtopology_id: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Assignment:
    """``assignment`` of Member, ``target_assignment`` of Member."""

    active_tasks: list[TaskIds] = field(default_factory=list)
    standby_tasks: list[TaskIds] = field(default_factory=list)
    warmup_tasks: list[TaskIds] = field(default_factory=list)


@dataclass(slots=True)
class Member:
    """``members`` of DescribedGroup."""

    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = field(default_factory=list)
    task_offsets: list[TaskOffset] = field(default_factory=list)
    task_end_offsets: list[TaskOffset] = field(default_factory=list)
    assignment: Assignment = field(default_factory=Assignment)
    target_assignment: Assignment = field(default_factory=Assignment)
    is_classic: bool = False


@dataclass(slots=True)
class DescribedGroup:
    """``groups`` of StreamsGroupDescribeResponse."""

    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    topology: Topology | None = None
    members: list[Member] = field(default_factory=list)
    authorized_operations: int = -2147483648


@dataclass(slots=True)
class StreamsGroupDescribeResponse:
    """The response."""

    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "StreamsGroupDescribeRequest": (
        ("group_ids", "string", True, 0, 0, False, None, ""),
        ("include_authorized_operations", "bool", False, 0, 0, False, None, False),
    ),
    "KeyValue": (
        ("key", "string", False, 0, 0, False, None, ""),
        ("value", "string", False, 0, 0, False, None, ""),
    ),
    "TopicInfo": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("partitions", "int32", False, 0, 0, False, None, 0),
        ("replication_factor", "int16", False, 0, 0, False, None, 0),
        ("topic_configs", "KeyValue", True, 0, 0, False, None, ""),
    ),
    "Subtopology": (
        ("subtopology_id", "string", False, 0, 0, False, None, ""),
        ("source_topics", "string", True, 0, 0, False, None, ""),
        ("repartition_sink_topics", "string", True, 0, 0, False, None, ""),
        ("state_changelog_topics", "TopicInfo", True, 0, 0, False, None, ""),
        ("repartition_source_topics", "TopicInfo", True, 0, 0, False, None, ""),
    ),
    "Topology": (
        ("epoch", "int32", False, 0, 0, False, None, 0),
        ("subtopologies", "Subtopology", True, 0, 0, True, None, ""),
    ),
    "Endpoint": (
        ("host", "string", False, 0, 0, False, None, ""),
        ("port", "uint16", False, 0, 0, False, None, 0),
    ),
    "TaskOffset": (
        ("subtopology_id", "string", False, 0, 0, False, None, ""),
        ("partition", "int32", False, 0, 0, False, None, 0),
        ("offset", "int64", False, 0, 0, False, None, 0),
    ),
    "TaskIds": (
        ("subtopology_id", "string", False, 0, 0, False, None, ""),
        ("partitions", "int32", True, 0, 0, False, None, ""),
    ),
    "Assignment": (
        ("active_tasks", "TaskIds", True, 0, 0, False, None, ""),
        ("standby_tasks", "TaskIds", True, 0, 0, False, None, ""),
        ("warmup_tasks", "TaskIds", True, 0, 0, False, None, ""),
    ),
    "Member": (
        ("member_id", "string", False, 0, 0, False, None, ""),
        ("member_epoch", "int32", False, 0, 0, False, None, 0),
        ("instance_id", "string", False, 0, 0, True, None, None),
        ("rack_id", "string", False, 0, 0, True, None, None),
        ("client_id", "string", False, 0, 0, False, None, ""),
        ("client_host", "string", False, 0, 0, False, None, ""),
        ("topology_epoch", "int32", False, 0, 0, False, None, 0),
        ("process_id", "string", False, 0, 0, False, None, ""),
        ("user_endpoint", "Endpoint", False, 0, 0, True, None, None),
        ("client_tags", "KeyValue", True, 0, 0, False, None, ""),
        ("task_offsets", "TaskOffset", True, 0, 0, False, None, ""),
        ("task_end_offsets", "TaskOffset", True, 0, 0, False, None, ""),
        ("assignment", "Assignment", False, 0, 0, False, None, ""),
        ("target_assignment", "Assignment", False, 0, 0, False, None, ""),
        ("is_classic", "bool", False, 0, 0, False, None, False),
    ),
    "DescribedGroup": (
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("group_state", "string", False, 0, 0, False, None, ""),
        ("group_epoch", "int32", False, 0, 0, False, None, 0),
        ("assignment_epoch", "int32", False, 0, 0, False, None, 0),
        ("topology", "Topology", False, 0, 0, True, None, None),
        ("members", "Member", True, 0, 0, False, None, ""),
        ("authorized_operations", "int32", False, 0, 0, False, None, -2147483648),
    ),
    "StreamsGroupDescribeResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("groups", "DescribedGroup", True, 0, 0, False, None, ""),
    ),
}
