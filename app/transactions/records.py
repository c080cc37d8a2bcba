"""Encodes and decodes transactions as records of ``__transaction_state``. Kafka's own tools can read them."""

from __future__ import annotations

from collections import defaultdict
from struct import Struct
from typing import Final

from app.coordinator.records import TRANSACTION_RECORDS, CoordinatorRecord
from app.coordinator.schemas.transaction import PartitionsSchema, TransactionLogKey, TransactionLogValue
from app.core.errors import CorruptionError
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from app.transactions.state import AT_REST, Transaction, TransactionState

VALUE_VERSION: Final = 1
"""The version that Kafka writes if ``transaction.version`` is 2."""
_HEAD: Final = Struct(">hqhib")
"""The first fields of a value in every version: version, producer id, epoch, time-out, state."""
DEAD: Final = 6
"""Kafka's number of the state of an id that is being forgotten. It is never in a log."""

_DECIDED: Final = Struct(">h")
_DECIDED_NUMBER: Final = 0x4657
"""Kind of the note that the recovery from a loss is complete. Kafka does not know this kind, and skips it."""
_DECIDED_VALUE: Final = Struct(">hi")
_DECIDED_VERSION: Final = 0


def encode(transaction: Transaction) -> CoordinatorRecord:
    """Encode all of ``transaction`` except its last epoch. Raises: ValueError if it cannot be encoded."""
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
    """The tombstone of an id."""
    return TRANSACTION_RECORDS.record(TransactionLogKey(transactional_id), None)


def decode_id(key: bytes) -> str | None:
    """The transactional id of a record; None for an unknown kind. Raises: CorruptionError."""
    decoded = TRANSACTION_RECORDS.decode_key(key)
    return decoded.transactional_id if isinstance(decoded, TransactionLogKey) else None


def decided_note(leader_epoch: int) -> CoordinatorRecord:
    """The note that all is done that losses of the log's end up to this leader epoch asked for (ADR 0037, J46)."""
    return CoordinatorRecord(_DECIDED.pack(_DECIDED_NUMBER), _DECIDED_VALUE.pack(_DECIDED_VERSION, leader_epoch))


def decode_note(key: bytes, value: bytes | None) -> int | None:
    """The leader epoch of a ``decided_note``; None for any other record. Raises: CorruptionError for an unknown version."""
    if key != _DECIDED.pack(_DECIDED_NUMBER) or value is None:
        return None
    if len(value) != _DECIDED_VALUE.size:
        raise CorruptionError(f"A note of what a loss asked for has {len(value)} bytes.")
    version, leader_epoch = _DECIDED_VALUE.unpack(value)
    if version != _DECIDED_VERSION:
        raise CorruptionError(f"A note of what a loss asked for has version {version}, which is not known.")
    return int(leader_epoch)


def producer_id_of(value: bytes) -> ProducerId:
    """The producer id of a record that ``is_at_rest`` could read. Cheap."""
    return ProducerId(_HEAD.unpack_from(value)[1])


def is_at_rest(value: bytes) -> bool:
    """Whether a record's transaction is neither open nor waiting for markers, so that it can be decoded later. Cheap.

    Raises: CorruptionError for a wrong record or an unknown version.
    """
    if len(value) < _HEAD.size:
        raise CorruptionError(f"A transaction's record has {len(value)} bytes.")
    version, _, _, _, state = _HEAD.unpack_from(value)
    if not 0 <= version <= VALUE_VERSION:
        raise CorruptionError(f"A transaction's record has version {version}, which is not known.")
    return state == DEAD or state in AT_REST


def decode(transactional_id: str, value: bytes) -> Transaction | None:
    """Decode a record; None if its state says that the id is being forgotten. Raises: CorruptionError."""
    fields = TRANSACTION_RECORDS.decode_value(TransactionLogKey(transactional_id), value)
    assert isinstance(fields, TransactionLogValue)
    if fields.transaction_status == DEAD:
        return None
    try:
        state = TransactionState(fields.transaction_status)
    except ValueError:
        raise CorruptionError(
            f"The transaction of {transactional_id} is in state {fields.transaction_status}, which is not known."
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
