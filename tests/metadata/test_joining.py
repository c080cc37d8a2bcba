"""What a broker does after an attempt to be registered that has failed: a table, and the two waits."""

from __future__ import annotations

import pytest

from app.core.errors import BrokerUnavailable, ErrorCode, ProtocolError, RequestRejected, StorageUnavailable
from app.metadata.membership.joining import PLACE_S, TELL_S, Attempts, GiveUp, TryAgain, after_attempt
from app.metadata.peers.control import NotSent

BEGUN = Attempts(100.0)
OTHERS = frozenset(ErrorCode) - {
    ErrorCode.NONE,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
}


def rejected(code: ErrorCode) -> RequestRejected:
    return RequestRejected(code, "The controller says no.")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (None, ""),
        (rejected(ErrorCode.NOT_CONTROLLER), ""),
        (rejected(ErrorCode.STALE_BROKER_EPOCH), ""),
        (rejected(ErrorCode.BROKER_NOT_AVAILABLE), ". The last attempt: the controller says no"),
        (rejected(ErrorCode.DUPLICATE_BROKER_REGISTRATION), ""),
        (NotSent("No connection."), ". The last attempt: no connection"),
        (BrokerUnavailable("It did not answer."), ""),
        (ProtocolError("It answered with a page."), ""),
        (StorageUnavailable("The store is away."), ""),
    ],
)
def test_a_failed_attempt_is_repeated_and_told_every_ten_seconds(
    error: RequestRejected | BrokerUnavailable | ProtocolError | StorageUnavailable | None, line: str
) -> None:
    refused = (
        100.0 if isinstance(error, RequestRejected) and error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION else None
    )
    assert after_attempt(BEGUN, error, 100.0, by_login=False) == TryAgain(Attempts(100.0, refused), None)
    later = 100.0 + TELL_S
    refused = later if refused is not None else None
    assert after_attempt(BEGUN, error, later, by_login=False) == TryAgain(Attempts(later, refused), line)


@pytest.mark.parametrize("code", sorted(OTHERS))
def test_a_refusal_that_lasts_ends_the_start_with_its_sentence(code: ErrorCode) -> None:
    assert after_attempt(BEGUN, rejected(code), 100.0, by_login=False) == GiveUp("The controller says no.")


@pytest.mark.parametrize(
    ("code", "by_login"),
    [(ErrorCode.DUPLICATE_BROKER_REGISTRATION, False), (ErrorCode.INVALID_REQUEST, True)],
)
def test_a_place_that_another_directory_has_is_waited_for_so_long(code: ErrorCode, by_login: bool) -> None:
    first = after_attempt(BEGUN, rejected(code), 105.0, by_login=by_login)
    assert isinstance(first, TryAgain)
    assert first.attempts.refused_s == 105.0
    between = after_attempt(first.attempts, None, 106.0, by_login=by_login)
    assert isinstance(between, TryAgain)
    assert between.attempts.refused_s == 105.0, "the wait goes on from the first refusal"
    before = after_attempt(between.attempts, rejected(code), 105.0 + PLACE_S - 0.1, by_login=by_login)
    assert isinstance(before, TryAgain)
    after = after_attempt(before.attempts, rejected(code), 105.0 + PLACE_S, by_login=by_login)
    assert after == GiveUp("The controller says no.")


def test_a_request_that_is_not_valid_ends_the_start_where_brokers_do_not_log_in() -> None:
    assert isinstance(after_attempt(BEGUN, rejected(ErrorCode.INVALID_REQUEST), 100.0, by_login=False), GiveUp)
