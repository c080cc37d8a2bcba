"""Records of ``__transaction_state``: every field there and back, both versions, and damage told as such."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.coordinator.records import TRANSACTION_RECORDS
from app.coordinator.schemas.transaction import PartitionsSchema, TransactionLogKey, TransactionLogValue
from app.core.errors import CorruptionError
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from app.transactions import records
from app.transactions.state import AT_REST, NO_EPOCH, Transaction, TransactionState

int64 = st.integers(-1, (1 << 63) - 1)
partitions = st.builds(
    TopicPartition, st.text(max_size=20), st.integers(0, (1 << 31) - 1).map(lambda index: PartitionIndex(index))
)
transactions = st.builds(
    Transaction,
    transactional_id=st.text(max_size=50),
    producer_id=int64.map(ProducerId),
    epoch=st.integers(-1, 32_767).map(ProducerEpoch),
    state=st.sampled_from(TransactionState),
    timeout_ms=st.integers(0, (1 << 31) - 1),
    updated_ms=int64.map(TimestampMs),
    started_ms=int64.map(TimestampMs),
    partitions=st.frozensets(partitions, max_size=5),
    previous_producer_id=int64.map(ProducerId),
    next_producer_id=int64.map(ProducerId),
    last_epoch=st.integers(-1, 32_767).map(ProducerEpoch),
    client_version=st.integers(0, 3),
)


@given(transactions)
def test_a_record_says_all_but_the_last_epoch(transaction: Transaction) -> None:
    if transaction.state is TransactionState.EMPTY:
        transaction = replace(transaction, partitions=frozenset())
    key, value = records.encode(transaction)
    assert value is not None
    transactional_id = records.decode_id(key)
    assert transactional_id == transaction.transactional_id
    assert records.decode(transactional_id, value) == replace(transaction, last_epoch=NO_EPOCH)
    assert records.is_at_rest(value) == (transaction.state in AT_REST)


@given(transactions, st.data())
def test_damage_is_told_as_such(transaction: Transaction, data: st.DataObject) -> None:
    value = records.encode(replace(transaction, partitions=frozenset())).value
    assert value is not None
    damaged = bytearray(value[: data.draw(st.integers(0, len(value)))])
    if damaged and data.draw(st.booleans()):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for read in (records.is_at_rest, lambda found: records.decode("t", found)):
        with suppress(CorruptionError):
            read(bytes(damaged))


def test_what_older_brokers_wrote_is_read() -> None:
    written = TransactionLogValue(
        producer_id=7,
        producer_epoch=3,
        transaction_timeout_ms=1000,
        transaction_status=1,
        transaction_partitions=[PartitionsSchema("a", [0, 2])],
        transaction_last_update_timestamp_ms=5,
        transaction_start_timestamp_ms=4,
    )
    _, value = TRANSACTION_RECORDS.record(TransactionLogKey("t"), written, 0)
    assert value is not None
    found = records.decode("t", value)
    assert found is not None
    assert (found.producer_id, found.epoch, found.state) == (7, 3, TransactionState.ONGOING)
    assert found.partitions == {TopicPartition("a", PartitionIndex(0)), TopicPartition("a", PartitionIndex(2))}
    assert (found.previous_producer_id, found.next_producer_id, found.client_version) == (-1, -1, 0)


def test_a_dead_id_is_forgotten_and_a_version_that_is_not_known_is_refused() -> None:
    _, value = TRANSACTION_RECORDS.record(
        TransactionLogKey("t"), TransactionLogValue(transaction_status=records.DEAD), 1
    )
    assert value is not None
    assert records.is_at_rest(value)
    assert records.decode("t", value) is None
    newer = b"\0\2" + value[2:]
    for read in (records.is_at_rest, lambda found: records.decode("t", found)):
        with pytest.raises(CorruptionError, match="version 2"):
            read(newer)
    strange = TRANSACTION_RECORDS.record(TransactionLogKey("t"), TransactionLogValue(transaction_status=9), 1).value
    assert strange is not None
    with pytest.raises(CorruptionError, match="state 9"):
        records.decode("t", strange)


def test_other_keys_are_passed_over() -> None:
    assert records.decode_id(b"\0\5anything") is None
    assert records.tombstone("t").value is None
