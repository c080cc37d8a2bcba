"""DescribeTransactions, key 65, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DescribeTransactionsRequest:
    """The request."""

    transactional_ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TopicData:
    """``topics`` of TransactionState."""

    topic: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TransactionState:
    """``transaction_states`` of DescribeTransactionsResponse."""

    error_code: int = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: list[TopicData] = field(default_factory=list)


@dataclass(slots=True)
class DescribeTransactionsResponse:
    """The response."""

    throttle_time_ms: int = 0
    transaction_states: list[TransactionState] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "DescribeTransactionsRequest": (("transactional_ids", "string", True, 0, 0, False, None, ""),),
    "TopicData": (
        ("topic", "string", False, 0, 0, False, None, ""),
        ("partitions", "int32", True, 0, 0, False, None, ""),
    ),
    "TransactionState": (
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("transactional_id", "string", False, 0, 0, False, None, ""),
        ("transaction_state", "string", False, 0, 0, False, None, ""),
        ("transaction_timeout_ms", "int32", False, 0, 0, False, None, 0),
        ("transaction_start_time_ms", "int64", False, 0, 0, False, None, 0),
        ("producer_id", "int64", False, 0, 0, False, None, 0),
        ("producer_epoch", "int16", False, 0, 0, False, None, 0),
        ("topics", "TopicData", True, 0, 0, False, None, ""),
    ),
    "DescribeTransactionsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("transaction_states", "TransactionState", True, 0, 0, False, None, ""),
    ),
}
