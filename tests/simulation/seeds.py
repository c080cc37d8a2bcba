"""Runs of seeds of the cluster simulation."""

from __future__ import annotations

from tests.cluster_simulation.world import Outcome, run_seed


def describe(outcome: Outcome) -> str:
    """What somebody needs to look into a failure."""
    end = "\n".join(outcome.lines[-40:])
    return (
        f"seed {outcome.seed}: {outcome.violation}\n{end}\n"
        f"replay: python -m pytest tests/simulation/test_cluster.py -k chosen -s --seed {outcome.seed}"
    )


def run_seeds(start: int, end: int) -> list[Outcome]:
    outcomes = []
    for seed in range(start, end):
        try:
            outcome = run_seed(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}; replay: pytest tests/simulation/test_cluster.py -k chosen -s --seed {seed}")
            raise
        assert outcome.violation is None, describe(outcome)
        outcomes.append(outcome)
    return outcomes
