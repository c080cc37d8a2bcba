"""Seeds of the simulation of clusters with topics of object durability, and faults planted into the brokers' own part of it."""

from __future__ import annotations

import pytest

from tests.cluster_simulation.object_faults import OBJECT_FAULTS
from tests.cluster_simulation.objects import SEEDS_FROM, ObjectShape
from tests.cluster_simulation.planted import SHORT
from tests.cluster_simulation.planted_objects import PLANTED
from tests.cluster_simulation.world import run_seed
from tests.sim.planted import assert_found
from tests.simulation.seeds import describe, run_seeds

SEEDS = (50_000, 50_004)
"""Of the default suite: short ones."""
SLOW_SEEDS = range(SEEDS_FROM + 8, SEEDS_FROM + 17)
WISHED_FROM = SEEDS_FROM + 10_000
BEHIND = "a batch behind a refused one judged by its sequence"
QUICK = frozenset(
    {
        "J5 answered before the object is durable",
        "J5 acknowledged beyond a hole",
        "J14 a process goes on in its sealed log",
        BEHIND,
    }
)
"""Planted faults of the default suite; the others are found by the slow tests."""
FOUND = {
    "a leadership that began while the broker gave up its last one was taken for stopped": (50_007, None, {}),
    "nobody gave up what was reassigned": (
        61_004,
        ("restart", "join", "reassign", "elect preferred", "answers lost", "wal out of order", "stop and lose"),
        SHORT
        | {
            "objects": ObjectShape(alone=True, internal=True, linger_ms=10, all_lost=False),
            "actors": (),
            "seconds": 8.0,
            "pause_s": 0.5,
            "partitions": 2,
            "producers": 2,
        },
    ),
}
"""Runs that once broke an invariant, or a broker."""


@pytest.mark.ci  # the default suite has the same seeds in test_gathering.py
def test_acknowledged_records_of_object_topics_outlive_all_disks(chosen_seed: int | None) -> None:
    if chosen_seed is not None:
        pytest.skip("--seed runs that seed alone")
    outcomes = [outcome for seed in SEEDS for outcome in run_seeds(seed, seed + 1)]
    assert sum(outcome.acks for outcome in outcomes) > 10
    assert sum(outcome.leaders for outcome in outcomes) > 10


@pytest.mark.parametrize(
    ("objects", "faults"),
    [
        (False, ("room at times",)),
        (True, ("room at times",)),
        pytest.param(False, ("room at times", "kill leader"), marks=pytest.mark.slow),
        pytest.param(True, ("room at times", "disks lost"), marks=pytest.mark.slow),
    ],
)
def test_a_producer_that_begins_new_epochs_writes_nothing_twice(objects: bool, faults: tuple[str, ...]) -> None:
    shape = dict(PLANTED[BEHIND].shape)
    if not objects:
        del shape["objects"]
    outcome = run_seed(0, faults=faults, shape=shape)
    assert outcome.violation is None, describe(outcome)
    assert outcome.acks > 50


@pytest.mark.slow
def test_no_invariant_of_object_topics_breaks_in_many_runs() -> None:
    outcomes = run_seeds(SLOW_SEEDS.start, SLOW_SEEDS.stop)
    assert len({kind for outcome in outcomes for kind in outcome.faults} & OBJECT_FAULTS.keys()) > 3


@pytest.mark.slow
@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_in_object_topics_stays_mended(what: str) -> None:
    seed, faults, shape = FOUND[what]
    outcome = run_seed(seed, faults=faults, shape=shape)
    assert outcome.violation is None, describe(outcome)


def test_a_wished_number_of_seeds_with_object_topics_breaks_no_invariant(request: pytest.FixtureRequest) -> None:
    wished = request.config.getoption("seeds", default=None)
    if wished is None:
        pytest.skip("--seeds was not given")
    run_seeds(WISHED_FROM, WISHED_FROM + wished // 20 + 1)


@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in PLANTED])
def test_a_fault_planted_into_object_durability_is_found_by_the_checker_meant_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = PLANTED[name]
    fault.plant(monkeypatch)
    assert_found(
        fault.found_by,
        range(fault.first, fault.first + fault.seeds),
        lambda seed: run_seed(seed, faults=fault.faults, shape=fault.shape).violation,
        other_ends=ExceptionGroup,  # a broker's own check has ended it, and not the checker
    )
