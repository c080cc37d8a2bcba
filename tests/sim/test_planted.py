"""The helper by which each world proves itself can fail."""

from __future__ import annotations

import pytest

from tests.sim.planted import assert_found
from tests.sim.violation import Violation

FOUND = {2: Violation("INV-4", "a gap"), 5: Violation("INV-1", "a lost record")}


def test_the_checker_that_is_meant_must_find_it_within_the_seeds() -> None:
    assert_found("INV-1", range(6), FOUND.get)
    assert_found({"INV-1", "INV-9"}, range(6), FOUND.get)


@pytest.mark.parametrize(("found_by", "seeds"), [("INV-1", range(5)), ("INV-9", range(6)), ("INV-1", range(0))])
def test_another_checker_or_a_later_seed_does_not_count(found_by: str, seeds: range) -> None:
    with pytest.raises(pytest.fail.Exception, match=found_by):
        assert_found(found_by, seeds, FOUND.get)


def test_the_failure_names_the_violations_that_did_not_count() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"seed 2: INV-4: a gap"):
        assert_found("INV-1", range(5), FOUND.get)


def test_no_seed_after_the_one_that_found_it_is_run() -> None:
    ran: list[int] = []

    def run(seed: int) -> Violation | None:
        ran.append(seed)
        return FOUND.get(seed)

    assert_found("INV-4", range(100), run)
    assert ran == [0, 1, 2]


def test_a_run_may_raise_its_violation() -> None:
    def run(seed: int) -> None:
        if seed in FOUND:
            raise FOUND[seed]

    assert_found("INV-1", range(6), run, other_ends=AssertionError)
    with pytest.raises(pytest.fail.Exception, match=r"seed 2: INV-4: a gap"):
        assert_found("INV-1", range(5), run)


def test_the_errors_that_end_a_run_count_only_if_they_are_named() -> None:
    def run(seed: int) -> Violation | None:
        if seed == 0:
            raise ExceptionGroup("broker", [ValueError("its own check")])
        return FOUND.get(seed)

    assert_found("INV-4", range(3), run, other_ends=ExceptionGroup)
    with pytest.raises(ExceptionGroup):
        assert_found("INV-4", range(3), run)
    with pytest.raises(pytest.fail.Exception, match="its own check"):
        assert_found("INV-1", range(3), run, other_ends=ExceptionGroup)
