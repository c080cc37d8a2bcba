"""Seeds of the simulation of clusters, and that a seed is all there is to a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.handlers.state.fetch_sessions import CachedPartition, FetchSession
from tests.cluster_simulation import planted, planted_coordinators
from tests.cluster_simulation.faults import FAULTS
from tests.cluster_simulation.world import run_seed
from tests.sim.planted import assert_found
from tests.simulation.seeds import describe, run_seeds

ROOT = Path(__file__).parents[2]
PLANTED = planted.PLANTED | planted_coordinators.PLANTED
SEEDS = 6
"""Of the default suite: each meets another kind of client of coordinators, or an upgrade, or begins as one broker."""
SLOW_SEEDS = 90
SLOW_SEEDS_FROM = 1_000
QUICK = frozenset(
    {
        "A6 a hole of a compacted log is kept",
        "F1 requests are passed on again",
        "M2 leadership kept over a restart",
        "M7 unfenced before it has applied",
        "T3 followers drop what the tier lacks",
        "V1 followers show what is not committed",
        "R2 a set of any size commits",
        "S1 what is fetched counts as stored",
        "E2 one epoch for two leaders",
        "a transaction committed in one of its partitions",
        "the next end fenced while markers are written",
        "G4 a commit answered before it is committed",
        "a partition assigned before it is given up",
        "a record shared twice",
        "a level that a registered program does not understand",
    }
)
"""Planted faults of the default suite; the others are found by the slow tests."""


LIKE_A3 = PLANTED["A3 nothing is given up"]
FOUND = {
    "an empty log of a tiered partition without its checkpoint of epochs (R10)": (6, LIKE_A3.faults, LIKE_A3.shape),
    "min.insync.replicas that was changed counted with the next change only": (
        0,
        None,
        {"actors": ("transactions",), "from_0": False},
    ),
    "the image of the next leadership committed what the last one had only half stored": (
        26,
        ("pause leader", "isolate", "partition"),
        planted.SHORT | {"seconds": 10.0, "pause_s": 0.5, "actors": ("groups",)},
    ),
    "a leader that changed while a broker started was not followed": (1029, None, {}),
    "a hole that a loss of power made in a compacted log kept by a follower in sync": (
        13,
        planted.HOLES_FAULTS,
        planted.HOLES,
    ),
    "more was read from the tier than the high watermark that was told": (
        25,
        ("isolate", "partition"),
        planted.SHORT | {"seconds": 15.0, "pause_s": 1.5, "actors": ("groups",)},
    ),
}
"""Runs that once broke an invariant."""


def test_clusters_do_what_they_are_for_and_no_invariant_breaks(chosen_seed: int | None) -> None:
    if chosen_seed is not None:
        pytest.skip("--seed runs that seed alone")
    outcomes = run_seeds(0, SEEDS)
    assert sum(outcome.acks for outcome in outcomes) > 100
    assert sum(outcome.reads for outcome in outcomes) > 500
    assert sum(outcome.leaders for outcome in outcomes) > 10


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SLOW_SEEDS_FROM, SLOW_SEEDS_FROM + SLOW_SEEDS, 30))
def test_no_invariant_of_a_cluster_breaks_in_many_runs(start: int) -> None:
    outcomes = run_seeds(start, start + 30)
    assert len({kind for outcome in outcomes for kind in outcome.faults}) > len(FAULTS) // 2


@pytest.mark.ci
def test_moves_that_wait_for_their_share_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = 0
    let_move = FetchSession.let_move

    def counted(session: FetchSession, cached: CachedPartition) -> None:
        nonlocal waited
        waited += 1
        let_move(session, cached)

    planted.narrow(monkeypatch)
    monkeypatch.setattr(FetchSession, "let_move", counted)
    outcome = run_seed(1, faults=("reassign",), shape=planted.MOVES)
    assert outcome.violation is None, describe(outcome)
    assert waited > 100


@pytest.mark.ci
def test_no_producer_is_fenced_while_its_markers_are_slow() -> None:
    shape = PLANTED["the next end fenced while markers are written"].shape
    for seed in range(3):
        outcome = run_seed(seed, faults=("slow markers",), shape=shape)
        assert outcome.violation is None, describe(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_in_clusters_stays_mended(what: str) -> None:
    seed, faults, shape = FOUND[what]
    outcome = run_seed(seed, faults=faults, shape=shape)
    assert outcome.violation is None, describe(outcome)


def test_a_wished_number_of_seeds_of_clusters_breaks_no_invariant(request: pytest.FixtureRequest) -> None:
    wished = request.config.getoption("seeds", default=None)
    if wished is None:
        pytest.skip("--seeds was not given")
    run_seeds(SLOW_SEEDS_FROM + SLOW_SEEDS, SLOW_SEEDS_FROM + SLOW_SEEDS + wished // 20 + 1)


def test_the_chosen_seed_of_a_cluster(chosen_seed: int | None) -> None:
    if chosen_seed is None:
        pytest.skip("--seed was not given")
    outcome = run_seed(chosen_seed, keep=print)
    print(outcome.trace_hash)
    assert outcome.violation is None, describe(outcome)


@pytest.mark.ci
def test_a_seed_of_a_cluster_gives_the_same_trace_again_in_another_process_and_hash_order() -> None:
    here = run_seed(4).trace_hash
    program = "from tests.cluster_simulation.world import run_seed\nprint(run_seed(4).trace_hash)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [here]


@pytest.mark.ci
@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in PLANTED])
def test_a_fault_planted_into_a_cluster_is_found_by_the_checker_meant_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = PLANTED[name]
    fault.plant(monkeypatch)
    seeds = range(fault.first, fault.first + fault.seeds)
    assert_found(fault.found_by, seeds, lambda seed: run_seed(seed, faults=fault.faults, shape=fault.shape).violation)
