"""Waits that end together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.seams import MOMENT_APART_S, MOMENT_S, shared_wait_s


def test_waits_that_began_at_different_times_end_at_one_moment() -> None:
    assert {now_s + shared_wait_s(now_s, 0.5) for now_s in (10.0, 10.125, 10.25, 10.375)} == {10.5}


def test_whoever_is_at_a_moment_waits_the_whole_time() -> None:
    assert shared_wait_s(10.0, 0.5) == 0.5
    assert shared_wait_s(10.0, 2.0) == 2.0


def test_a_wait_without_a_moment_in_it_keeps_its_length() -> None:
    assert shared_wait_s(10.125, 0.25) == 0.25


def test_nobody_waits_for_the_moment_at_which_it_was_woken() -> None:
    assert shared_wait_s(10.5 - 1e-9, 0.5) == 0.5, "a timer came early by a rounding"


@given(st.floats(0, 1e7), st.floats(0.01, 100))
def test_no_wait_is_longer_than_was_asked_for_nor_next_to_nothing(now_s: float, wait_s: float) -> None:
    found_s = shared_wait_s(now_s, wait_s)
    assert min(wait_s, MOMENT_APART_S) <= found_s <= wait_s + 1e-6
    assert found_s > wait_s - MOMENT_S - MOMENT_APART_S
