"""Buckets of tokens: they fill at their rate, and may be in debt."""

from __future__ import annotations

import pytest

from app.core.buckets import AHEAD_S, NO_LIMIT, Bucket

RATE, CAPACITY = 10.0, 50.0


def bucket() -> Bucket:
    return Bucket(RATE, CAPACITY, 100.0)


def test_a_full_bucket_gives_all_it_has_without_a_wait_and_goes_into_debt_then() -> None:
    one = bucket()
    assert one.take(CAPACITY, 100.0) == 0.0
    assert one.take(20.0, 100.0) == 2.0
    assert one.balance(100.0) == -20.0


def test_a_debt_is_paid_at_the_rate_and_the_bucket_fills_to_its_capacity_only() -> None:
    one = bucket()
    one.take(CAPACITY + 20.0, 100.0)
    assert one.balance(101.0) == -10.0
    assert one.wait_s(5.0, 101.0) == 1.5
    assert one.take(0.0, 102.0) == 0.0
    assert one.balance(10_000.0) == CAPACITY
    assert one.wait_s(CAPACITY, 10_000.0) == 0.0


def test_tokens_that_were_taken_ahead_are_used_without_a_call_and_counted_once() -> None:
    one = bucket()
    one.take_ahead()
    ahead = RATE * AHEAD_S
    assert (one.ahead, one.left) == (ahead, CAPACITY - ahead)
    one.take_ahead()
    assert (one.ahead, one.left) == (ahead, CAPACITY - ahead), "they are there already"
    one.ahead -= 0.1
    assert one.balance(100.0) == pytest.approx(CAPACITY - 0.1)
    assert one.take(1.0, 100.0) == 0.0
    assert one.ahead == 0.0
    assert one.left == pytest.approx(CAPACITY - 1.1)


def test_nothing_is_taken_ahead_of_a_bucket_that_lacks_it() -> None:
    one = bucket()
    one.take(CAPACITY, 100.0)
    one.take_ahead()
    assert (one.ahead, one.left) == (0.0, 0.0)


def test_a_new_limit_cuts_what_is_in_the_bucket_and_a_debt_to_one_full_bucket() -> None:
    one = bucket()
    one.change(1.0, 5.0, 100.0)
    assert one.balance(100.0) == 5.0
    one.change(RATE, CAPACITY, 100.0)
    one.take(505.0, 100.0)
    one.change(1.0, 5.0, 100.0)
    assert one.balance(100.0) == -5.0
    assert one.balance(103.0) == -2.0


def test_where_there_is_no_limit_no_caller_waits() -> None:
    assert NO_LIMIT.take(1e30, 0.0) == 0.0
    assert NO_LIMIT.wait_s(1e30, 0.0) == 0.0
    assert NO_LIMIT.balance(0.0) > 1e300
    NO_LIMIT.take_ahead()
    assert NO_LIMIT.ahead > 1e300
