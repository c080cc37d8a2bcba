"""The table of ``Acceptance``: which reason refuses which work, and until when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

import pytest

from app.core.errors import ConflictError, ErrorCode, FirnError, RequestRejected, StorageUnavailable
from app.core.units import PartitionIndex
from app.hot.acceptance import Acceptance, LogWork
from app.hot.journal import JournaledEnd

ACCESS, FOLLOW, LEAD, BEGIN = LogWork

REFUSED_BY: Final[dict[str, tuple[LogWork, ...]]] = {
    "closed": (ACCESS, FOLLOW, LEAD, BEGIN),
    "not led": (LEAD, BEGIN),
    "sealed": (FOLLOW, LEAD, BEGIN),
    "paused": (LEAD, BEGIN),
    "settling": (BEGIN,),
}
"""Reasons in the order in which they are named to the caller."""

MAKE: Final[dict[str, Callable[[Acceptance], None]]] = {
    "closed": lambda state: state.refuse(StorageUnavailable("closed")),
    "not led": lambda state: state.resign(),
    "sealed": lambda state: state.seal(RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, "sealed")),
    "paused": lambda state: state.pause(RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, "paused")),
    "settling": lambda state: state.settle(RequestRejected(ErrorCode.CONCURRENT_TRANSACTIONS, "settling")),
}


SUBSETS: Final = tuple(product([False, True], repeat=len(REFUSED_BY)))


class Journal:
    def admit(self, size_bytes: int, batches: int = 1) -> None:
        raise AssertionError("the state asks no journal")

    def take(self, written: Sequence[memoryview]) -> None:
        raise AssertionError("the state hands nothing over")


def opened() -> Acceptance:
    return Acceptance("t", PartitionIndex(3))


def because(*reasons: str) -> Acceptance:
    state = opened()
    for reason in reasons:
        MAKE[reason](state)
    return state


def refusal_of(state: Acceptance, work: LogWork) -> str | None:
    """The reason that the state names for ``work``; None if it accepts it."""
    try:
        state.check(work)
    except RequestRejected as error:
        not_led = (ErrorCode.NOT_LEADER_OR_FOLLOWER, "This broker does not lead t-3.")
        return "not led" if (error.code, str(error)) == not_led else str(error)
    except StorageUnavailable as error:
        return str(error)
    return None


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("present", SUBSETS)
def test_the_first_reason_that_refuses_a_kind_of_work_is_named(present: tuple[bool, ...], backwards: bool) -> None:
    reasons = [reason for reason, there in zip(REFUSED_BY, present, strict=True) if there]
    state = because(*(reversed(reasons) if backwards else reasons))
    for work in LogWork:
        expected = next((reason for reason in reasons if work in REFUSED_BY[reason]), None)
        assert refusal_of(state, work) == expected, work


@pytest.mark.parametrize("present", SUBSETS)
def test_a_state_that_is_not_guarded_refuses_no_append_but_the_begin_of_a_transaction(
    present: tuple[bool, ...],
) -> None:
    reasons = [reason for reason, there in zip(REFUSED_BY, present, strict=True) if there]
    state = because(*reasons)
    refuses = any(refusal_of(state, work) is not None for work in (ACCESS, FOLLOW, LEAD))
    assert state.guarded == refuses


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (Acceptance.go_on, ["closed", "not led", "sealed"]),
        (Acceptance.lead, ["closed", "sealed"]),
        (Acceptance.resign, ["closed", "not led", "sealed", "paused", "settling"]),
        (Acceptance.leave_journal, ["closed", "not led", "sealed", "paused", "settling"]),
        (Acceptance.mend, ["closed", "not led", "sealed", "paused", "settling"]),
    ],
)
@pytest.mark.parametrize("reason", REFUSED_BY)
def test_a_change_ends_these_reasons_and_no_others(
    change: Callable[[Acceptance], None], left: list[str], reason: str
) -> None:
    state = because(reason)
    change(state)
    named = refusal_of(state, BEGIN)
    if change is Acceptance.resign and reason in ("sealed", "paused", "settling"):
        assert named == "not led"
        state.led = True
        named = refusal_of(state, BEGIN)
    assert named == (reason if reason in left else None)


def guarded_after(state: Acceptance, *changes: Callable[[Acceptance], None]) -> list[bool]:
    """Whether the state is guarded before the changes, and after each of them."""
    seen = [state.guarded]
    for change in changes:
        change(state)
        seen.append(state.guarded)
    return seen


def begin_journal(state: Acceptance) -> None:
    state.begin_journal(JournaledEnd(Journal(), 0))


def test_a_torn_write_guards_appends_and_refuses_none() -> None:
    assert guarded_after(opened(), Acceptance.tear, Acceptance.mend) == [False, True, False]
    state = opened()
    state.tear()
    assert [refusal_of(state, work) for work in LogWork] == [None] * 4


def test_a_journal_guards_appends_also_of_the_leadership_that_begins_behind_it_and_refuses_none() -> None:
    state = opened()
    changes = (begin_journal, Acceptance.lead, Acceptance.leave_journal)
    assert guarded_after(state, *changes) == [False, True, True, False]
    begin_journal(state)
    assert [refusal_of(state, work) for work in LogWork] == [None] * 4


@pytest.mark.parametrize("reason", [*REFUSED_BY, "torn"])
def test_runs_are_taken_beside_a_journal_unless_batches_of_the_leader_are_refused_or_bytes_must_be_cut_off(
    reason: str,
) -> None:
    state = opened()
    begin_journal(state)
    assert state.takes_runs
    (MAKE | {"torn": Acceptance.tear})[reason](state)
    assert state.takes_runs == (reason == "settling"), "a run begins no transaction"


def test_the_end_of_one_reason_to_guard_leaves_another() -> None:
    state = because("paused")
    changes = (Acceptance.tear, Acceptance.mend, Acceptance.tear, Acceptance.go_on, Acceptance.mend)
    assert guarded_after(state, *changes) == [True, True, True, True, True, False]


def test_each_raised_error_is_a_copy_and_the_given_one_is_not_kept() -> None:
    given = ConflictError("closed")
    state = opened()
    state.refuse(given)
    raised: list[FirnError] = []
    for _ in range(2):
        with pytest.raises(ConflictError) as caught:
            state.check(ACCESS)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert given not in raised
    assert state.refusal is not given
    assert state.refusal not in raised


def test_a_later_error_replaces_an_earlier_one() -> None:
    state = because("closed")
    state.refuse(StorageUnavailable("offline"))
    assert refusal_of(state, ACCESS) == "offline"
