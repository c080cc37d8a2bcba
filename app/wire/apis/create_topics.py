"""CreateTopics, key 19, versions 2 to 7. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class CreatableReplicaAssignment:
    """``assignments`` of CreatableTopic."""

    partition_index: int = 0
    broker_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CreatableTopicConfig:
    """``configs`` of CreatableTopic."""

    name: str = ""
    value: str | None = ""


@dataclass(slots=True)
class CreatableTopic:
    """``topics`` of CreateTopicsRequest."""

    name: str = ""
    num_partitions: int = 0
    replication_factor: int = 0
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    configs: list[CreatableTopicConfig] = field(default_factory=list)


@dataclass(slots=True)
class CreateTopicsRequest:
    """The request."""

    topics: list[CreatableTopic] = field(default_factory=list)
    timeout_ms: int = 60000
    validate_only: bool = False


@dataclass(slots=True)
class CreatableTopicConfigs:
    """``configs`` of CreatableTopicResult."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False


@dataclass(slots=True)
class CreatableTopicResult:
    """``topics`` of CreateTopicsResponse."""

    name: str = ""
    topic_id: UUID = ZERO_UUID
    error_code: int = 0
    error_message: str | None = ""
    topic_config_error_code: int = 0
    num_partitions: int = -1
    replication_factor: int = -1
    configs: list[CreatableTopicConfigs] | None = field(default_factory=list)


@dataclass(slots=True)
class CreateTopicsResponse:
    """The response."""

    throttle_time_ms: int = 0
    topics: list[CreatableTopicResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "CreatableReplicaAssignment": (
        ("partition_index", "int32", False, 2, 7, False, None, 0),
        ("broker_ids", "int32", True, 2, 7, False, None, ""),
    ),
    "CreatableTopicConfig": (
        ("name", "string", False, 2, 7, False, None, ""),
        ("value", "string", False, 2, 7, True, None, ""),
    ),
    "CreatableTopic": (
        ("name", "string", False, 2, 7, False, None, ""),
        ("num_partitions", "int32", False, 2, 7, False, None, 0),
        ("replication_factor", "int16", False, 2, 7, False, None, 0),
        ("assignments", "CreatableReplicaAssignment", True, 2, 7, False, None, ""),
        ("configs", "CreatableTopicConfig", True, 2, 7, False, None, ""),
    ),
    "CreateTopicsRequest": (
        ("topics", "CreatableTopic", True, 2, 7, False, None, ""),
        ("timeout_ms", "int32", False, 2, 7, False, None, 60000),
        ("validate_only", "bool", False, 2, 7, False, None, False),
    ),
    "CreatableTopicConfigs": (
        ("name", "string", False, 5, 7, False, None, ""),
        ("value", "string", False, 5, 7, True, None, ""),
        ("read_only", "bool", False, 5, 7, False, None, False),
        ("config_source", "int8", False, 5, 7, False, None, -1),
        ("is_sensitive", "bool", False, 5, 7, False, None, False),
    ),
    "CreatableTopicResult": (
        ("name", "string", False, 2, 7, False, None, ""),
        ("topic_id", "uuid", False, 7, 7, False, None, ""),
        ("error_code", "int16", False, 2, 7, False, None, 0),
        ("error_message", "string", False, 2, 7, True, None, ""),
        ("topic_config_error_code", "int16", False, 5, 7, False, 0, 0),
        ("num_partitions", "int32", False, 5, 7, False, None, -1),
        ("replication_factor", "int16", False, 5, 7, False, None, -1),
        ("configs", "CreatableTopicConfigs", True, 5, 7, True, None, ""),
    ),
    "CreateTopicsResponse": (
        ("throttle_time_ms", "int32", False, 2, 7, False, None, 0),
        ("topics", "CreatableTopicResult", True, 2, 7, False, None, ""),
    ),
}
