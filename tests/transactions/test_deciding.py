"""What becomes of open transactions whose coordinator has lost its records (ADR 0037, J46e, J46f)."""

from __future__ import annotations

import pytest

from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from app.transactions.deciding import Doubt, OpenTransaction, Outcome, decide, doubts, outcome_of
from app.transactions.decisions import Decision, decided_ms, encode_decision, parse_decision
from app.transactions.state import (
    EPOCH_MAX,
    LAST_CLIENT_EPOCH,
    VERSION_1,
    VERSION_2,
    ProducerIdentity,
    Transaction,
    TransactionState,
    add_partitions,
    complete,
    end,
)

A, B, C = (TopicPartition(name, PartitionIndex(0)) for name in "abc")
ID = ProducerId(7)


def open_in(target: TopicPartition, epoch: int = 3, coordinator_epoch: int = -1) -> OpenTransaction:
    return OpenTransaction(target, ID, ProducerEpoch(epoch), coordinator_epoch)


def outcome(epoch: int, *, commit: bool = True, decided: int = -1, of: tuple[TopicPartition, ...] = ()) -> Outcome:
    return Outcome(ID, ProducerEpoch(epoch), commit, decided, frozenset(of))


def commits(opened: list[OpenTransaction], outcomes: list[Outcome], applying: list[Doubt] | None = None) -> list[bool]:
    return [marker.commit for _, marker in decide(opened, outcomes, applying or [], 5)]


@pytest.mark.parametrize(
    ("outcomes", "committed"),
    [
        ([], False),
        ([outcome(4)], True),
        ([outcome(4, commit=False)], False),
        ([outcome(4, commit=False), outcome(4)], True),
        ([outcome(3)], False),  # of the transaction before, in the second protocol
        ([outcome(5)], False),
        ([Outcome(ProducerId(8), ProducerEpoch(4), True)], False),
    ],
)
def test_the_marker_of_the_next_epoch_decides(outcomes: list[Outcome], committed: bool) -> None:
    assert commits([open_in(A), open_in(B)], outcomes) == [committed] * 2
    assert doubts([open_in(A)], outcomes) == []


def test_a_marker_of_the_first_protocol_decides_for_the_partitions_it_names() -> None:
    opened = [open_in(A), open_in(B), open_in(C, epoch=4)]
    outcomes = [outcome(3, decided=10, of=(A, C)), outcome(3, decided=20, of=(B, C))]
    found = doubts(opened, outcomes)
    assert found == [Doubt(opened[0], 10, True), Doubt(opened[1], 20, True)]
    assert commits(opened, outcomes, [found[1]]) == [False, True, False]
    assert commits(opened, outcomes) == [False] * 3


def test_of_several_markers_of_the_first_protocol_the_last_counts() -> None:
    outcomes = [outcome(3, decided=30, of=(A, B)), outcome(3, decided=10, of=(A, B))]
    assert [one.decided_ms for one in doubts([open_in(A)], outcomes)] == [30]


def test_markers_fence_the_producer_and_every_coordinator_of_before() -> None:
    decided = decide([open_in(A), open_in(B, LAST_CLIENT_EPOCH, 9), open_in(C, EPOCH_MAX)], [], [], 5)
    assert [(target, marker.identity, marker.coordinator_epoch) for target, marker in decided] == [
        (A, ProducerIdentity(ID, ProducerEpoch(4)), 5),
        (B, ProducerIdentity(ID, ProducerEpoch(EPOCH_MAX)), 9),
        (C, ProducerIdentity(ID, ProducerEpoch(EPOCH_MAX)), 5),
    ]
    assert {marker.transaction_version for _, marker in decided} == {VERSION_2}


def test_who_decides_again_after_a_crash_finds_the_same() -> None:
    opened = [open_in(A), open_in(B), open_in(C)]
    first = decide(opened, [outcome(3, decided=10, of=(A, B, C))], [Doubt(one, 10, True) for one in opened], 5)
    (_, written), *_ = first
    left = opened[1:]
    again = decide(left, [Outcome(written.identity.producer_id, written.identity.epoch, written.commit)], [], 6)
    assert [marker.commit for _, marker in again] == [True, True]


def transaction(state: TransactionState, version: int) -> Transaction:
    return Transaction(
        transactional_id="x",
        producer_id=ID,
        epoch=ProducerEpoch(4),
        state=state,
        timeout_ms=1000,
        updated_ms=TimestampMs(50),
        partitions=frozenset((A, B)),
        client_version=version,
    )


def test_a_prepare_record_tells_as_its_markers_would() -> None:
    assert outcome_of(transaction(TransactionState.PREPARE_COMMIT, VERSION_2)) == outcome(4)
    assert outcome_of(transaction(TransactionState.PREPARE_ABORT, VERSION_2)) == outcome(4, commit=False)
    first = outcome_of(transaction(TransactionState.PREPARE_COMMIT, VERSION_1))
    assert first == outcome(4, decided=50, of=(A, B))
    for state in (TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT):
        assert outcome_of(transaction(state, VERSION_2)) is None


def test_decisions_of_the_first_protocol_have_rising_times_whatever_the_clock_says() -> None:
    now = transaction(TransactionState.EMPTY, VERSION_1)
    mine = ProducerIdentity(now.producer_id, now.epoch)
    times = []
    for clock in (60, 60, 10, 10, 61):
        at = TimestampMs(clock)
        now = add_partitions(now, mine, [A], client_version=VERSION_1, now_ms=at)
        now = end(now, mine, commit=True, client_version=VERSION_1, spare_id=None, now_ms=at)
        times.append(now.updated_ms)
        now = complete(now, at)
    assert times == sorted(set(times))


def test_a_decision_survives_its_header() -> None:
    decision = Decision(1_700_000_000_000, frozenset((A, B, TopicPartition("a", PartitionIndex(9)))))
    data = encode_decision(decision)
    assert parse_decision(data) == decision
    assert decided_ms(data) == decision.decided_ms
    for damaged in (b"", data[:-1], b"\x93\x02" + data[2:], b"\xff", data + b"\x00"):
        assert parse_decision(damaged) is None
        assert decided_ms(damaged) == -1
