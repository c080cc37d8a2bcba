"""How many connections there may be, and how many a second."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.transport.admission import Admission, AdmissionLimits, pace


def test_a_full_broker_accepts_brokers_and_nobody_else() -> None:
    admission = Admission(AdmissionLimits(2, protected="IN"))
    for _ in range(2):
        assert admission.enter("OUT", "a", 0)
    assert admission.wait_s("OUT", 0) == math.inf
    assert admission.wait_s("IN", 0) == 0
    assert admission.excess() == 0
    assert admission.enter("IN", "a", 0)
    assert admission.excess() == 1
    admission.leave("OUT", "a")
    assert admission.excess() == 0
    assert admission.wait_s("OUT", 0) == math.inf
    admission.leave("OUT", "a")
    assert admission.wait_s("OUT", 0) == 0


def test_brokers_have_what_the_process_can_bear_and_never_close_one_another() -> None:
    admission = Admission(AdmissionLimits(1, protected="IN", protected_max=3))
    for _ in range(3):
        assert admission.wait_s("IN", 0) == 0
        assert admission.enter("IN", "a", 0)
    assert admission.excess() == 0
    assert admission.wait_s("IN", 0) == math.inf


def test_a_listener_has_a_limit_of_its_own_the_one_between_brokers_too() -> None:
    admission = Admission(AdmissionLimits(9, protected="IN", of_listener={"IN": 1, "OUT": 2}))
    assert admission.enter("IN", "a", 0)
    assert admission.wait_s("IN", 0) == math.inf
    for _ in range(2):
        assert admission.wait_s("OUT", 0) == 0
        assert admission.enter("OUT", "a", 0)
    assert admission.wait_s("OUT", 0) == math.inf
    assert admission.wait_s("OTHER", 0) == 0


def test_an_address_that_has_all_that_it_may_have_is_turned_away() -> None:
    admission = Admission(AdmissionLimits(9, of_address=1, of_addresses={"b": 2, "c": 0}))
    assert [admission.enter("X", "a", 0) for _ in range(2)] == [True, False]
    assert [admission.enter("Y", "b", 0) for _ in range(3)] == [True, True, False]
    assert not admission.enter("X", "c", 0)
    assert admission.total == 3
    admission.leave("X", "a")
    assert admission.enter("X", "a", 0)


def test_a_limit_that_is_lowered_asks_for_the_excess_back() -> None:
    admission = Admission(AdmissionLimits(9))
    for _ in range(4):
        admission.enter("X", "a", 0)
    admission.change(AdmissionLimits(3), 0)
    assert admission.excess() == 1


def test_a_rate_counts_for_clients_and_that_of_a_listener_for_all() -> None:
    admission = Admission(AdmissionLimits(99, protected="IN", rate=2, rates={"IN": 1, "OUT": 5}))
    admission.change(admission.limits._replace(window_s=2.0), 0)
    for _ in range(4):
        assert admission.wait_s("OUT", 0) == 0
        admission.enter("OUT", "a", 0)
    assert admission.wait_s("OUT", 0) == 0.5
    assert admission.wait_s("OTHER", 0) == 0.5
    for _ in range(2):
        assert admission.wait_s("IN", 0) == 0
        admission.enter("IN", "a", 0)
    assert admission.wait_s("IN", 0) == 1
    assert admission.wait_s("OUT", 0.5) == 0


def test_who_is_turned_back_by_the_rate_of_its_address_takes_nobodys_turn() -> None:
    admission = Admission(AdmissionLimits(99))
    admission.change(AdmissionLimits(99, rate=1), 0)
    admission.enter("X", "a", 0)
    assert admission.wait_s("X", 0) == 1
    admission.leave("X", "a")
    admission.turned_back("X", 0)
    assert admission.wait_s("X", 0) == 0


def test_a_limit_that_stays_as_it_is_forgives_nobody() -> None:
    admission = Admission(AdmissionLimits(99))
    limited = AdmissionLimits(99, rate=1, rates={"X": 1})
    admission.change(limited, 0)
    admission.enter("X", "a", 0)
    admission.change(limited._replace(of_address=5), 0)
    assert admission.wait_s("X", 0) == 1


def test_a_rate_of_nothing_lets_one_pass_in_each_window() -> None:
    made = pace(0, 2.0, 10)
    assert made.wait_s(1, 10) == 0
    made.take(1, 10)
    assert made.wait_s(1, 10) == 2


@given(st.integers(1, 50), st.integers(1, 5), st.lists(st.floats(0, 3), max_size=200))
def test_over_any_while_as_many_pass_as_the_rate_and_one_window_allow(
    rate: int, window_s: int, pauses_s: list[float]
) -> None:
    made = pace(rate, window_s, 0)
    now_s, passed = 0.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        while not made.wait_s(1, now_s):
            made.take(1, now_s)
            passed += 1
        assert passed <= rate * (now_s + window_s) + 1e-6
        assert made.wait_s(1, now_s) <= 1 / rate + 1e-6
