"""A second broker joins a cluster of one broker: the rule of ADR 0023 by which the first confirms the log (AL2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.metadata.controller.desk import Desk
from tests.cluster_simulation.joining import SHAPE, STORIES, a_second_broker
from tests.cluster_simulation.world import Outcome, run_seed

SEEDS = len(STORIES)
SLOW_SEEDS = 8 * len(STORIES)


def played(seed: int) -> Outcome:
    return run_seed(seed, faults=(), shape=SHAPE, script=a_second_broker)


def judge(start: int, end: int) -> None:
    for seed in range(start, end):
        outcome = played(seed)
        assert outcome.violation is None, (seed, outcome.violation, outcome.lines[-40:])


@pytest.mark.ci
def test_a_second_broker_joins_whatever_becomes_of_the_first_and_nothing_acknowledged_is_lost() -> None:
    judge(0, SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 1_000 + SLOW_SEEDS, 4 * len(STORIES)))
def test_a_second_broker_joins_in_many_more_runs(start: int) -> None:
    judge(start, start + 4 * len(STORIES))


def answers_unconfirmed(patch: pytest.MonkeyPatch) -> None:
    async def asked(_desk: Desk) -> None: ...

    patch.setattr(Desk, "asked", asked)


def rests_among_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Desk, "_alone", lambda _desk, _now_s: True)


def never_confirms(patch: pytest.MonkeyPatch) -> None:
    answers_unconfirmed(patch)
    patch.setattr("app.metadata.controller.desk.ALONE_UNCONFIRMED_S", 1e9)


CUT_OFF, CUT_OFF_LATER = 2, 6
PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int]] = {
    "a newcomer is answered before the log is confirmed": (answers_unconfirmed, CUT_OFF),
    "the pace of one broker is kept among several": (rests_among_others, CUT_OFF_LATER),
    "one broker holds its office without the bucket": (never_confirms, CUT_OFF),
}
"""How each is planted, and the story by which it is found."""


@pytest.mark.ci
@pytest.mark.parametrize("name", PLANTED)
def test_each_part_of_the_rule_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, story = PLANTED[name]
    plant(monkeypatch)
    violation = played(story).violation
    assert violation is not None
    assert violation.invariant == "AL2", violation
