"""Transactions from and to the records of ``__transaction_state``, which Kafka's own tools can read."""

from __future__ import annotations

from collections import defaultdict
from struct import Struct
from typing import Final

from app.coordinator.records import TRANSACTION_RECORDS, CoordinatorRecord
from app.coordinator.schemas.transaction import PartitionsSchema, TransactionLogKey, TransactionLogValue
from app.errors import CorruptionError
from app.transactions.state import AT_REST, Transaction, TransactionState
from app.units import PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition

VALUE_VERSION: Final = 1
"""What Kafka writes where ``transaction.version`` is 2."""
_HEAD: Final = Struct(">hqhib")
"""How a value begins in every version: version, producer id, epoch, time-out, state."""
DEAD: Final = 6
"""Kafka's number for an id that is being forgotten; it is never in a log, but has a place among the states."""


def encode(transaction: Transaction) -> CoordinatorRecord:
    """The record that says all of ``transaction`` but its last epoch. Raises: ValueError if it cannot be said."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(transaction.partitions):
        by_topic[topic].append(partition)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=(
            None
            if transaction.state is TransactionState.EMPTY
            else [PartitionsSchema(topic, partitions) for topic, partitions in by_topic.items()]
        ),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
    )
    return TRANSACTION_RECORDS.record(TransactionLogKey(transaction.transactional_id), value, VALUE_VERSION)


def tombstone(transactional_id: str) -> CoordinatorRecord:
    """The record by which an id is forgotten."""
    return TRANSACTION_RECORDS.record(TransactionLogKey(transactional_id), None)


def decode_id(key: bytes) -> str | None:
    """The transactional id of a record; None for a kind that is not known here. Raises: CorruptionError."""
    decoded = TRANSACTION_RECORDS.decode_key(key)
    return decoded.transactional_id if isinstance(decoded, TransactionLogKey) else None


def is_at_rest(value: bytes) -> bool:
    """Whether a record says that nothing is open and no marker is owed, so that it can be decoded later. Cheap.

    Raises: CorruptionError for what is no such record, or of a version that is not known.
    """
    if len(value) < _HEAD.size:
        raise CorruptionError(f"a transaction's record has {len(value)} bytes")
    version, _, _, _, state = _HEAD.unpack_from(value)
    if not 0 <= version <= VALUE_VERSION:
        raise CorruptionError(f"a transaction's record has version {version}, which is not known")
    return state == DEAD or state in AT_REST


def decode(transactional_id: str, value: bytes) -> Transaction | None:
    """What a record says; None if the id is to be forgotten: Kafka has a state for that. Raises: CorruptionError."""
    fields = TRANSACTION_RECORDS.decode_value(TransactionLogKey(transactional_id), value)
    assert isinstance(fields, TransactionLogValue)
    if fields.transaction_status == DEAD:
        return None
    try:
        state = TransactionState(fields.transaction_status)
    except ValueError:
        raise CorruptionError(
            f"the transaction of {transactional_id} is in state {fields.transaction_status}, which is not known"
        ) from None
    return Transaction(
        transactional_id=transactional_id,
        producer_id=ProducerId(fields.producer_id),
        epoch=ProducerEpoch(fields.producer_epoch),
        state=state,
        timeout_ms=fields.transaction_timeout_ms,
        updated_ms=TimestampMs(fields.transaction_last_update_timestamp_ms),
        started_ms=TimestampMs(fields.transaction_start_timestamp_ms),
        partitions=frozenset(
            TopicPartition(each.topic, PartitionIndex(partition))
            for each in fields.transaction_partitions or ()
            for partition in each.partition_ids
        ),
        previous_producer_id=ProducerId(fields.previous_producer_id),
        next_producer_id=ProducerId(fields.next_producer_id),
        client_version=fields.client_transaction_version,
    )
