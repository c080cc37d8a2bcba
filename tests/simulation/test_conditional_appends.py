"""Whole brokers that take conditional appends, in the simulation of clusters (ADR 0043, EO18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.cluster_simulation.planted_conditional import CONDITIONAL, LOST, PLANTED, REFUSED
from tests.cluster_simulation.world import Outcome, run_seed
from tests.sim.planted import assert_found
from tests.simulation.seeds import describe

KINDS: dict[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "leaders die": (("kill leader", "reset", "restart"), CONDITIONAL),
    "brokers are cut off": (("isolate", "partition", "pause leader"), CONDITIONAL | {"seconds": 15.0}),
    "leaders move": (("leaders move", "leaders move", "slow network"), CONDITIONAL | {"pause_s": 0.5}),
    "leaders lose the ends of their logs": (("end is lost",), LOST),
    "a leader dies after it has refused": (("refusal before a death",), REFUSED),
    "markers alone come": (("reset",), CONDITIONAL | {"producers": 0, "partitions": 3}),
}
SEEDS = 2
SLOW_SEEDS = range(100, 110)


def check(kind: str, seed: int) -> Outcome:
    faults, shape = KINDS[kind]
    outcome = run_seed(seed, faults=faults, shape=shape)
    assert outcome.violation is None, describe(outcome)
    return outcome


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
def test_an_append_follows_what_its_caller_has_read_or_is_refused(kind: str) -> None:
    outcomes = [check(kind, seed) for seed in range(SEEDS)]
    assert sum(outcome.acks for outcome in outcomes) > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_of_many_seeds(kind: str) -> None:
    for seed in SLOW_SEEDS:
        check(kind, seed)


@pytest.mark.ci
@pytest.mark.parametrize("name", PLANTED)
def test_a_part_of_the_rule_that_is_taken_back_is_found_by_the_checker_meant_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = PLANTED[name]
    fault.plant(monkeypatch)
    seeds = range(fault.first, fault.first + fault.seeds)
    assert_found(fault.found_by, seeds, lambda seed: run_seed(seed, faults=fault.faults, shape=fault.shape).violation)
