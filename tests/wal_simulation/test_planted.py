"""The simulation proves itself: each rule that is taken back is missed by the checker meant for it, within a number of seeds."""

from __future__ import annotations

import pytest

from tests.wal_simulation.planted import PLANTED
from tests.wal_simulation.world import run_seed

QUICK_SEEDS = 20
"""Faults that need more seeds are left to the slow tests."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if one.seeds > QUICK_SEEDS else ()) for name, one in PLANTED.items()],
)
def test_a_rule_taken_back_is_found_by_the_checker_meant_for_it(name: str) -> None:
    planted = PLANTED[name]
    others: list[str] = []
    for seed in range(planted.seeds):
        violation = run_seed(seed, planted.rules, **planted.plan).violation
        if violation is not None:
            if violation.invariant == planted.found_by:
                return
            others.append(f"seed {seed}: {violation}")
    pytest.fail("\n".join([f"{planted.found_by} did not find it in {planted.seeds} seeds; found were:", *others]))
