"""AlterPartition, key 56, versions 2 to 3. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class BrokerState:
    """``new_isr_with_epochs`` of AlterPartitionRequestPartitionData."""

    broker_id: int = 0
    broker_epoch: int = -1


@dataclass(slots=True)
class AlterPartitionRequestPartitionData:
    """``partitions`` of AlterPartitionRequestTopicData."""

    partition_index: int = 0
    leader_epoch: int = 0
    new_isr_with_epochs: list[BrokerState] = field(default_factory=list)
    new_isr: list[int] = field(default_factory=list)
    leader_recovery_state: int = 0
    partition_epoch: int = 0
    released_last: int = -2
    released_to: int = -1
    dropped_ranges: bytes = b""
    switched_first: int = -2


@dataclass(slots=True)
class AlterPartitionRequestTopicData:
    """``topics`` of AlterPartitionRequest."""

    topic_id: UUID = ZERO_UUID
    partitions: list[AlterPartitionRequestPartitionData] = field(default_factory=list)


@dataclass(slots=True)
class AlterPartitionRequest:
    """The request."""

    broker_id: int = 0
    broker_epoch: int = -1
    topics: list[AlterPartitionRequestTopicData] = field(default_factory=list)


@dataclass(slots=True)
class AlterPartitionResponsePartitionData:
    """``partitions`` of AlterPartitionResponseTopicData."""

    partition_index: int = 0
    error_code: int = 0
    leader_id: int = 0
    leader_epoch: int = 0
    isr: list[int] = field(default_factory=list)
    leader_recovery_state: int = 0
    partition_epoch: int = 0


@dataclass(slots=True)
class AlterPartitionResponseTopicData:
    """``topics`` of AlterPartitionResponse."""

    topic_id: UUID = ZERO_UUID
    partitions: list[AlterPartitionResponsePartitionData] = field(default_factory=list)


@dataclass(slots=True)
class AlterPartitionResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    topics: list[AlterPartitionResponseTopicData] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "BrokerState": (
        ("broker_id", "int32", False, 3, 3, False, None, 0),
        ("broker_epoch", "int64", False, 3, 3, False, None, -1),
    ),
    "AlterPartitionRequestPartitionData": (
        ("partition_index", "int32", False, 2, 3, False, None, 0),
        ("leader_epoch", "int32", False, 2, 3, False, None, 0),
        ("new_isr_with_epochs", "BrokerState", True, 3, 3, False, None, ""),
        ("new_isr", "int32", True, 2, 2, False, None, ""),
        ("leader_recovery_state", "int8", False, 2, 3, False, None, 0),
        ("partition_epoch", "int32", False, 2, 3, False, None, 0),
        ("released_last", "int64", False, 2, 3, False, 10000, -2),
        ("released_to", "int32", False, 2, 3, False, 10001, -1),
        ("dropped_ranges", "bytes", False, 2, 3, False, 10002, ""),
        ("switched_first", "int64", False, 2, 3, False, 10003, -2),
    ),
    "AlterPartitionRequestTopicData": (
        ("topic_id", "uuid", False, 2, 3, False, None, ""),
        ("partitions", "AlterPartitionRequestPartitionData", True, 2, 3, False, None, ""),
    ),
    "AlterPartitionRequest": (
        ("broker_id", "int32", False, 2, 3, False, None, 0),
        ("broker_epoch", "int64", False, 2, 3, False, None, -1),
        ("topics", "AlterPartitionRequestTopicData", True, 2, 3, False, None, ""),
    ),
    "AlterPartitionResponsePartitionData": (
        ("partition_index", "int32", False, 2, 3, False, None, 0),
        ("error_code", "int16", False, 2, 3, False, None, 0),
        ("leader_id", "int32", False, 2, 3, False, None, 0),
        ("leader_epoch", "int32", False, 2, 3, False, None, 0),
        ("isr", "int32", True, 2, 3, False, None, ""),
        ("leader_recovery_state", "int8", False, 2, 3, False, None, 0),
        ("partition_epoch", "int32", False, 2, 3, False, None, 0),
    ),
    "AlterPartitionResponseTopicData": (
        ("topic_id", "uuid", False, 2, 3, False, None, ""),
        ("partitions", "AlterPartitionResponsePartitionData", True, 2, 3, False, None, ""),
    ),
    "AlterPartitionResponse": (
        ("throttle_time_ms", "int32", False, 2, 3, False, None, 0),
        ("error_code", "int16", False, 2, 3, False, None, 0),
        ("topics", "AlterPartitionResponseTopicData", True, 2, 3, False, None, ""),
    ),
}
