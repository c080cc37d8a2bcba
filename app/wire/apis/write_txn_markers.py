"""WriteTxnMarkers, key 27, versions 1 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class WritableTxnMarkerTopic:
    """``topics`` of WritableTxnMarker."""

    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)
    topic_id: UUID = ZERO_UUID


@dataclass(slots=True)
class WritableTxnMarker:
    """``markers`` of WriteTxnMarkersRequest."""

    producer_id: int = 0
    producer_epoch: int = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = field(default_factory=list)
    coordinator_epoch: int = 0
    transaction_version: int = 0
    decision: bytes = b""
    coordinator: int = -1
    coordinator_leads_since: int = -1


@dataclass(slots=True)
class WriteTxnMarkersRequest:
    """The request."""

    markers: list[WritableTxnMarker] = field(default_factory=list)


@dataclass(slots=True)
class WritableTxnMarkerPartitionResult:
    """``partitions`` of WritableTxnMarkerTopicResult."""

    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class WritableTxnMarkerTopicResult:
    """``topics`` of WritableTxnMarkerResult."""

    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class WritableTxnMarkerResult:
    """``markers`` of WriteTxnMarkersResponse."""

    producer_id: int = 0
    topics: list[WritableTxnMarkerTopicResult] = field(default_factory=list)


@dataclass(slots=True)
class WriteTxnMarkersResponse:
    """The response."""

    markers: list[WritableTxnMarkerResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "WritableTxnMarkerTopic": (
        ("name", "string", False, 1, 2, False, None, ""),
        ("partition_indexes", "int32", True, 1, 2, False, None, ""),
        ("topic_id", "uuid", False, 1, 2, False, 10000, ""),
    ),
    "WritableTxnMarker": (
        ("producer_id", "int64", False, 1, 2, False, None, 0),
        ("producer_epoch", "int16", False, 1, 2, False, None, 0),
        ("transaction_result", "bool", False, 1, 2, False, None, False),
        ("topics", "WritableTxnMarkerTopic", True, 1, 2, False, None, ""),
        ("coordinator_epoch", "int32", False, 1, 2, False, None, 0),
        ("transaction_version", "int8", False, 2, 2, False, None, 0),
        ("decision", "bytes", False, 1, 2, False, 10000, ""),
        ("coordinator", "int32", False, 1, 2, False, 10001, -1),
        ("coordinator_leads_since", "int32", False, 1, 2, False, 10002, -1),
    ),
    "WriteTxnMarkersRequest": (("markers", "WritableTxnMarker", True, 1, 2, False, None, ""),),
    "WritableTxnMarkerPartitionResult": (
        ("partition_index", "int32", False, 1, 2, False, None, 0),
        ("error_code", "int16", False, 1, 2, False, None, 0),
    ),
    "WritableTxnMarkerTopicResult": (
        ("name", "string", False, 1, 2, False, None, ""),
        ("partitions", "WritableTxnMarkerPartitionResult", True, 1, 2, False, None, ""),
    ),
    "WritableTxnMarkerResult": (
        ("producer_id", "int64", False, 1, 2, False, None, 0),
        ("topics", "WritableTxnMarkerTopicResult", True, 1, 2, False, None, ""),
    ),
    "WriteTxnMarkersResponse": (("markers", "WritableTxnMarkerResult", True, 1, 2, False, None, ""),),
}
