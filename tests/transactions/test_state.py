"""Decisions about one transactional id, each as Apache Kafka 4.2 makes it where a client can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from app.transactions.state import (
    EPOCH_MAX,
    LAST_CLIENT_EPOCH,
    VERSION_1,
    VERSION_2,
    ProducerIdentity,
    ProducerIdNeeded,
    Transaction,
    TransactionState,
    add_partitions,
    check_partition,
    complete,
    end,
    fence,
    initialize,
)

NOW = TimestampMs(1_700_000_000_000)
A = TopicPartition("a", PartitionIndex(0))
B = TopicPartition("b", PartitionIndex(1))
EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT


def identity(producer_id: int, epoch: int) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(epoch))


def init(current: Transaction | None, expected: tuple[int, int] | None = None, spare: int | None = 9) -> Transaction:
    return initialize(
        current,
        "t",
        timeout_ms=1000,
        expected=None if expected is None else identity(*expected),
        spare_id=None if spare is None else ProducerId(spare),
        now_ms=NOW,
    )


def open_transaction(epoch: int = 0, **fields: Any) -> Transaction:
    made = replace(init(None, spare=7), epoch=ProducerEpoch(epoch))
    return replace(
        add_partitions(made, identity(7, epoch), [A], client_version=VERSION_2, now_ms=NOW)
        if epoch < EPOCH_MAX
        else made,
        **fields,
    )


def finish(
    current: Transaction | None, by: tuple[int, int], *, commit: bool, version: int = VERSION_2, spare: int | None = 9
) -> Transaction:
    return end(
        current,
        identity(*by),
        commit=commit,
        client_version=version,
        spare_id=None if spare is None else ProducerId(spare),
        now_ms=NOW,
    )


def refused(code: ErrorCode, decide: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(RequestRejected) as raised:
        decide(*arguments, **named)
    assert raised.value.code is code, raised.value


# --- InitProducerId ---------------------------------------------------------------------------------------------------


def test_a_new_id_begins_at_epoch_0_of_a_producer_id_of_its_own() -> None:
    made = init(None, spare=7)
    assert (made.producer_id, made.epoch, made.state, made.timeout_ms) == (7, 0, EMPTY, 1000)
    with pytest.raises(ProducerIdNeeded):
        init(None, spare=None)


def test_whoever_comes_next_raises_the_epoch() -> None:
    second = init(init(None, spare=7))
    assert second.client_identity == identity(7, 1)
    completed = complete(finish(open_transaction(), (7, 0), commit=True), NOW)
    assert init(completed).client_identity == identity(7, 2)


def test_a_client_that_goes_on_raises_its_epoch_and_may_ask_twice() -> None:
    made = init(None, spare=7)
    bumped = init(made, (7, 0))
    assert bumped.client_identity == identity(7, 1)
    assert init(bumped, (7, 0)).client_identity == identity(7, 1)
    assert init(bumped, (7, 1)).client_identity == identity(7, 2)


def test_a_client_that_was_fenced_cannot_go_on() -> None:
    made = init(init(init(None, spare=7)))
    refused(ErrorCode.PRODUCER_FENCED, init, made, (7, 1))
    refused(ErrorCode.PRODUCER_FENCED, init, made, (7, 0))
    refused(ErrorCode.PRODUCER_FENCED, init, made, (8, 2))


def test_an_open_transaction_is_aborted_first_under_epochs_that_nobody_has() -> None:
    ongoing = open_transaction()
    aborting = init(ongoing)
    assert (aborting.state, aborting.epoch, aborting.partitions) == (PREPARE_ABORT, 1, {A})
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, init, aborting)
    assert init(complete(aborting, NOW)).client_identity == identity(7, 2)


def test_epochs_that_are_used_up_lead_to_another_producer_id() -> None:
    last = replace(init(None, spare=7), epoch=ProducerEpoch(LAST_CLIENT_EPOCH))
    with pytest.raises(ProducerIdNeeded):
        init(last, spare=None)
    rotated = init(last, (7, LAST_CLIENT_EPOCH))
    assert rotated.client_identity == identity(9, 0)
    assert init(rotated, (7, LAST_CLIENT_EPOCH)).client_identity == identity(9, 0)
    refused(ErrorCode.PRODUCER_FENCED, init, init(rotated), (7, LAST_CLIENT_EPOCH))


def test_a_fence_at_the_last_epoch_leaves_one_that_nobody_was_given() -> None:
    fenced = complete(fence(open_transaction(LAST_CLIENT_EPOCH), NOW), NOW)
    assert (fenced.epoch, fenced.state) == (EPOCH_MAX, COMPLETE_ABORT)
    for version in (VERSION_1, VERSION_2):
        refused(ErrorCode.PRODUCER_FENCED, finish, fenced, (7, LAST_CLIENT_EPOCH), commit=False, version=version)
    refused(
        ErrorCode.PRODUCER_FENCED, add_partitions, fenced, identity(7, EPOCH_MAX), [A], client_version=2, now_ms=NOW
    )
    refused(ErrorCode.PRODUCER_FENCED, finish, fenced, (7, EPOCH_MAX), commit=False)
    assert init(fenced).client_identity == identity(9, 0)
    goes_on = init(fenced, (7, LAST_CLIENT_EPOCH))
    assert goes_on.client_identity == identity(9, 0)
    assert init(goes_on, (7, LAST_CLIENT_EPOCH)).client_identity == identity(9, 0)


# --- partitions -------------------------------------------------------------------------------------------------------


def test_the_first_partition_begins_the_transaction_and_others_join_it() -> None:
    first = add_partitions(init(None, spare=7), identity(7, 0), [A], client_version=VERSION_2, now_ms=NOW)
    assert (first.state, first.started_ms, first.deadline_ms) == (ONGOING, NOW, NOW + 1000)
    later = TimestampMs(NOW + 5)
    both = add_partitions(first, identity(7, 0), [A, B], client_version=VERSION_2, now_ms=later)
    assert (both.partitions, both.started_ms, both.updated_ms) == ({A, B}, NOW, later)
    assert add_partitions(both, identity(7, 0), [B], client_version=VERSION_2, now_ms=later) is both


def test_a_clock_that_was_set_back_keeps_no_transaction_open_for_longer_than_its_time_out() -> None:
    ongoing = open_transaction(3)
    began = ongoing.started_ms
    wanted = ((began - 600_000, 1000), (began, 1000), (began + 400, 600), (began + 1000, 0), (began + 9000, 0))
    for now_ms, left_ms in wanted:
        assert ongoing.left_ms(now_ms) == left_ms


def test_only_the_owner_adds_and_only_what_was_added_may_be_written() -> None:
    ongoing = open_transaction(3)
    for by, code in (
        ((8, 3), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((7, 2), ErrorCode.PRODUCER_FENCED),
        ((7, 4), ErrorCode.PRODUCER_FENCED),
    ):
        refused(code, add_partitions, ongoing, identity(*by), [B], client_version=VERSION_2, now_ms=NOW)
        refused(code, check_partition, ongoing, identity(*by), A)
    refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, check_partition, None, identity(7, 3), A)
    refused(ErrorCode.TRANSACTION_ABORTABLE, check_partition, ongoing, identity(7, 3), B)
    check_partition(ongoing, identity(7, 3), A)


def test_nothing_is_added_while_markers_are_written() -> None:
    prepared = finish(open_transaction(), (7, 0), commit=True, version=VERSION_1)
    code = ErrorCode.CONCURRENT_TRANSACTIONS
    refused(code, add_partitions, prepared, identity(7, 0), [A], client_version=VERSION_1, now_ms=NOW)
    refused(code, check_partition, prepared, identity(7, 0), A)


# --- the end ----------------------------------------------------------------------------------------------------------


def at_rest(state: TransactionState) -> Transaction:
    """A transaction in that state after a client of version 2 that was at epoch 4, and is at epoch 5 now."""
    if state is EMPTY:
        return init(replace(init(None, spare=7), epoch=ProducerEpoch(4)))
    return complete(finish(open_transaction(4), (7, 4), commit=state is COMPLETE_COMMIT), NOW)


OK, PF, ITS = None, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("state", "commit", "again", "now"),
    [
        # What is answered to the epoch before, and to the present one; the table of KIP-890, and KAFKA-20785.
        (EMPTY, False, PF, PREPARE_ABORT),
        (EMPTY, True, PF, ITS),
        (COMPLETE_ABORT, False, OK, PREPARE_ABORT),
        (COMPLETE_ABORT, True, PF, ITS),
        (COMPLETE_COMMIT, False, ITS, PREPARE_ABORT),
        (COMPLETE_COMMIT, True, OK, ITS),
    ],
)
def test_version_2_tells_a_repeated_end_from_the_next_by_its_epoch(
    state: TransactionState, commit: bool, again: ErrorCode | None, now: ErrorCode | TransactionState
) -> None:
    current = at_rest(state)
    if state is EMPTY:
        # The epoch before was fenced by whoever initialized, and only an end that was asked for can be repeated.
        refused(PF, finish, current, (7, 4), commit=commit)
    elif again is None:
        assert finish(current, (7, 4), commit=commit) is current
    else:
        refused(again, finish, current, (7, 4), commit=commit)
    if isinstance(now, TransactionState):
        ended = finish(current, (7, 5), commit=commit)
        assert (ended.state, ended.epoch, ended.partitions) == (now, 6, frozenset())
    else:
        refused(now, finish, current, (7, 5), commit=commit)
    for epoch in (3, 6):
        refused(PF, finish, current, (7, epoch), commit=commit)


def test_version_2_raises_the_epoch_with_every_end() -> None:
    prepared = finish(open_transaction(4), (7, 4), commit=True)
    assert (prepared.state, prepared.epoch, prepared.partitions) == (PREPARE_COMMIT, 5, {A})
    completed = complete(prepared, NOW)
    assert (completed.state, completed.client_identity, completed.partitions) == (
        COMPLETE_COMMIT,
        identity(7, 5),
        frozenset(),
    )


CT, IPM = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("how", "by", "first", "second"),
    [
        # Who asks while markers are written, and what an end of the first and of the second protocol is answered. The open
        # transaction was at epoch 4 of producer 7.
        ("version 1", (7, 3), PF, CT),
        ("version 1", (7, 4), CT, CT),
        ("version 1", (7, 5), PF, CT),
        ("version 1", (8, 4), IPM, CT),
        ("version 2", (7, 3), PF, CT),
        ("version 2", (7, 4), PF, CT),  # the client repeats its request
        ("version 2", (7, 5), CT, CT),  # the client ends its next transaction
        ("version 2", (7, 6), PF, CT),
        ("version 2", (8, 5), IPM, CT),
        ("fenced", (7, 4), PF, CT),
        ("fenced", (7, 5), CT, CT),
        ("overflowed", (9, 0), IPM, CT),  # the client has its next producer id
        ("overflowed", (7, LAST_CLIENT_EPOCH), PF, CT),
    ],
)
@pytest.mark.parametrize("decided", [PREPARE_COMMIT, PREPARE_ABORT])
@pytest.mark.parametrize("commit", [True, False])
def test_all_wait_for_the_markers_whatever_they_ask_for(
    how: str, by: tuple[int, int], first: ErrorCode, second: ErrorCode, decided: TransactionState, commit: bool
) -> None:
    match how:
        case "fenced":
            current = replace(fence(open_transaction(4), NOW), state=decided)
        case "overflowed":
            current = finish(
                open_transaction(LAST_CLIENT_EPOCH), (7, LAST_CLIENT_EPOCH), commit=decided is PREPARE_COMMIT
            )
        case _:
            version = VERSION_1 if how == "version 1" else VERSION_2
            current = finish(open_transaction(4), (7, 4), commit=decided is PREPARE_COMMIT, version=version)
    assert current.state is decided
    refused(first, finish, current, by, commit=commit, version=VERSION_1)
    refused(second, finish, current, by, commit=commit)
    refused(CT, init, current, by)
    refused(CT, init, current)
    for version in (VERSION_1, VERSION_2):
        refused(CT, add_partitions, current, identity(*by), [A], client_version=version, now_ms=NOW)


def test_version_2_goes_on_as_another_producer_when_epochs_are_used_up() -> None:
    ongoing = open_transaction(LAST_CLIENT_EPOCH)
    with pytest.raises(ProducerIdNeeded):
        finish(ongoing, (7, LAST_CLIENT_EPOCH), commit=True, spare=None)
    prepared = finish(ongoing, (7, LAST_CLIENT_EPOCH), commit=True)
    assert (prepared.producer_id, prepared.epoch) == (7, EPOCH_MAX)
    assert prepared.client_identity == identity(9, 0)
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, finish, prepared, (7, LAST_CLIENT_EPOCH), commit=True)
    completed = complete(prepared, NOW)
    assert completed.client_identity == identity(9, 0)
    assert finish(completed, (7, LAST_CLIENT_EPOCH), commit=True) is completed
    refused(ITS, finish, completed, (7, LAST_CLIENT_EPOCH), commit=False)
    refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, finish, completed, (7, LAST_CLIENT_EPOCH - 1), commit=True)


def test_version_1_keeps_the_epoch_and_repeats_by_state() -> None:
    prepared = finish(open_transaction(4), (7, 4), commit=True, version=VERSION_1)
    assert (prepared.state, prepared.epoch) == (PREPARE_COMMIT, 4)
    completed = complete(prepared, NOW)
    assert completed.client_identity == identity(7, 4)
    assert finish(completed, (7, 4), commit=True, version=VERSION_1) is completed
    refused(ITS, finish, completed, (7, 4), commit=False, version=VERSION_1)
    refused(ITS, finish, init(None, spare=7), (7, 0), commit=False, version=VERSION_1)
    refused(PF, finish, completed, (7, 3), commit=True, version=VERSION_1)


def test_a_client_whose_time_was_up_cannot_commit() -> None:
    fencing = fence(open_transaction(4), NOW)
    fenced = complete(fencing, NOW)
    refused(PF, finish, fenced, (7, 4), commit=True)
    for current in (fencing, fenced):
        for commit in (True, False):
            refused(PF, finish, current, (7, 4), commit=commit, version=VERSION_1)


def test_a_client_whose_time_was_up_goes_on_if_nobody_was_first() -> None:
    fenced = complete(fence(open_transaction(4), NOW), NOW)
    assert finish(fenced, (7, 4), commit=False).client_identity == identity(7, 5)
    assert init(fenced, (7, 4)).client_identity == identity(7, 5)
    other = init(fenced)
    refused(PF, finish, other, (7, 4), commit=False)
    refused(PF, init, other, (7, 4))


def test_an_unknown_id_has_no_owner() -> None:
    for version in (VERSION_1, VERSION_2):
        refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, finish, None, (7, 0), commit=True, version=version)


def test_ids_expire_only_at_rest() -> None:
    for state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
        assert at_rest(state).is_expired(NOW + 10, 10)
        assert not at_rest(state).is_expired(NOW + 9, 10)
    ongoing = open_transaction()
    assert not ongoing.is_expired(NOW + 10**9, 10)
    assert not finish(ongoing, (7, 0), commit=True).is_expired(NOW + 10**9, 10)
