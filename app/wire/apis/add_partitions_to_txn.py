"""AddPartitionsToTxn, key 24, versions 0 to 5. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from app.wire.schema import ZERO_UUID, Rows


@dataclass(slots=True)
class AddPartitionsToTxnTopic:
    """``topics`` of AddPartitionsToTxnTransaction, ``v3_and_below_topics`` of AddPartitionsToTxnRequest."""

    name: str = ""
    partitions: list[int] = field(default_factory=list)
    topic_id: UUID = ZERO_UUID


@dataclass(slots=True)
class AddPartitionsToTxnTransaction:
    """``transactions`` of AddPartitionsToTxnRequest."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = field(default_factory=list)


@dataclass(slots=True)
class AddPartitionsToTxnRequest:
    """The request."""

    transactions: list[AddPartitionsToTxnTransaction] = field(default_factory=list)
    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: int = 0
    v3_and_below_producer_epoch: int = 0
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(default_factory=list)


@dataclass(slots=True)
class AddPartitionsToTxnPartitionResult:
    """``results_by_partition`` of AddPartitionsToTxnTopicResult."""

    partition_index: int = 0
    partition_error_code: int = 0


@dataclass(slots=True)
class AddPartitionsToTxnTopicResult:
    """``topic_results`` of AddPartitionsToTxnResult, ``results_by_topic_v3_and_below`` of AddPartitionsToTxnResponse."""

    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class AddPartitionsToTxnResult:
    """``results_by_transaction`` of AddPartitionsToTxnResponse."""

    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)
    coordinator_epoch: int = -1


@dataclass(slots=True)
class AddPartitionsToTxnResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    results_by_transaction: list[AddPartitionsToTxnResult] = field(default_factory=list)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "AddPartitionsToTxnTopic": (
        ("name", "string", False, 0, 5, False, None, ""),
        ("partitions", "int32", True, 0, 5, False, None, ""),
        ("topic_id", "uuid", False, 4, 5, False, 10000, ""),
    ),
    "AddPartitionsToTxnTransaction": (
        ("transactional_id", "string", False, 4, 5, False, None, ""),
        ("producer_id", "int64", False, 4, 5, False, None, 0),
        ("producer_epoch", "int16", False, 4, 5, False, None, 0),
        ("verify_only", "bool", False, 4, 5, False, None, False),
        ("topics", "AddPartitionsToTxnTopic", True, 4, 5, False, None, ""),
    ),
    "AddPartitionsToTxnRequest": (
        ("transactions", "AddPartitionsToTxnTransaction", True, 4, 5, False, None, ""),
        ("v3_and_below_transactional_id", "string", False, 0, 3, False, None, ""),
        ("v3_and_below_producer_id", "int64", False, 0, 3, False, None, 0),
        ("v3_and_below_producer_epoch", "int16", False, 0, 3, False, None, 0),
        ("v3_and_below_topics", "AddPartitionsToTxnTopic", True, 0, 3, False, None, ""),
    ),
    "AddPartitionsToTxnPartitionResult": (
        ("partition_index", "int32", False, 0, 5, False, None, 0),
        ("partition_error_code", "int16", False, 0, 5, False, None, 0),
    ),
    "AddPartitionsToTxnTopicResult": (
        ("name", "string", False, 0, 5, False, None, ""),
        ("results_by_partition", "AddPartitionsToTxnPartitionResult", True, 0, 5, False, None, ""),
    ),
    "AddPartitionsToTxnResult": (
        ("transactional_id", "string", False, 4, 5, False, None, ""),
        ("topic_results", "AddPartitionsToTxnTopicResult", True, 4, 5, False, None, ""),
        ("coordinator_epoch", "int32", False, 4, 5, False, 10000, -1),
    ),
    "AddPartitionsToTxnResponse": (
        ("throttle_time_ms", "int32", False, 0, 5, False, None, 0),
        ("error_code", "int16", False, 4, 5, False, None, 0),
        ("results_by_transaction", "AddPartitionsToTxnResult", True, 4, 5, False, None, ""),
        ("results_by_topic_v3_and_below", "AddPartitionsToTxnTopicResult", True, 0, 3, False, None, ""),
    ),
}
