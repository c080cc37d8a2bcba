"""A shard of thousands of transactional ids: their number is decided by clients, so no look at all of them is made in one turn."""

from __future__ import annotations

import pytest

from app.coordinator.partition import ReplayedBatch
from app.core.metrics import Registry
from app.core.units import NO_PRODUCER_ID, Offset, PartitionIndex, ProducerEpoch, ProducerId, TimestampMs
from app.metadata.changes.internal_topics import KEYED_ID_PREFIX
from app.transactions import records
from app.transactions.counters import TransactionCounters
from app.transactions.shard import DECODED_AT_ONCE, KEYED_EXPIRATION_MS, LOOKED_AT_ONCE, Chore, TransactionShard
from app.transactions.state import Transaction, TransactionState

MANY = 1_000
OPEN = "open"
NOW_MS = 5_000


def transaction(transactional_id: str, state: TransactionState) -> Transaction:
    return Transaction(
        transactional_id=transactional_id,
        producer_id=ProducerId(7),
        epoch=ProducerEpoch(0),
        state=state,
        timeout_ms=60_000,
        updated_ms=TimestampMs(NOW_MS),
        started_ms=TimestampMs(NOW_MS),
    )


class Decoded:
    """Counts the records that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        decode = records.decode

        def counted(transactional_id: str, value: bytes) -> Transaction | None:
            self.count += 1
            return decode(transactional_id, value)

        monkeypatch.setattr(records, "decode", counted)


class Timers:
    """The turn of the end of a load."""

    now_ms = NOW_MS

    def __init__(self) -> None:
        self.set: list[object] = []

    def set_timer(self, key: object, _delay_ms: int) -> None:
        self.set.append(key)


def loaded_shard() -> TransactionShard:
    """Many ids at rest, and one with an open transaction."""
    shard = TransactionShard(
        PartitionIndex(0),
        lambda _partition, _transaction: None,
        expiration_ms=1 << 40,
        expiry_interval_ms=1 << 30,
        counters=TransactionCounters(Registry()),
    )
    states = (TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT)
    made = [transaction(f"id-{index}", state) for index in range(MANY) for state in states]
    made.append(transaction(OPEN, TransactionState.ONGOING))
    rows = [(record.key, record.value) for record in map(records.encode, made)]
    shard.load(ReplayedBatch(Offset(len(rows)), NO_PRODUCER_ID, ProducerEpoch(-1), rows, None))
    return shard


def test_a_list_of_all_ids_decodes_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, decoded = loaded_shard(), Decoded(monkeypatch)
    pieces = shard.all()
    assert len(next(pieces)) == decoded.count == DECODED_AT_ONCE
    rest = [one.transactional_id for piece in pieces for one in piece]
    assert decoded.count == MANY + 1
    assert len(set(rest)) == MANY + 1 - DECODED_AT_ONCE


def test_an_id_that_is_asked_for_during_a_list_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, decoded = loaded_shard(), Decoded(monkeypatch)
    pieces = shard.all()
    found = next(pieces)
    shard.get(f"id-{MANY - 1}")
    found += [one for piece in pieces for one in piece]
    assert len({one.transactional_id for one in found}) == len(found) == decoded.count == MANY + 1


def test_the_end_of_a_load_looks_at_incomplete_transactions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, decoded, turn = loaded_shard(), Decoded(monkeypatch), Timers()
    monkeypatch.setattr(records, "is_at_rest", None)
    shard.loaded(turn)  # type: ignore[arg-type]
    assert decoded.count == 1
    assert OPEN in turn.set


def test_an_open_transaction_is_known_before_the_end_of_a_load() -> None:
    shard, turn = loaded_shard(), Timers()
    assert [one.transactional_id for one in shard.busy_now()] == [OPEN]
    shard.loaded(turn)  # type: ignore[arg-type]
    assert OPEN in turn.set


class Turns:
    """Turns of a shard, at a time that the test sets."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.timers: dict[object, int] = {}
        self.tombstones = 0

    def set_timer(self, key: object, delay_ms: int) -> None:
        self.timers[key] = delay_ms

    def cancel_timer(self, key: object) -> None:
        self.timers.pop(key, None)

    def append(self, rows: list[tuple[bytes, bytes | None]]) -> None:
        self.tombstones += sum(value is None for _, value in rows)


def test_ids_of_keyed_requests_are_forgotten_ten_minutes_after_their_last_transaction() -> None:
    shard, turns = loaded_shard(), Turns()
    made = [transaction(f"{KEYED_ID_PREFIX}a.{index}", TransactionState.COMPLETE_COMMIT) for index in range(MANY)]
    made.append(transaction(f"{KEYED_ID_PREFIX}busy", TransactionState.ONGOING))
    rows = [(record.key, record.value) for record in map(records.encode, made)]
    shard.load(ReplayedBatch(Offset(len(rows)), NO_PRODUCER_ID, ProducerEpoch(-1), rows, None))
    shard.loaded(turns)  # type: ignore[arg-type]
    others = shard.id_count - len(made)
    assert turns.timers[Chore.KEYED_EXPIRY] == KEYED_EXPIRATION_MS
    turns.now_ms += KEYED_EXPIRATION_MS - 1
    looks = 0
    while looks == 0 or turns.timers[Chore.KEYED_EXPIRY] == 0:
        shard.due(turns, Chore.KEYED_EXPIRY)  # type: ignore[arg-type]
        looks += 1
    assert (looks, turns.tombstones) == (MANY // LOOKED_AT_ONCE + 1, 0), "each was looked at, and none is old enough"
    turns.now_ms += 1
    shard.due(turns, Chore.KEYED_EXPIRY)  # type: ignore[arg-type]
    while turns.timers[Chore.KEYED_EXPIRY] == 0:
        shard.due(turns, Chore.KEYED_EXPIRY)  # type: ignore[arg-type]
    assert turns.tombstones == MANY
    assert shard.id_count == others + 1, "the open transaction is kept, and so are the ids of other clients"
    assert turns.timers[Chore.KEYED_EXPIRY] == KEYED_EXPIRATION_MS
