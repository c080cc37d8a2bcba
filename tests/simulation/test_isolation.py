"""Whole brokers that hear less than all, in the simulation of clusters (ADR 0040)."""

from __future__ import annotations

import pytest

from tests.cluster_simulation.isolation import ISOLATION, shape_of
from tests.cluster_simulation.planted_isolation import PLANTED, hosts
from tests.cluster_simulation.world import Outcome, run_seed
from tests.sim.planted import assert_found
from tests.sim.violation import Violation

SEEDS = 2
SLOW_SEEDS = 20
QUICK = frozenset(
    {"no isolation", "IS1 the hosts are no sign", "IS2 brokers count, not hosts", "IS6 the first sign ends it"}
)
"""Planted faults of the default suite."""


def run(scenario: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    if scenario == "machine cut off":
        hosts(monkeypatch)
    return run_seed(seed, faults=(scenario,), shape=shape_of(scenario))


def check(scenario: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run(scenario, seed, monkeypatch)
    assert outcome.violation is None, f"{scenario}, seed {seed}: {outcome.violation}\n" + "\n".join(outcome.lines[-60:])
    assert any("scenario over" in line for line in outcome.lines)


@pytest.mark.ci
@pytest.mark.parametrize("scenario", ISOLATION)
def test_who_hears_nobody_is_isolated_and_clients_get_on_and_who_hears_anybody_is_not(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            check(scenario, seed, patch)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ISOLATION)
def test_the_same_of_many_seeds(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100, 100 + SLOW_SEEDS):
        with monkeypatch.context() as patch:
            check(scenario, seed, patch)


@pytest.mark.ci
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_planted_into_isolation_is_found_by_the_checker_meant_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = PLANTED[name]

    def run(seed: int) -> Violation | None:
        with monkeypatch.context() as patch:
            if fault.scenario == "machine cut off":
                hosts(patch)
            fault.plant(patch)
            return run_seed(seed, faults=(fault.scenario,), shape=shape_of(fault.scenario)).violation

    assert_found(fault.found_by, range(fault.seeds), run)
