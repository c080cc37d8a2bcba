"""Ages of results: by sums of bounded gaps, in slices of a minute."""

from __future__ import annotations

from app.exactly_once.ages import Ages
from app.exactly_once.bounds import Amount, Usage

MINUTE = 60_000
HOUR = 60 * MINUTE


def ticked(ages: Ages, begin: int, end: int) -> int:
    for now in range(begin + MINUTE, end + 1, MINUTE):
        ages.pass_time(now)
    return end


def test_a_result_expires_after_the_retention_and_not_before() -> None:
    usage = Usage()
    ages = Ages(usage)
    ages.pass_time(0)
    ages.add(0, "a", 100)
    ticked(ages, 0, HOUR - MINUTE)
    assert ages.expire(HOUR, 61, None) == 0
    assert usage.total == Amount(1, 100)
    ages.pass_time(HOUR)
    assert ages.expire(HOUR, 62, None) == 62
    assert usage.total == Amount()
    assert ages.is_empty


def test_a_clock_that_jumps_ahead_adds_two_minutes() -> None:
    ages = Ages(Usage())
    ages.pass_time(0)
    ages.add(0, "a", 100)
    ages.pass_time(1_000 * HOUR)
    assert ages.expire(2 * MINUTE + 1, 2, None) == 0
    assert ages.expire(2 * MINUTE, 2, None) == 2


def test_a_clock_that_goes_back_adds_nothing_and_time_goes_on_from_there() -> None:
    ages = Ages(Usage())
    ages.pass_time(10 * HOUR)
    ages.add(0, "a", 100)
    ages.pass_time(0)
    assert ages.expire(1, 2, None) == 0
    ages.pass_time(MINUTE)
    assert ages.expire(MINUTE, 3, None) == 3


def test_a_slice_lives_until_its_newest_result_is_old() -> None:
    ages = Ages(Usage())
    ages.pass_time(0)
    ages.add(0, "a", 100)
    ages.pass_time(MINUTE - 1)
    ages.add(1, "a", 100)
    ages.pass_time(2 * MINUTE - 1)
    ages.add(2, "b", 100)
    assert ages.expire(MINUTE + 1, 3, None) == 0
    assert ages.expire(MINUTE, 3, None) == 2


def test_an_open_result_keeps_its_slice_and_all_behind_it() -> None:
    usage = Usage()
    ages = Ages(usage)
    ages.pass_time(0)
    ages.add(5, "a", 100)
    ticked(ages, 0, HOUR)
    assert ages.expire(MINUTE, 70, 5) == 5
    assert usage.total.keys == 1
    assert ages.expire(MINUTE, 70, None) == 70


def test_a_result_is_kept_for_the_retention_by_the_age_of_its_slice() -> None:
    ages = Ages(Usage())
    ages.pass_time(0)
    ages.add(0, "a", 100)
    ages.pass_time(MINUTE)
    ages.add(1, "a", 100)
    ages.pass_time(MINUTE + HOUR)  # a clock that jumps lets two minutes pass
    assert [ages.is_kept(offset, 3 * MINUTE) for offset in (0, 1)] == [False, True]
    ages.expire(3 * MINUTE, 3, None)
    assert [ages.is_kept(offset, HOUR) for offset in (0, 1)] == [False, True]


def test_an_aborted_result_is_taken_back_where_it_was_counted() -> None:
    usage = Usage()
    ages = Ages(usage)
    ages.pass_time(0)
    ages.add(0, "a", 100)
    ages.add(1, "b", 50)
    ticked(ages, 0, 2 * MINUTE)
    ages.add(4, "a", 30)
    ages.remove(0, "a", 100)
    assert usage.by_principal == {"a": Amount(1, 30), "b": Amount(1, 50)}
    ages.expire(2 * MINUTE, 5, None)
    assert usage.by_principal == {"a": Amount(1, 30)}
    ages.remove(1, "b", 50)  # it has expired
    ages.forget_all()
    assert usage.total == Amount()
