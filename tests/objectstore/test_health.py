"""When a store counts as away: requests that wait, requests that were given up, and failures."""

from __future__ import annotations

from app.objectstore.health import KNOWN_S, PROBE_S, SILENT_S, StoreHealth


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def health() -> tuple[StoreHealth, Time]:
    time = Time()
    return StoreHealth(time), time


def test_a_store_that_was_never_asked_is_not_in_trouble() -> None:
    store, time = health()
    time.now_s += 1000
    assert store.trouble() == ""


def test_a_request_without_an_answer_makes_the_store_silent_after_a_while() -> None:
    store, time = health()
    request = store.begin()
    probe_unanswered(store, time)
    time.now_s += SILENT_S - PROBE_S - 0.1
    assert store.trouble() == ""
    time.now_s += 1.1
    assert store.trouble() == f"The object store has not responded for {SILENT_S + 1:.0f} s."
    store.answered(request)
    assert store.trouble() == ""


def probe_unanswered(store: StoreHealth, time: Time) -> None:
    """Wait until a probe is due, and send it."""
    due_s = store.probe_in_s()
    assert due_s is not None
    time.now_s += due_s
    assert store.probe_in_s() == 0
    store.probe_begins()
    assert store.probe_in_s() is None


def test_one_slow_request_is_no_silence_while_probes_are_answered() -> None:
    store, time = health()
    request = store.begin()
    for _ in range(10):
        probe_unanswered(store, time)
        time.now_s += 1
        store.probe_ended(answered=True)
        assert store.trouble() == ""
        assert store.probe_in_s() == PROBE_S
    store.given_up(request)
    assert store.trouble() == ""
    assert store.probe_in_s() is None


def test_a_request_of_which_no_probe_could_be_sent_yet_says_nothing() -> None:
    """A loop that stood still for long has not asked yet."""
    store, time = health()
    store.begin()
    time.now_s += 60
    assert store.trouble() == ""
    store.probe_begins()
    time.now_s += PROBE_S
    assert store.trouble() == f"The object store has not responded for {60 + PROBE_S:.0f} s."


def test_a_probe_that_fails_is_sent_again_and_counts_as_not_answered() -> None:
    store, time = health()
    store.begin()
    probe_unanswered(store, time)
    time.now_s += 1
    store.probe_ended(answered=False)
    assert store.probe_in_s() == 0
    time.now_s += PROBE_S
    assert store.trouble() != ""


def test_a_slow_request_beside_others_that_are_answered_is_no_silence() -> None:
    store, time = health()
    store.begin()
    for _ in range(10):
        quick = store.begin()
        time.now_s += SILENT_S - 1
        store.answered(quick)
        assert store.trouble() == ""


def test_silence_goes_on_while_every_request_is_given_up_and_ends_with_an_answer() -> None:
    store, time = health()
    for _ in range(3):
        request = store.begin()
        if store.probe_in_s() is not None:
            probe_unanswered(store, time)
        time.now_s += 10 - PROBE_S
        store.given_up(request)
        time.now_s += 10
    assert store.trouble() == "The object store has not responded for 55 s."
    store.answered(store.begin())
    assert store.trouble() == ""


def test_a_request_that_is_given_up_soon_says_nothing_of_the_store() -> None:
    store, time = health()
    request = store.begin()
    time.now_s += SILENT_S - 1
    store.given_up(request)
    time.now_s += 100
    assert store.trouble() == ""


def test_a_failure_that_is_over_soon_is_no_trouble() -> None:
    store, time = health()
    store.failed(store.begin(), "the store process is not running yet")
    assert store.trouble() == ""
    time.now_s += 1
    store.failed(store.begin(), "the store process is not running yet")
    assert store.trouble() == ""


def test_failures_are_told_with_the_newest_reason_since_the_first() -> None:
    store, time = health()
    store.failed(store.begin(), "AccessDenied.")
    time.now_s += 7
    store.failed(store.begin(), "no route to host")
    assert store.trouble() == "The object store has failed for 7 s: no route to host."
    time.now_s += KNOWN_S
    assert store.trouble() == ""  # the next request finds out
    store.failed(store.begin(), "no route to host")
    assert store.trouble() == f"The object store has failed for {7 + KNOWN_S:.0f} s: no route to host."
    store.answered(store.begin())
    assert store.trouble() == ""
