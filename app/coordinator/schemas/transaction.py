"""Transactions by transactional id (KIP-98). Written by tools/generate_coordinator_records.py; do not edit.

Tests: ``tests/transactions/test_records.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.coordinator.record_type import RecordType
from app.wire.schema import Rows


@dataclass(slots=True)
class TransactionLogKey:
    """A record's key."""

    transactional_id: str = ""


@dataclass(slots=True)
class PartitionsSchema:
    """``transaction_partitions`` of TransactionLogValue."""

    topic: str = ""
    partition_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TransactionLogValue:
    """A record's value."""

    producer_id: int = 0
    previous_producer_id: int = -1
    next_producer_id: int = -1
    producer_epoch: int = 0
    next_producer_epoch: int = -1
    transaction_timeout_ms: int = 0
    transaction_status: int = 0
    transaction_partitions: list[PartitionsSchema] | None = field(default_factory=list)
    transaction_last_update_timestamp_ms: int = 0
    transaction_start_timestamp_ms: int = 0
    client_transaction_version: int = 0


FIELDS: Final[Rows] = {
    "TransactionLogKey": (("transactional_id", "string", False, 0, 0, False, None, ""),),
    "PartitionsSchema": (
        ("topic", "string", False, 0, 1, False, None, ""),
        ("partition_ids", "int32", True, 0, 1, False, None, ""),
    ),
    "TransactionLogValue": (
        ("producer_id", "int64", False, 0, 1, False, None, 0),
        ("previous_producer_id", "int64", False, 1, 1, False, 0, -1),
        ("next_producer_id", "int64", False, 1, 1, False, 1, -1),
        ("producer_epoch", "int16", False, 0, 1, False, None, 0),
        ("next_producer_epoch", "int16", False, 1, 1, False, 3, -1),
        ("transaction_timeout_ms", "int32", False, 0, 1, False, None, 0),
        ("transaction_status", "int8", False, 0, 1, False, None, 0),
        ("transaction_partitions", "PartitionsSchema", True, 0, 1, True, None, ""),
        ("transaction_last_update_timestamp_ms", "int64", False, 0, 1, False, None, 0),
        ("transaction_start_timestamp_ms", "int64", False, 0, 1, False, None, 0),
        ("client_transaction_version", "int16", False, 1, 1, False, 2, 0),
    ),
}

RECORDS: Final = (RecordType(0, TransactionLogKey, TransactionLogValue, 0, 1, 1),)
