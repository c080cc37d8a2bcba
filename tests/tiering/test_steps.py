"""Which step of a round of tiering is next: whole rounds as a table, and rules that hold for every combination of facts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.tiering.upload.led_partition import LedPartition, TierDeadlines
from app.tiering.upload.steps import (
    BACKOFF_DRAINING_S,
    BACKOFF_MAX_S,
    CORRUPTION_BACKOFF_S,
    LAST_COPYING,
    TierGuards,
    TierStep,
    is_due,
    next_step,
    retry_pause_s,
)

NOW_S = 1000.0
FLAGS = ("unsettled", "swapping", "finishing", "announced", "abandoned", "compacted", "draining", "detached")
DUE = ("expire", "reconcile", "sweep")


ENTRY: Any = object()
"""In place of a manifest entry: the decision looks only whether there is one."""


class Played:
    """A partition whose record changes as the steps of its round change it."""

    def __init__(self, flags: set[str], segments: int, due: TierDeadlines) -> None:
        log: Any = SimpleNamespace(config=SimpleNamespace(compacted="compacted" in flags))
        manifest: Any = None
        key: Any = None
        self.segments = segments
        self.draining = "draining" in flags
        self.partition = LedPartition(
            log, manifest, key, detached="detached" in flags, settled="unsettled" not in flags, due=due
        )
        copies = self.partition.copies
        copies.finishing = ENTRY if "finishing" in flags else None
        copies.announced = ENTRY if "announced" in flags else None
        copies.swapping = ENTRY if "swapping" in flags else None
        copies.abandoned = [ENTRY] if "abandoned" in flags else []

    def guards(self) -> TierGuards:
        return TierGuards(self.draining, lambda: self.segments > 0)

    def is_due(self) -> bool:
        return is_due(self.partition, self.guards(), NOW_S)

    def carry_out(self, step: TierStep) -> None:
        copies, due = self.partition.copies, self.partition.due
        match step:
            case TierStep.SETTLE:
                self.partition.settled = True
            case TierStep.SWAP:
                copies.swapping = None
            case TierStep.FINISH:
                copies.finishing = None
            case TierStep.COPY:
                self.segments -= 1
                copies.announced = None
            case TierStep.GIVE_UP:
                copies.announced, copies.abandoned = None, []
            case TierStep.DELETE:
                due.expire_at_s = NOW_S + 30
            case TierStep.RECONCILE:
                due.reconcile_at_s = NOW_S + 60
            case TierStep.SWEEP:
                due.sweep_at_s = NOW_S + 3600


def played(words: str) -> Played:
    """A partition of which the table's words hold. Work that is not named is due later."""
    named = words.split()
    due = TierDeadlines(0.0, *(NOW_S + 1,) * 4)
    for name in DUE:
        if name in named:
            setattr(due, f"{name}_at_s", NOW_S)
    if "paused" in named:
        due.retry_at_s = NOW_S + 1
    return Played({one for one in named if one in FLAGS}, named.count("segment"), due)


def round_of(one: Played, *, fails: str = "", detached_in: str = "") -> Iterator[str]:
    """The steps of one round. The step ``fails`` fails, and in the step ``detached_in`` another broker becomes the leader."""
    after: TierStep | None = None
    while (step := next_step(one.partition, one.guards(), NOW_S, after)) is not None:
        after = step
        if step.name == fails:
            yield f"{step.name}!"
            if step > LAST_COPYING:
                return
            after = LAST_COPYING
            continue
        one.carry_out(step)
        one.partition.detached |= step.name == detached_in
        yield step.name


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("", "- DROP_LOCAL"),
        ("unsettled", "SETTLE DROP_LOCAL"),
        ("segment", "COPY DROP_LOCAL"),
        ("segment segment segment", "COPY COPY COPY DROP_LOCAL"),
        ("announced segment", "COPY DROP_LOCAL"),
        ("announced", "GIVE_UP DROP_LOCAL"),
        ("finishing", "FINISH DROP_LOCAL"),
        ("finishing segment", "FINISH COPY DROP_LOCAL"),
        ("abandoned", "- GIVE_UP DROP_LOCAL"),
        ("swapping", "- SWAP DROP_LOCAL"),
        ("swapping finishing segment", "SWAP FINISH COPY DROP_LOCAL"),
        ("compacted", "- RECOPY DROP_LOCAL"),
        ("compacted segment abandoned", "COPY GIVE_UP RECOPY DROP_LOCAL"),
        ("expire", "EXPIRE DELETE DROP_LOCAL"),
        ("reconcile", "DROP_LOCAL RECONCILE"),
        ("sweep", "DROP_LOCAL SWEEP"),
        ("sweep draining", "- DROP_LOCAL"),
        ("segment expire draining", "COPY EXPIRE DELETE DROP_LOCAL"),
        ("unsettled segment expire reconcile sweep", "SETTLE COPY EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP"),
        (
            "unsettled swapping finishing announced abandoned compacted segment expire reconcile sweep",
            "SETTLE SWAP FINISH COPY GIVE_UP RECOPY EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP",
        ),
        ("unsettled segment expire reconcile sweep paused", "- SETTLE COPY EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP"),
        ("unsettled segment expire reconcile sweep detached", "-"),
        ("finishing announced abandoned detached", "-"),
    ],
)
def test_a_round_has_the_steps_that_are_due_in_their_order(words: str, steps: str) -> None:
    """A leading "-": these facts begin no round. The steps after it are those of a round that had begun before."""
    one = played(words)
    begins = one.is_due()
    assert ["-"] * (not begins) + list(round_of(one)) == steps.split()


@pytest.mark.parametrize(
    ("fails", "steps"),
    [
        ("SETTLE", "SETTLE! EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP"),
        ("SWAP", "SETTLE SWAP! EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP"),
        ("FINISH", "SETTLE SWAP FINISH! EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP"),
        ("COPY", "SETTLE SWAP FINISH COPY! EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP"),
        ("GIVE_UP", "SETTLE SWAP FINISH COPY GIVE_UP! EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP"),
        ("RECOPY", "SETTLE SWAP FINISH COPY GIVE_UP RECOPY! EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP"),
        ("EXPIRE", "SETTLE SWAP FINISH COPY GIVE_UP RECOPY EXPIRE!"),
        ("DELETE", "SETTLE SWAP FINISH COPY GIVE_UP RECOPY EXPIRE DELETE!"),
        ("SWEEP", "SETTLE SWAP FINISH COPY GIVE_UP RECOPY EXPIRE DELETE DROP_LOCAL RECONCILE SWEEP!"),
    ],
)
def test_a_failed_copy_keeps_no_old_segment_and_other_failures_end_the_round(fails: str, steps: str) -> None:
    one = played("unsettled swapping finishing abandoned compacted segment expire reconcile sweep")
    assert list(round_of(one, fails=fails)) == steps.split()


@pytest.mark.parametrize(
    ("during", "steps"),
    [
        ("SETTLE", "SETTLE"),
        ("SWAP", "SETTLE SWAP"),
        ("FINISH", "SETTLE SWAP FINISH GIVE_UP"),
        ("COPY", "SETTLE SWAP FINISH COPY GIVE_UP"),
        ("GIVE_UP", "SETTLE SWAP FINISH COPY COPY GIVE_UP"),
        ("RECOPY", "SETTLE SWAP FINISH COPY COPY GIVE_UP RECOPY"),
        ("EXPIRE", "SETTLE SWAP FINISH COPY COPY GIVE_UP RECOPY EXPIRE"),
        ("DROP_LOCAL", "SETTLE SWAP FINISH COPY COPY GIVE_UP RECOPY EXPIRE DELETE DROP_LOCAL"),
    ],
)
def test_a_partition_that_is_led_elsewhere_begins_no_step_and_gives_up_its_announced_copies(
    during: str, steps: str
) -> None:
    one = played("unsettled swapping finishing abandoned compacted segment segment expire reconcile sweep")
    assert list(round_of(one, detached_in=during)) == steps.split()


def test_the_rules_hold_for_every_combination_of_facts() -> None:
    rounds = 0
    for chosen in itertools.product((False, True), repeat=len(FLAGS) + len(DUE) + 2):
        words = [name for name, holds in zip((*FLAGS, *DUE, "segment", "paused"), chosen, strict=True) if holds]
        one = played(" ".join(words))
        begins = one.is_due()
        steps = [TierStep[name] for name in round_of(one)]
        rounds += 1
        assert steps == sorted(steps), words
        if begins:
            assert not {"detached", "paused"} & set(words), words
            assert TierStep.DROP_LOCAL in steps, words
        assert (TierStep.EXPIRE in steps) == (TierStep.DELETE in steps), words
        if "detached" in words:
            assert not steps, words
        if "draining" in words:
            assert TierStep.SWEEP not in steps, words
        assert not steps or not one.is_due(), "a round leaves nothing that begins the next one at once"
    assert rounds == 2**13


def test_segments_are_visited_only_where_a_copy_decides() -> None:
    visits = 0

    def copyable() -> bool:
        nonlocal visits
        visits += 1
        return False

    guards, partition = TierGuards(False, copyable), played("").partition
    partition.due.expire_at_s = NOW_S
    assert is_due(partition, guards, NOW_S)
    partition.due.retry_at_s = NOW_S + 1
    assert not is_due(partition, guards, NOW_S)
    for step in TierStep:
        if step is not TierStep.COPY:
            next_step(partition, guards, NOW_S, after=step)
    assert visits == len([step for step in TierStep if step < TierStep.COPY])


def test_a_pause_grows_to_its_limit_is_short_in_a_drain_and_long_for_damage() -> None:
    assert [retry_pause_s(failures, corrupt=False, draining=False) for failures in (1, 2, 3)] == [1.0, 2.0, 4.0]
    assert retry_pause_s(10**6, corrupt=False, draining=False) == BACKOFF_MAX_S
    assert retry_pause_s(10**6, corrupt=False, draining=True) == BACKOFF_DRAINING_S
    assert retry_pause_s(1, corrupt=True, draining=True) == CORRUPTION_BACKOFF_S
