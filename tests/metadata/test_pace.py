"""When a broker's own loop is starved (ADR 0023: L5)."""

from __future__ import annotations

import pytest

from app.metadata.peers.pace import LATE_NOTED_S, LATE_S_MIN, WINDOW_S, Pace


def late(every_s: float, late_s: float, until_s: float) -> Pace:
    """A loop that came late by so much, again and again."""
    pace, now_s = Pace(), 0.0
    while now_s + every_s + late_s <= until_s:
        now_s += every_s + late_s
        pace.came(now_s - late_s, now_s)
    return pace


@pytest.mark.parametrize(
    ("every_s", "late_s", "starved"),
    [
        (0.5, 0.0, False),
        (0.5, 0.04, False),  # a busy machine
        (0.5, 0.1, False),
        (0.5, 0.4, True),
        (0.5, 1.0, True),
        (0.5, 5.0, True),
    ],
)
def test_l5_a_loop_that_is_late_for_a_quarter_of_the_time_is_starved(
    every_s: float, late_s: float, starved: bool
) -> None:
    assert late(every_s, late_s, 30.0).is_starved(30.0) is starved


def test_l5_one_stall_is_no_starvation_and_one_long_pause_is() -> None:
    pace = Pace()
    pace.came(1.0, 1.0 + LATE_S_MIN / 2)
    assert not pace.is_starved(2.0)
    pace.came(5.0, 5.0 + LATE_S_MIN)
    assert pace.is_starved(7.0)


def test_l5_it_is_over_when_the_loop_has_come_in_time_for_a_while() -> None:
    pace = Pace()
    pace.came(0.0, 3.0)
    assert pace.is_starved(3.0 + WINDOW_S - 0.1)
    assert not pace.is_starved(3.0 + WINDOW_S)


def test_l5_a_loop_that_comes_early_or_in_time_notes_nothing() -> None:
    pace = Pace()
    for second in range(1000):
        pace.came(second + 0.5, second + 0.1)
        pace.came(second, second + LATE_NOTED_S / 2)
    assert not pace.is_starved(1000.0)
