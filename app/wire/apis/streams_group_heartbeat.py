"""StreamsGroupHeartbeat, key 88, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class KeyValue:
    """``topic_configs`` of TopicInfo, ``client_tags`` of StreamsGroupHeartbeatRequest."""

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
class CopartitionGroup:
    """``copartition_groups`` of Subtopology."""

    source_topics: list[int] = field(default_factory=list)
    source_topic_regex: list[int] = field(default_factory=list)
    repartition_source_topics: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Subtopology:
    """``subtopologies`` of Topology."""

    subtopology_id: str = ""
    source_topics: list[str] = field(default_factory=list)
    source_topic_regex: list[str] = field(default_factory=list)
    state_changelog_topics: list[TopicInfo] = field(default_factory=list)
    repartition_sink_topics: list[str] = field(default_factory=list)
    repartition_source_topics: list[TopicInfo] = field(default_factory=list)
    copartition_groups: list[CopartitionGroup] = field(default_factory=list)


@dataclass(slots=True)
class Topology:
    """``topology`` of StreamsGroupHeartbeatRequest."""

    epoch: int = 0
    subtopologies: list[Subtopology] = field(default_factory=list)


@dataclass(slots=True)
class TaskIds:
    """``active_tasks`` of StreamsGroupHeartbeatRequest, ``standby_tasks`` of StreamsGroupHeartbeatRequest, ``warmup_tasks`` of StreamsGroupHeartbeatRequest, ``active_tasks`` of StreamsGroupHeartbeatResponse, ``standby_tasks`` of StreamsGroupHeartbeatResponse, ``warmup_tasks`` of StreamsGroupHeartbeatResponse."""

    subtopology_id: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Endpoint:
    """``user_endpoint`` of StreamsGroupHeartbeatRequest, ``user_endpoint`` of EndpointToPartitions."""

    host: str = ""
    port: int = 0


@dataclass(slots=True)
class TaskOffset:
    """``task_offsets`` of StreamsGroupHeartbeatRequest, ``task_end_offsets`` of StreamsGroupHeartbeatRequest."""

    subtopology_id: str = ""
    partition: int = 0
    offset: int = 0


@dataclass(slots=True)
class StreamsGroupHeartbeatRequest:
    """The request."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    endpoint_information_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    active_tasks: list[TaskIds] | None = field(default_factory=list)
    standby_tasks: list[TaskIds] | None = field(default_factory=list)
    warmup_tasks: list[TaskIds] | None = field(default_factory=list)
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = field(default_factory=list)
    task_offsets: list[TaskOffset] | None = field(default_factory=list)
    task_end_offsets: list[TaskOffset] | None = field(default_factory=list)
    shutdown_application: bool = False


@dataclass(slots=True)
class Status:
    """``status`` of StreamsGroupHeartbeatResponse."""

    status_code: int = 0
    status_detail: str = ""


@dataclass(slots=True)
class TopicPartition:
    """``active_partitions`` of EndpointToPartitions, ``standby_partitions`` of EndpointToPartitions."""

    topic: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class EndpointToPartitions:
    """``partitions_by_user_endpoint`` of StreamsGroupHeartbeatResponse."""

    user_endpoint: Endpoint = field(default_factory=Endpoint)
    active_partitions: list[TopicPartition] = field(default_factory=list)
    standby_partitions: list[TopicPartition] = field(default_factory=list)


@dataclass(slots=True)
class StreamsGroupHeartbeatResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    acceptable_recovery_lag: int = 0
    task_offset_interval_ms: int = 0
    status: list[Status] | None = field(default_factory=list)
    active_tasks: list[TaskIds] | None = field(default_factory=list)
    standby_tasks: list[TaskIds] | None = field(default_factory=list)
    warmup_tasks: list[TaskIds] | None = field(default_factory=list)
    endpoint_information_epoch: int = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = field(default_factory=list)


FIELDS: Final[Rows] = {
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
    "CopartitionGroup": (
        ("source_topics", "int16", True, 0, 0, False, None, ""),
        ("source_topic_regex", "int16", True, 0, 0, False, None, ""),
        ("repartition_source_topics", "int16", True, 0, 0, False, None, ""),
    ),
    "Subtopology": (
        ("subtopology_id", "string", False, 0, 0, False, None, ""),
        ("source_topics", "string", True, 0, 0, False, None, ""),
        ("source_topic_regex", "string", True, 0, 0, False, None, ""),
        ("state_changelog_topics", "TopicInfo", True, 0, 0, False, None, ""),
        ("repartition_sink_topics", "string", True, 0, 0, False, None, ""),
        ("repartition_source_topics", "TopicInfo", True, 0, 0, False, None, ""),
        ("copartition_groups", "CopartitionGroup", True, 0, 0, False, None, ""),
    ),
    "Topology": (
        ("epoch", "int32", False, 0, 0, False, None, 0),
        ("subtopologies", "Subtopology", True, 0, 0, False, None, ""),
    ),
    "TaskIds": (
        ("subtopology_id", "string", False, 0, 0, False, None, ""),
        ("partitions", "int32", True, 0, 0, False, None, ""),
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
    "StreamsGroupHeartbeatRequest": (
        ("group_id", "string", False, 0, 0, False, None, ""),
        ("member_id", "string", False, 0, 0, False, None, ""),
        ("member_epoch", "int32", False, 0, 0, False, None, 0),
        ("endpoint_information_epoch", "int32", False, 0, 0, False, None, 0),
        ("instance_id", "string", False, 0, 0, True, None, None),
        ("rack_id", "string", False, 0, 0, True, None, None),
        ("rebalance_timeout_ms", "int32", False, 0, 0, False, None, -1),
        ("topology", "Topology", False, 0, 0, True, None, None),
        ("active_tasks", "TaskIds", True, 0, 0, True, None, ""),
        ("standby_tasks", "TaskIds", True, 0, 0, True, None, ""),
        ("warmup_tasks", "TaskIds", True, 0, 0, True, None, ""),
        ("process_id", "string", False, 0, 0, True, None, None),
        ("user_endpoint", "Endpoint", False, 0, 0, True, None, None),
        ("client_tags", "KeyValue", True, 0, 0, True, None, ""),
        ("task_offsets", "TaskOffset", True, 0, 0, True, None, ""),
        ("task_end_offsets", "TaskOffset", True, 0, 0, True, None, ""),
        ("shutdown_application", "bool", False, 0, 0, False, None, False),
    ),
    "Status": (
        ("status_code", "int8", False, 0, 0, False, None, 0),
        ("status_detail", "string", False, 0, 0, False, None, ""),
    ),
    "TopicPartition": (
        ("topic", "string", False, 0, 0, False, None, ""),
        ("partitions", "int32", True, 0, 0, False, None, ""),
    ),
    "EndpointToPartitions": (
        ("user_endpoint", "Endpoint", False, 0, 0, False, None, 0),
        ("active_partitions", "TopicPartition", True, 0, 0, False, None, ""),
        ("standby_partitions", "TopicPartition", True, 0, 0, False, None, ""),
    ),
    "StreamsGroupHeartbeatResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, None),
        ("member_id", "string", False, 0, 0, False, None, ""),
        ("member_epoch", "int32", False, 0, 0, False, None, 0),
        ("heartbeat_interval_ms", "int32", False, 0, 0, False, None, 0),
        ("acceptable_recovery_lag", "int32", False, 0, 0, False, None, 0),
        ("task_offset_interval_ms", "int32", False, 0, 0, False, None, 0),
        ("status", "Status", True, 0, 0, True, None, ""),
        ("active_tasks", "TaskIds", True, 0, 0, True, None, ""),
        ("standby_tasks", "TaskIds", True, 0, 0, True, None, ""),
        ("warmup_tasks", "TaskIds", True, 0, 0, True, None, ""),
        ("endpoint_information_epoch", "int32", False, 0, 0, False, None, 0),
        ("partitions_by_user_endpoint", "EndpointToPartitions", True, 0, 0, True, None, ""),
    ),
}
