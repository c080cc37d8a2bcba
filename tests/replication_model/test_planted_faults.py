"""The model proves itself: each rule that is taken back is missed by the checker meant for it, within a stated number of seeds."""

from __future__ import annotations

import pytest

from tests.replication_model.planted import PLANTED
from tests.replication_model.world import run_seed
from tests.sim.planted import assert_found

QUICK_SEEDS = 60
"""Faults that need more seeds are left to the slow tests."""


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if one.seeds > QUICK_SEEDS else ()) for name, one in PLANTED.items()],
)
def test_a_rule_taken_back_is_found_by_the_checker_meant_for_it(name: str) -> None:
    planted = PLANTED[name]
    assert_found(
        planted.found_by,
        range(planted.seeds),
        lambda seed: run_seed(seed, planted.rules, **planted.plan).violation,
    )
