"""Seeds of the simulation: no failure breaks an invariant, and everything works again afterwards."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from tests.wal_simulation.cluster import NOBODY, Mode
from tests.wal_simulation.faults import END_MS, KINDS
from tests.wal_simulation.world import Result, World, run_seed

QUICK_SEEDS: Final = 5
CI_SEEDS: Final = range(100, 124)
SLOW_SEEDS: Final = 1500
SLOW_SEEDS_FROM: Final = 10_000

STEPS: Final = ("buffer", "put", "acknowledge", "seal", "read", "trim")
"""What a leader, a taker and an owner of a log do."""


def _described(result: Result, **fixed: Any) -> str:
    """What somebody needs to look into a failure."""
    lines = run_seed(result.seed, trace=True, **fixed).lines[-40:]
    return "\n".join([f"seed {result.seed}: {result.violation}", *lines])


def _run(seed: int, **fixed: Any) -> Result:
    result = run_seed(seed, **fixed)
    assert result.violation is None, _described(result, **fixed)
    return result


def test_nothing_acknowledged_is_lost_or_doubled_and_everything_works_again() -> None:
    results = [_run(seed) for seed in range(QUICK_SEEDS)]
    assert sum(each.acked for each in results) > 1000, "the clients were hardly served, so nothing was tried"
    assert sum(each.take_overs for each in results) > 15
    assert sum(each.aborted for each in results) > 20
    assert sum(each.resets for each in results) == 0, "producers that repeat older batches are refused"


@pytest.mark.ci
@pytest.mark.parametrize("first", range(CI_SEEDS.start, CI_SEEDS.stop, 8))
def test_more_seeds(first: int) -> None:
    for seed in range(first, first + 8):
        _run(seed)


@pytest.mark.slow
def test_many_seeds_hit_every_step_with_every_kind_of_failure() -> None:
    hits: Counter[tuple[str, str]] = Counter()
    for seed in range(SLOW_SEEDS_FROM, SLOW_SEEDS_FROM + SLOW_SEEDS):
        hits.update(_run(seed).hits)
    missed = [(kind, step) for kind in ("kill", "pause", "cut") for step in STEPS if not hits[kind, step]]
    assert not missed, f"in {SLOW_SEEDS} seeds no fault of these kinds has hit these steps: {missed}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 100))
def test_what_the_store_has_lost_is_refused_and_nothing_wrong_is_served(first: int) -> None:
    for seed in range(first, first + 100):
        _run(seed, weights={**KINDS, "lose": 20})


@pytest.mark.ci
def test_a_seed_is_all_there_is_to_a_run() -> None:
    assert run_seed(7, trace=True) == run_seed(7, trace=True)


@pytest.mark.ci
def test_seeds_do_every_kind_of_fault() -> None:
    done = {kind for seed in range(8) for kind in run_seed(seed).faults}
    assert done == {kind for kind, weight in KINDS.items() if weight}


def test_without_faults_nothing_is_disturbed() -> None:
    result = run_seed(3, weights=dict.fromkeys(KINDS, 0), lost_replies=0.0)
    assert result.violation is None
    assert result.acked > 300
    assert result.resets == 0


def test_partitions_on_disks_fail_over_while_the_store_of_the_logs_is_away() -> None:
    """The entry that ends a broker's leaderships needs no seal (J16). Partitions in its log wait for theirs."""
    world = World(5, nodes=3, partitions=2, replicas=1, lost_replies=0.0, weights=dict.fromkeys(KINDS, 0))
    timeline, log = world.timeline, world.log
    timeline.run_until(3000.0)
    on_disks, in_log = log.newest.partitions
    assert log.newest.partitions[on_disks].mode is Mode.REPLICA
    for key in (on_disks, in_log):
        world.bucket.wals_away_from.update(world.machines)
        dead = log.newest.partitions[key].leader
        world.machines[dead].kill(wipe=False)
        timeline.run_until(timeline.now_ms + 5000.0)
        led = log.newest.partitions[key]
        assert led.leader != dead
        assert (led.leader == NOBODY) == (key == in_log)
        assert (led.open_range is not None) == (key == in_log)
        world.bucket.wals_away_from.clear()
        world.machines[dead].start()
        timeline.run_until(timeline.now_ms + 1500.0)
        assert log.newest.partitions[key].leader != NOBODY
    timeline.run_until(END_MS)
    world.checkers.at_end()
