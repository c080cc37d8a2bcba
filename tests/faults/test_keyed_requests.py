"""Keyed requests over HTTP while the broker, the HTTP process and the store process are killed, and answers are lost (ADR 0043).

Each key is stored once for readers of committed records, and each answer to it has the same bytes. Runs that can be resumed:
``python -m tests.faults.keyed_requests``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.keyed_requests import KeysDone, do_round, run

KEYS = 240


@pytest.mark.ci
def test_each_key_is_stored_once_and_answered_alike_while_processes_are_killed(tmp_path: Path) -> None:
    do_round(tmp_path, KEYS, "1")


@pytest.mark.slow
def test_each_key_is_stored_once_though_the_broker_of_object_topics_loses_its_disk(tmp_path: Path) -> None:
    do_round(tmp_path, KEYS, "2", wiped=True)


@pytest.mark.slow
@pytest.mark.parametrize("wiped", [False, True])
def test_each_of_10_000_keys_is_stored_once(tmp_path: Path, wiped: bool) -> None:
    progress = KeysDone(seed=3, wiped=wiped, keys=10_000)
    run(tmp_path, progress, 7_200)
    assert progress.done == progress.keys, progress


@pytest.mark.slow
def test_a_run_of_keys_that_was_ended_goes_on_where_it_was(tmp_path: Path) -> None:
    progress = KeysDone(seed=4, wiped=False, keys=80)
    run(tmp_path, progress, 0.0, each=40)
    assert (progress.done, progress.rounds) == (0, 0), "no round begins after the time"
    run(tmp_path, KeysDone(seed=4, wiped=False, keys=40), 3_600, each=40)
    resumed = KeysDone.read(tmp_path)
    resumed.keys = 80
    run(tmp_path, resumed, 3_600, each=40)
    assert (resumed.done, resumed.rounds) == (80, 2)
