"""The simulation proves itself: each rule that is taken back does harm, which its checker finds within a number of seeds."""

from __future__ import annotations

from contextlib import ExitStack
from unittest import mock

import pytest

from tests.sim.planted import assert_found
from tests.wal_simulation.checkers import RESTATING
from tests.wal_simulation.planted import LEGAL, PLANTED
from tests.wal_simulation.world import run_seed

QUICK_SEEDS = 5
"""Faults that need more seeds are left to the slow tests."""

LEGAL_SEEDS = range(500, 506)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if one.seeds > QUICK_SEEDS else pytest.mark.ci)
        for name, one in PLANTED.items()
    ],
)
def test_a_rule_taken_back_does_harm_that_is_found(name: str) -> None:
    planted = PLANTED[name]
    harms = planted.found_by.split()
    assert not RESTATING.intersection(harms)
    with ExitStack() as stack:
        for target, instead in planted.patches.items():
            stack.enter_context(mock.patch(target, instead))
        assert_found(
            harms,
            range(planted.first, planted.first + planted.seeds),
            lambda seed: run_seed(seed, planted.rules, muted=True, **planted.plan).violation,
            other_ends=AssertionError,  # the cores notice much themselves, but the harm must be found without them
        )


@pytest.mark.ci
@pytest.mark.parametrize("name", LEGAL)
def test_another_way_to_keep_a_rule_does_no_harm(name: str) -> None:
    for seed in LEGAL_SEEDS:
        violation = run_seed(seed, LEGAL[name]).violation
        assert violation is None, f"seed {seed}: {violation}"
