"""DeleteRecords, key 21, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DeleteRecordsPartition:
    """``partitions`` of DeleteRecordsTopic."""

    partition_index: int = 0
    offset: int = 0


@dataclass(slots=True)
class DeleteRecordsTopic:
    """``topics`` of DeleteRecordsRequest."""

    name: str = ""
    partitions: list[DeleteRecordsPartition] = field(default_factory=list)


@dataclass(slots=True)
class DeleteRecordsRequest:
    """The request."""

    topics: list[DeleteRecordsTopic] = field(default_factory=list)
    timeout_ms: int = 0


@dataclass(slots=True)
class DeleteRecordsPartitionResult:
    """``partitions`` of DeleteRecordsTopicResult."""

    partition_index: int = 0
    low_watermark: int = 0
    error_code: int = 0


@dataclass(slots=True)
class DeleteRecordsTopicResult:
    """``topics`` of DeleteRecordsResponse."""

    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class DeleteRecordsResponse:
    """The response."""

    throttle_time_ms: int = 0
    topics: list[DeleteRecordsTopicResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DeleteRecordsPartition": (
        ("partition_index", "int32", False, 0, 2, False, None, 0),
        ("offset", "int64", False, 0, 2, False, None, 0),
    ),
    "DeleteRecordsTopic": (
        ("name", "string", False, 0, 2, False, None, ""),
        ("partitions", "DeleteRecordsPartition", True, 0, 2, False, None, ""),
    ),
    "DeleteRecordsRequest": (
        ("topics", "DeleteRecordsTopic", True, 0, 2, False, None, ""),
        ("timeout_ms", "int32", False, 0, 2, False, None, 0),
    ),
    "DeleteRecordsPartitionResult": (
        ("partition_index", "int32", False, 0, 2, False, None, 0),
        ("low_watermark", "int64", False, 0, 2, False, None, 0),
        ("error_code", "int16", False, 0, 2, False, None, 0),
    ),
    "DeleteRecordsTopicResult": (
        ("name", "string", False, 0, 2, False, None, ""),
        ("partitions", "DeleteRecordsPartitionResult", True, 0, 2, False, None, ""),
    ),
    "DeleteRecordsResponse": (
        ("throttle_time_ms", "int32", False, 0, 2, False, None, 0),
        ("topics", "DeleteRecordsTopicResult", True, 0, 2, False, None, ""),
    ),
}
