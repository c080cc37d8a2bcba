"""Real brokers whose event loop stands while their thread for pulses goes on (ADR 0023: L6, C10)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from app.metadata.image.records import LEVEL_MAX
from tests.support.cluster import Brokers, brokers_running, controller_of, create_topics, wait_until_whole
from tests.support.waiting import block_until

pytestmark = pytest.mark.faults

SETTINGS = {"new_level": LEVEL_MAX}
FENCED = "is not heard any more: it is fenced"
TAKES_OFFICE = "is the controller\n"
HELD_S = 6.0
"""Twice the session time-out."""
HUNG_S = 14.0


def told(brokers: Brokers, words: str) -> int:
    """How often brokers have said so."""
    return sum(brokers.lines(node_id).count(words) for node_id in brokers.nodes)


def stalls(brokers: Brokers, node_id: int) -> int:
    """How often a broker has told that its loop stood still."""
    return brokers.lines(node_id).count("this broker stood still for")


def hold(brokers: Brokers, node_id: int, seconds: float) -> None:
    """Let its loop stand for so long, and wait until it goes on."""
    before = stalls(brokers, node_id)
    brokers.hold_loop(node_id, seconds)
    block_until(lambda: stalls(brokers, node_id) > before, f"the loop of broker {node_id} goes on")


@pytest.mark.ci
def test_a_broker_and_a_controller_whose_loops_stand_are_kept_and_one_that_hangs_or_stops_is_not(
    tmp_path: Path,
) -> None:
    with brokers_running(tmp_path, settings=SETTINGS) as brokers:
        create_topics(brokers.admin, "t")
        wait_until_whole(brokers.admin, "the start")
        controller = controller_of(brokers.admin)
        victim = next(one for one in brokers.nodes if one != controller)
        offices, fences = told(brokers, TAKES_OFFICE), told(brokers, FENCED)
        for held in (victim, controller):
            hold(brokers, held, HELD_S)
        assert (told(brokers, TAKES_OFFICE), told(brokers, FENCED)) == (offices, fences)
        brokers.hold_loop(victim, HUNG_S)
        block_until(lambda: told(brokers, FENCED) > fences, "the broker is fenced whose loop hangs")
        wait_until_whole(brokers.admin, "the hang")
        fences = told(brokers, FENCED)
        brokers.pause(victim)
        block_until(lambda: told(brokers, FENCED) > fences, "the broker is fenced whose process stands")
        brokers.go_on(victim)
        wait_until_whole(brokers.admin, "the pause")
        for node_id in brokers.nodes:
            brokers.end(node_id, signal.SIGTERM)
            assert brokers.processes[node_id].returncode == 0
            assert "Traceback" not in brokers.lines(node_id)
