"""OffsetFetch, key 9, versions 1 to 10. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class OffsetFetchRequestTopics:
    """``topics`` of OffsetFetchRequestGroup."""

    topic_id: UUID = ZERO_UUID
    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchRequestGroup:
    """``groups`` of OffsetFetchRequest."""

    group_id: str = ""
    member_id: str | None = None
    member_epoch: int = -1
    topics: list[OffsetFetchRequestTopics] | None = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchRequestTopic:
    """``topics`` of OffsetFetchRequest."""

    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchRequest:
    """The request."""

    groups: list[OffsetFetchRequestGroup] = field(default_factory=list)
    group_id: str = ""
    topics: list[OffsetFetchRequestTopic] | None = field(default_factory=list)
    require_stable: bool = False


@dataclass(slots=True)
class OffsetFetchResponsePartitions:
    """``partitions`` of OffsetFetchResponseTopics."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


@dataclass(slots=True)
class OffsetFetchResponseTopics:
    """``topics`` of OffsetFetchResponseGroup."""

    topic_id: UUID = ZERO_UUID
    name: str = ""
    partitions: list[OffsetFetchResponsePartitions] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchResponseGroup:
    """``groups`` of OffsetFetchResponse."""

    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = field(default_factory=list)
    error_code: int = 0


@dataclass(slots=True)
class OffsetFetchResponsePartition:
    """``partitions`` of OffsetFetchResponseTopic."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


@dataclass(slots=True)
class OffsetFetchResponseTopic:
    """``topics`` of OffsetFetchResponse."""

    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchResponse:
    """The response."""

    throttle_time_ms: int = 0
    groups: list[OffsetFetchResponseGroup] = field(default_factory=list)
    topics: list[OffsetFetchResponseTopic] = field(default_factory=list)
    error_code: int = 0


FIELDS: Final[Rows] = {
    "OffsetFetchRequestTopics": (
        ("topic_id", "uuid", False, 10, 10, False, None, ""),
        ("name", "string", False, 8, 9, False, None, ""),
        ("partition_indexes", "int32", True, 8, 10, False, None, ""),
    ),
    "OffsetFetchRequestGroup": (
        ("group_id", "string", False, 8, 10, False, None, ""),
        ("member_id", "string", False, 9, 10, True, None, None),
        ("member_epoch", "int32", False, 9, 10, False, None, -1),
        ("topics", "OffsetFetchRequestTopics", True, 8, 10, True, None, ""),
    ),
    "OffsetFetchRequestTopic": (
        ("name", "string", False, 1, 7, False, None, ""),
        ("partition_indexes", "int32", True, 1, 7, False, None, ""),
    ),
    "OffsetFetchRequest": (
        ("groups", "OffsetFetchRequestGroup", True, 8, 10, False, None, ""),
        ("group_id", "string", False, 1, 7, False, None, ""),
        ("topics", "OffsetFetchRequestTopic", True, 1, 1, False, None, ""),
        ("topics", "OffsetFetchRequestTopic", True, 2, 7, True, None, ""),
        ("require_stable", "bool", False, 7, 10, False, None, False),
    ),
    "OffsetFetchResponsePartitions": (
        ("partition_index", "int32", False, 8, 10, False, None, 0),
        ("committed_offset", "int64", False, 8, 10, False, None, 0),
        ("committed_leader_epoch", "int32", False, 8, 10, False, None, -1),
        ("metadata", "string", False, 8, 10, True, None, ""),
        ("error_code", "int16", False, 8, 10, False, None, 0),
    ),
    "OffsetFetchResponseTopics": (
        ("topic_id", "uuid", False, 10, 10, False, None, ""),
        ("name", "string", False, 8, 9, False, None, ""),
        ("partitions", "OffsetFetchResponsePartitions", True, 8, 10, False, None, ""),
    ),
    "OffsetFetchResponseGroup": (
        ("group_id", "string", False, 8, 10, False, None, ""),
        ("topics", "OffsetFetchResponseTopics", True, 8, 10, False, None, ""),
        ("error_code", "int16", False, 8, 10, False, None, 0),
    ),
    "OffsetFetchResponsePartition": (
        ("partition_index", "int32", False, 1, 7, False, None, 0),
        ("committed_offset", "int64", False, 1, 7, False, None, 0),
        ("committed_leader_epoch", "int32", False, 5, 7, False, None, -1),
        ("metadata", "string", False, 1, 7, True, None, ""),
        ("error_code", "int16", False, 1, 7, False, None, 0),
    ),
    "OffsetFetchResponseTopic": (
        ("name", "string", False, 1, 7, False, None, ""),
        ("partitions", "OffsetFetchResponsePartition", True, 1, 7, False, None, ""),
    ),
    "OffsetFetchResponse": (
        ("throttle_time_ms", "int32", False, 3, 10, False, None, 0),
        ("groups", "OffsetFetchResponseGroup", True, 8, 10, False, None, ""),
        ("topics", "OffsetFetchResponseTopic", True, 1, 7, False, None, ""),
        ("error_code", "int16", False, 2, 7, False, None, 0),
    ),
}
