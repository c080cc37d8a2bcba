"""Whole brokers that serve keyed requests of whole HTTP processes' producers, in the simulation of clusters (ADR 0043)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from tests.cluster_simulation.keyed import AT_ONCE
from tests.cluster_simulation.planted_keyed import CUT_OFF, KEYED, OBJECTS, PLANTED, markers_of_results_are_lost
from tests.cluster_simulation.world import Outcome, run_seed
from tests.sim.planted import assert_found
from tests.simulation.seeds import describe

GATHERED: Final = "leaders gather"
KINDS: dict[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "leaders die": (("kill leader", "restart", "reset", "leaders gather"), KEYED),
    "brokers are cut off": (("isolate", "partition", "pause leader", "leaders gather"), KEYED | {"seconds": 15.0}),
    "clocks jump": (("clock", "clock", "kill leader"), KEYED | {"pause_s": 0.7}),
    "processes are cut off": (("http cut off", "leaders gather"), CUT_OFF),
    GATHERED: (("leaders gather", "slow network"), KEYED | {"pause_s": 0.7}),
    "disks are lost": (("disks lost", "wal away", "wal answers lost", "leaders gather"), OBJECTS),
    "results move": (("results move", "slow network"), KEYED | {"pause_s": 0.5}),
}
SEEDS = 1
SLOW_SEEDS = range(100, 108)
LOST_MARKER = "had lost its marker"


def check(kind: str, seed: int, keep: Callable[[str], None] = lambda _line: None) -> Outcome:
    faults, shape = KINDS[kind]
    outcome = run_seed(seed, faults=faults, shape=shape, keep=keep)
    assert outcome.violation is None, describe(outcome)
    return outcome


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
def test_each_key_is_stored_once_and_answered_alike(kind: str) -> None:
    lines: list[str] = []
    outcomes = [check(kind, seed, lines.append) for seed in range(SEEDS)]
    assert sum(outcome.acks for outcome in outcomes) > 20
    if kind == GATHERED:
        assert any(AT_ONCE in line and "'committed'" in line for line in lines)


@pytest.mark.ci
def test_a_result_that_has_lost_its_marker_is_decided_by_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    markers_of_results_are_lost(monkeypatch)
    lines: list[str] = []
    for seed in range(4):
        outcome = run_seed(seed, faults=("kill leader",), shape=KEYED, keep=lines.append)
        assert outcome.violation is None, describe(outcome)
        if any(LOST_MARKER in line for line in lines):
            return
    raise AssertionError("no seed lost the marker of a result")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_of_many_seeds(kind: str) -> None:
    for seed in SLOW_SEEDS:
        check(kind, seed)


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_again() -> None:
    assert check("leaders die", 1).trace_hash == check("leaders die", 1).trace_hash


@pytest.mark.ci
@pytest.mark.parametrize("name", PLANTED)
def test_a_rule_that_is_taken_back_is_found_by_the_checker_meant_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = PLANTED[name]
    fault.plant(monkeypatch)
    seeds = range(fault.first, fault.first + fault.seeds)
    assert_found(fault.found_by, seeds, lambda seed: run_seed(seed, faults=fault.faults, shape=fault.shape).violation)
