"""Faults under clients of all kinds while logs are compacted and copied: no producer with ``acks=all`` stands still for long.

A hundred faults on each kind of store: ``python -m tests.faults.long_run``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.long_run import DIRECTORY, Progress, do_round, run

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.mark.parametrize("store", [DIRECTORY, "moto", "s3s-fs", "MinIO"])
def test_producers_stand_still_for_at_most_15_s_while_a_majority_is_up_and_hears_each_other(
    tmp_path: Path, store: str
) -> None:
    progress = Progress(seed=1, store=store, faults=25)
    run(tmp_path, progress, 3_600)
    assert (progress.failures, progress.done) == (0, 25), progress


def test_a_run_that_was_ended_goes_on_where_it_was(tmp_path: Path) -> None:
    progress = Progress(seed=2, store=DIRECTORY, faults=2)
    run(tmp_path, progress, 3_600, each=1)
    assert Progress.read(tmp_path) == progress
    resumed = Progress.read(tmp_path)
    resumed.faults = 3
    run(tmp_path, resumed, 3_600, each=1)
    assert (resumed.failures, resumed.done, resumed.rounds[:2]) == (0, 3, progress.rounds)


def test_in_sync_sets_that_never_shrink_are_found(tmp_path: Path) -> None:
    """Planted: two brokers that do not hear each other keep each other in sync for ten minutes."""
    found = do_round(
        tmp_path,
        DIRECTORY,
        "3",
        1,
        kinds=lambda faults, _: [faults.cut_beside_the_controller],
        settings={"replica_lag_time_max_ms": 600_000},
    )
    assert found.failure is not None
    assert "acks=all stands still since" in found.failure
    assert "fault 1, cut_beside_the_controller" in found.failure
    assert "in sync" in found.failure
