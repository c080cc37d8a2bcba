"""The steps of a keyed request: each answer, and what is done next."""

from __future__ import annotations

import pytest

from app.exactly_once.attempt import (
    Aborted,
    Attempt,
    Busy,
    InProgress,
    Known,
    OtherBody,
    Refused,
    Step,
    Stored,
    Undecided,
    Unknown,
)
from app.exactly_once.records import Part, Result

BODY = b"b" * 32
MINE = Result(b"m" * 16, BODY, 200, 0, 0, (Part("t", 0, 5, 1, -1),), (0,))
OTHERS = MINE._replace(try_id=b"o" * 16)
ERROR = OSError("a record has no offset")


def step_of(attempt: Attempt) -> Step:
    return attempt.step


def begun() -> Attempt:
    attempt = Attempt(MINE.try_id, BODY)
    attempt.found(Unknown())
    attempt.began()
    return attempt


def committing() -> Attempt:
    attempt = begun()
    attempt.written(MINE)
    assert step_of(attempt) is Step.RESULT
    attempt.accepted()
    assert step_of(attempt) is Step.COMMIT
    return attempt


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (Known(OTHERS), Stored(OTHERS)),
        (Known(OTHERS._replace(digest=b"x" * 32)), OtherBody()),
        (Busy(OTHERS.try_id), InProgress()),
        (Refused(ERROR), Aborted(ERROR)),
    ],
)
def test_a_key_that_is_taken_is_answered_without_a_write(found: object, outcome: object) -> None:
    attempt = Attempt(MINE.try_id, BODY)
    attempt.found(found)  # type: ignore[arg-type]
    assert (attempt.step, attempt.outcome, attempt.wrote) == (Step.DONE, outcome, False)


def test_a_try_whose_commit_succeeds_is_stored() -> None:
    attempt = committing()
    attempt.ended(success=True)
    assert attempt.outcome == Stored(MINE)


@pytest.mark.parametrize(
    ("found", "outcome"), [(Known(MINE), Stored(MINE)), (Unknown(), Aborted(None)), (Busy(MINE.try_id), None)]
)
def test_after_any_other_answer_the_result_decides(found: object, outcome: object) -> None:
    attempt = committing()
    attempt.ended(success=False)
    assert attempt.step is Step.SETTLE
    attempt.found(Refused(ERROR))  # an error of a look-up decides nothing
    attempt.found(found)  # type: ignore[arg-type]
    assert attempt.outcome == outcome
    if outcome is None:
        attempt.gave_up()
        assert attempt.outcome == Undecided()


def test_a_record_that_fails_aborts_the_try() -> None:
    attempt = begun()
    attempt.failed(ERROR)
    assert step_of(attempt) is Step.ABORT
    attempt.ended(success=False)
    assert attempt.outcome == Aborted(ERROR)


def test_a_transaction_that_did_not_begin_is_not_ended() -> None:
    attempt = Attempt(MINE.try_id, BODY)
    attempt.found(Unknown())
    attempt.failed(ERROR)
    assert attempt.outcome == Aborted(ERROR)


def test_a_try_that_lost_its_key_gets_the_response_of_the_other() -> None:
    attempt = begun()
    attempt.written(MINE)
    attempt.refused(None)
    assert step_of(attempt) is Step.ABORT
    attempt.ended(success=True)
    assert attempt.step is Step.LOOK
    attempt.found(Known(OTHERS))
    assert attempt.outcome == Stored(OTHERS)


def test_a_try_that_lost_its_key_to_an_aborted_one_writes_no_second_time() -> None:
    attempt = begun()
    attempt.written(MINE)
    attempt.refused(None)
    attempt.ended(success=True)
    attempt.found(Unknown())
    assert attempt.outcome == Aborted(None)


def test_a_refused_result_is_the_answer() -> None:
    attempt = begun()
    attempt.written(MINE)
    attempt.refused(ERROR)
    attempt.ended(success=True)
    assert attempt.outcome == Aborted(ERROR)


# --- a broker takes all steps -----------------------------------------------------------------------------------------


def unanswered() -> Attempt:
    attempt = Attempt(MINE.try_id, BODY)
    attempt.unanswered(ERROR)
    assert (step_of(attempt), attempt.wrote, attempt.lost) == (Step.ABORT, True, True)
    return attempt


@pytest.mark.parametrize(
    ("found", "outcome"), [(Known(OTHERS), Stored(OTHERS)), (Unknown(), Aborted(ERROR)), (Busy(MINE.try_id), None)]
)
def test_a_try_without_an_answer_that_is_aborted_waits_until_its_result_is_gone(found: object, outcome: object) -> None:
    attempt = unanswered()
    attempt.ended(success=True)
    assert step_of(attempt) is Step.SETTLE
    attempt.found(found)  # type: ignore[arg-type]
    assert attempt.outcome == outcome


@pytest.mark.parametrize(("found", "outcome"), [(Known(MINE), Stored(MINE)), (Unknown(), Undecided())])
def test_a_try_without_an_answer_that_is_not_known_to_be_aborted_may_still_be_committed(
    found: object, outcome: object
) -> None:
    attempt = unanswered()
    attempt.ended(success=False)
    assert step_of(attempt) is Step.SETTLE
    attempt.found(Refused(ERROR))
    attempt.found(found)  # type: ignore[arg-type]
    assert attempt.outcome == outcome
