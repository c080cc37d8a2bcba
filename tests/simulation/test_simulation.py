"""Seeds of the simulation, and that a seed is all there is to a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.world import Outcome, run_seed

ROOT = Path(__file__).parents[2]
SEEDS_AT_ONCE = 5
SEEDS = 50
"""Of the default suite. The slow ones are run for every change too; ``--seeds`` adds others."""
COUNTED_SEEDS = 20
"""Those of them of which it is counted what they do."""
SLOW_SEEDS = 1600
SLOW_SEEDS_FROM = 100_000


def describe(outcome: Outcome) -> str:
    """What somebody needs to look into a failure."""
    end = "\n".join(outcome.lines[-40:])
    return (
        f"seed {outcome.seed}: {outcome.violation}\n{end}\n"
        f"replay: python -m pytest tests/simulation/test_simulation.py -k chosen -s --seed {outcome.seed}"
    )


def run_seeds(start: int, end: int) -> list[Outcome]:
    outcomes = []
    for seed in range(start, end):
        try:
            outcome = run_seed(seed)
        except BaseException as error:
            error.add_note(
                f"seed {seed}; replay: pytest tests/simulation/test_simulation.py -k chosen -s --seed {seed}"
            )
            raise
        assert outcome.violation is None, describe(outcome)
        outcomes.append(outcome)
    return outcomes


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start, marks=pytest.mark.ci if start > COUNTED_SEEDS else ())
        for start in range(COUNTED_SEEDS, SEEDS, SEEDS_AT_ONCE)
    ],
)
def test_no_invariant_breaks(start: int, chosen_seed: int | None) -> None:
    if chosen_seed is not None:
        pytest.skip("--seed runs that seed alone")
    run_seeds(start, start + SEEDS_AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SLOW_SEEDS_FROM, SLOW_SEEDS_FROM + SLOW_SEEDS, 100))
def test_no_invariant_breaks_in_thousands_of_runs(start: int) -> None:
    run_seeds(start, start + 100)


def test_a_wished_number_of_seeds_breaks_no_invariant(request: pytest.FixtureRequest) -> None:
    wished = request.config.getoption("seeds", default=None)
    if wished is None:
        pytest.skip("--seeds was not given")
    run_seeds(SLOW_SEEDS_FROM + SLOW_SEEDS, SLOW_SEEDS_FROM + SLOW_SEEDS + wished)


def test_the_chosen_seed(chosen_seed: int | None) -> None:
    if chosen_seed is None:
        pytest.skip("--seed was not given")
    outcome = run_seed(chosen_seed, keep=print)
    print(outcome.trace_hash)
    assert outcome.violation is None, describe(outcome)


@pytest.mark.ci
def test_a_seed_gives_the_same_trace_again_in_another_process_and_hash_order() -> None:
    seeds = (5, 24)
    here = [run_seed(seed).trace_hash for seed in seeds]
    program = (
        "from tests.simulation.world import run_seed\n"
        f"print(*[run_seed(seed).trace_hash for seed in reversed({seeds!r})])"
    )
    for hash_seed in ("1", "77"):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.split() == here[::-1]
    assert len(set(here)) == len(seeds)


@pytest.mark.ci
def test_runs_do_what_they_are_for_and_no_invariant_breaks() -> None:
    outcomes = run_seeds(0, COUNTED_SEEDS)
    assert sum(outcome.acks for outcome in outcomes) > 500
    assert sum(outcome.reads for outcome in outcomes) > 1000
    assert sum(outcome.tiered for outcome in outcomes) > 1000
    assert sum(outcome.restarts for outcome in outcomes) > 30
