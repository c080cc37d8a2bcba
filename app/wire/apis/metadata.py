"""Metadata, key 3, versions 0 to 13. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class MetadataRequestTopic:
    """``topics`` of MetadataRequest."""

    topic_id: UUID = ZERO_UUID
    name: str | None = ""


@dataclass(slots=True)
class MetadataRequest:
    """The request."""

    topics: list[MetadataRequestTopic] | None = field(default_factory=list)
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


@dataclass(slots=True)
class MetadataResponseBroker:
    """``brokers`` of MetadataResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


@dataclass(slots=True)
class MetadataResponsePartition:
    """``partitions`` of MetadataResponseTopic."""

    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = field(default_factory=list)
    isr_nodes: list[int] = field(default_factory=list)
    offline_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class MetadataResponseTopic:
    """``topics`` of MetadataResponse."""

    error_code: int = 0
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: list[MetadataResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int = -2147483648


@dataclass(slots=True)
class MetadataResponse:
    """The response."""

    throttle_time_ms: int = 0
    brokers: list[MetadataResponseBroker] = field(default_factory=list)
    cluster_id: str | None = None
    controller_id: int = -1
    topics: list[MetadataResponseTopic] = field(default_factory=list)
    error_code: int = 0
    cluster_authorized_operations: int = -2147483648


FIELDS: Final[Rows] = {
    "MetadataRequestTopic": (
        ("topic_id", "uuid", False, 10, 13, False, None, ""),
        ("name", "string", False, 0, 9, False, None, ""),
        ("name", "string", False, 10, 13, True, None, ""),
    ),
    "MetadataRequest": (
        ("topics", "MetadataRequestTopic", True, 0, 0, False, None, ""),
        ("topics", "MetadataRequestTopic", True, 1, 13, True, None, ""),
        ("allow_auto_topic_creation", "bool", False, 4, 13, False, None, True),
        ("include_cluster_authorized_operations", "bool", False, 8, 10, False, None, False),
        ("include_topic_authorized_operations", "bool", False, 8, 13, False, None, False),
    ),
    "MetadataResponseBroker": (
        ("node_id", "int32", False, 0, 13, False, None, 0),
        ("host", "string", False, 0, 13, False, None, ""),
        ("port", "int32", False, 0, 13, False, None, 0),
        ("rack", "string", False, 1, 13, True, None, None),
    ),
    "MetadataResponsePartition": (
        ("error_code", "int16", False, 0, 13, False, None, 0),
        ("partition_index", "int32", False, 0, 13, False, None, 0),
        ("leader_id", "int32", False, 0, 13, False, None, 0),
        ("leader_epoch", "int32", False, 7, 13, False, None, -1),
        ("replica_nodes", "int32", True, 0, 13, False, None, ""),
        ("isr_nodes", "int32", True, 0, 13, False, None, ""),
        ("offline_replicas", "int32", True, 5, 13, False, None, ""),
    ),
    "MetadataResponseTopic": (
        ("error_code", "int16", False, 0, 13, False, None, 0),
        ("name", "string", False, 0, 11, False, None, ""),
        ("name", "string", False, 12, 13, True, None, ""),
        ("topic_id", "uuid", False, 10, 13, False, None, ""),
        ("is_internal", "bool", False, 1, 13, False, None, False),
        ("partitions", "MetadataResponsePartition", True, 0, 13, False, None, ""),
        ("topic_authorized_operations", "int32", False, 8, 13, False, None, -2147483648),
    ),
    "MetadataResponse": (
        ("throttle_time_ms", "int32", False, 3, 13, False, None, 0),
        ("brokers", "MetadataResponseBroker", True, 0, 13, False, None, ""),
        ("cluster_id", "string", False, 2, 13, True, None, None),
        ("controller_id", "int32", False, 1, 13, False, None, -1),
        ("topics", "MetadataResponseTopic", True, 0, 13, False, None, ""),
        ("error_code", "int16", False, 13, 13, False, None, 0),
        ("cluster_authorized_operations", "int32", False, 8, 10, False, None, -2147483648),
    ),
}
