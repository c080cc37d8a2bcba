"""Seeds of the simulation: no failure breaks an invariant, and everything works again afterwards."""

from __future__ import annotations

import pytest

from tests.wal_simulation.faults import KINDS
from tests.wal_simulation.world import Result, run_seed

SEEDS = 24
"""Of the default suite."""
SLOW_SEEDS = 1500
SLOW_SEEDS_FROM = 10_000


def _described(result: Result) -> str:
    """What somebody needs to look into a failure."""
    lines = run_seed(result.seed, trace=True).lines[-40:]
    return "\n".join([f"seed {result.seed}: {result.violation}", *lines])


@pytest.mark.parametrize("first", range(0, SEEDS, 8))
def test_nothing_acknowledged_is_lost_or_doubled_and_everything_works_again(first: int) -> None:
    acked = take_overs = resets = 0
    for seed in range(first, first + 8):
        result = run_seed(seed)
        assert result.violation is None, _described(result)
        acked += result.acked
        take_overs += result.take_overs
        resets += result.resets
    assert acked > 1500, "the clients were hardly served, so nothing was tried"
    assert take_overs > 20
    assert resets <= 2, "producers that repeat older batches are refused far too often"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SLOW_SEEDS_FROM, SLOW_SEEDS_FROM + SLOW_SEEDS, 100))
def test_many_seeds(first: int) -> None:
    for seed in range(first, first + 100):
        result = run_seed(seed)
        assert result.violation is None, _described(result)


def test_a_seed_is_all_there_is_to_a_run() -> None:
    assert run_seed(7, trace=True) == run_seed(7, trace=True)


def test_seeds_do_every_kind_of_fault() -> None:
    done = {kind for seed in range(8) for kind in run_seed(seed).faults}
    assert done == set(KINDS)


def test_without_faults_nothing_is_disturbed() -> None:
    result = run_seed(3, weights=dict.fromkeys(KINDS, 0), lost_replies=0.0)
    assert result.violation is None
    assert result.acked > 500
    assert result.resets == 0
