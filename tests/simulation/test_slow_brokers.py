"""Whole brokers whose loops stand while their threads go on, in the simulation of clusters (ADR 0023: L6, C10)."""

from __future__ import annotations

import pytest

from tests.cluster_simulation.planted_slow import PLANTED
from tests.cluster_simulation.slow import SHAPE, SLOW
from tests.cluster_simulation.world import run_seed
from tests.sim.planted import assert_found
from tests.sim.violation import Violation

SEEDS = 3
SLOW_SEEDS = 20


def check(scenario: str, seed: int) -> None:
    outcome = run_seed(seed, faults=(scenario,), shape=SHAPE)
    assert outcome.violation is None, f"{scenario}, seed {seed}: {outcome.violation}\n" + "\n".join(outcome.lines[-60:])
    assert any("scenario over" in line for line in outcome.lines)


@pytest.mark.ci
@pytest.mark.parametrize("scenario", SLOW)
def test_who_is_only_starved_is_kept_for_nine_seconds_and_gets_no_right_by_its_thread(scenario: str) -> None:
    for seed in range(SEEDS):
        check(scenario, seed)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SLOW)
def test_the_same_of_many_seeds(scenario: str) -> None:
    for seed in range(100, 100 + SLOW_SEEDS):
        check(scenario, seed)


@pytest.mark.ci
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_planted_into_pulses_is_found_by_the_checker_meant_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = PLANTED[name]

    def run(seed: int) -> Violation | None:
        with monkeypatch.context() as patch:
            fault.plant(patch)
            return run_seed(seed, faults=(fault.scenario,), shape=SHAPE).violation

    assert_found(fault.found_by, range(fault.seeds), run)
