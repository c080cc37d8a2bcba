"""Seeds of the model: no failure breaks an invariant, and everything works again afterwards."""

from __future__ import annotations

import pytest

from tests.replication_model.world import Result, run_seed

SEEDS = 40
"""Of the default suite."""
SLOW_SEEDS = 700
SLOW_SEEDS_FROM = 10_000


def _described(result: Result) -> str:
    """What somebody needs to look into a failure."""
    lines = run_seed(result.seed, trace=True).lines[-60:]
    return "\n".join([f"seed {result.seed}: {result.violation}", *lines])


@pytest.mark.ci
@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_nothing_acknowledged_is_lost_and_everything_works_again(first: int) -> None:
    acked = 0
    for seed in range(first, first + 10):
        result = run_seed(seed)
        assert result.violation is None, _described(result)
        acked += result.acked
    assert acked > 1000, "the clients were hardly served, so nothing was tried"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SLOW_SEEDS_FROM, SLOW_SEEDS_FROM + SLOW_SEEDS, 70))
def test_many_seeds(first: int) -> None:
    for seed in range(first, first + 70):
        result = run_seed(seed)
        assert result.violation is None, _described(result)


def test_a_seed_is_all_there_is_to_a_run() -> None:
    assert run_seed(7, trace=True).lines == run_seed(7, trace=True).lines


@pytest.mark.ci
def test_seeds_do_every_kind_of_fault() -> None:
    done = {kind for seed in range(15) for kind in run_seed(seed).faults}
    assert len(done) == 23


def test_without_faults_nothing_is_disturbed() -> None:
    result = run_seed(3, trace=True, weights={})
    assert result.violation is None
    assert result.acked > 300
    assert not [line for line in result.lines if "resigns" in line or "steps down" in line]
