"""TxnOffsetCommit, key 28, versions 0 to 5. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class TxnOffsetCommitRequestPartition:
    """``partitions`` of TxnOffsetCommitRequestTopic."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""


@dataclass(slots=True)
class TxnOffsetCommitRequestTopic:
    """``topics`` of TxnOffsetCommitRequest."""

    name: str = ""
    partitions: list[TxnOffsetCommitRequestPartition] = field(default_factory=list)


@dataclass(slots=True)
class TxnOffsetCommitRequest:
    """The request."""

    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topics: list[TxnOffsetCommitRequestTopic] = field(default_factory=list)


@dataclass(slots=True)
class TxnOffsetCommitResponsePartition:
    """``partitions`` of TxnOffsetCommitResponseTopic."""

    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class TxnOffsetCommitResponseTopic:
    """``topics`` of TxnOffsetCommitResponse."""

    name: str = ""
    partitions: list[TxnOffsetCommitResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class TxnOffsetCommitResponse:
    """The response."""

    throttle_time_ms: int = 0
    topics: list[TxnOffsetCommitResponseTopic] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "TxnOffsetCommitRequestPartition": (
        ("partition_index", "int32", False, 0, 5, False, None, 0),
        ("committed_offset", "int64", False, 0, 5, False, None, 0),
        ("committed_leader_epoch", "int32", False, 2, 5, False, None, -1),
        ("committed_metadata", "string", False, 0, 5, True, None, ""),
    ),
    "TxnOffsetCommitRequestTopic": (
        ("name", "string", False, 0, 5, False, None, ""),
        ("partitions", "TxnOffsetCommitRequestPartition", True, 0, 5, False, None, ""),
    ),
    "TxnOffsetCommitRequest": (
        ("transactional_id", "string", False, 0, 5, False, None, ""),
        ("group_id", "string", False, 0, 5, False, None, ""),
        ("producer_id", "int64", False, 0, 5, False, None, 0),
        ("producer_epoch", "int16", False, 0, 5, False, None, 0),
        ("generation_id", "int32", False, 3, 5, False, None, -1),
        ("member_id", "string", False, 3, 5, False, None, ""),
        ("group_instance_id", "string", False, 3, 5, True, None, None),
        ("topics", "TxnOffsetCommitRequestTopic", True, 0, 5, False, None, ""),
    ),
    "TxnOffsetCommitResponsePartition": (
        ("partition_index", "int32", False, 0, 5, False, None, 0),
        ("error_code", "int16", False, 0, 5, False, None, 0),
    ),
    "TxnOffsetCommitResponseTopic": (
        ("name", "string", False, 0, 5, False, None, ""),
        ("partitions", "TxnOffsetCommitResponsePartition", True, 0, 5, False, None, ""),
    ),
    "TxnOffsetCommitResponse": (
        ("throttle_time_ms", "int32", False, 0, 5, False, None, 0),
        ("topics", "TxnOffsetCommitResponseTopic", True, 0, 5, False, None, ""),
    ),
}
