"""The state of a request that was just read."""

from __future__ import annotations

from app.handlers.base.request import UNKNOWN_SOFTWARE, Request
from app.wire.apikeys import ApiKey
from tests.support.callers import SOMEBODY


def new_request() -> Request:
    return Request(ApiKey.METADATA, 1, 7, "test", SOMEBODY)


def test_a_request_that_another_broker_passes_on_is_not_throttled_again() -> None:
    assert new_request().throttle_time_ms == 0


def test_nothing_of_a_new_request_is_refused_or_known() -> None:
    new = new_request()
    assert (new.denied, new.is_free, new.software, new.about) == (None, False, UNKNOWN_SOFTWARE, None)


def test_requests_share_no_tasks_unless_they_share_a_connection() -> None:
    assert new_request().on_close is not new_request().on_close
