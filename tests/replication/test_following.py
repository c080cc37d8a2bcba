"""What a follower does with the leader's response: a test for each rule of ADR 0024 that it keeps (A1 to A3, T5), a model of A2.

In the model two logs share a beginning and then part. However often they parted, the follower cuts its log back to where
they are the same, and no further.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode
from app.core.units import LeaderEpoch, Offset
from app.hot.checkpoints import EpochStart
from app.hot.epochs import LeaderEpochs
from app.replication.following import (
    Append,
    Damaged,
    FollowedPartition,
    Ignore,
    LogAtFetch,
    Pause,
    StartAt,
    StartAtTier,
    Step,
    Truncate,
    step,
)

ASKED = LogAtFetch(leader_epoch=7, log_end=100, truncations=2)
EPOCHS = ((1, 0), (3, 40), (5, 80))
"""Epochs of the follower's log, and where each begins."""


def epochs_of(entries: tuple[tuple[int, int], ...]) -> LeaderEpochs:
    return LeaderEpochs(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries)


def answered(
    *,
    error: ErrorCode = ErrorCode.NONE,
    high_watermark: int = 90,
    log_start: int = 0,
    diverging: tuple[int, int] | None = None,
    has_records: bool = False,
) -> FollowedPartition:
    return FollowedPartition(error, high_watermark, log_start, diverging, has_records)


def do(
    answer: FollowedPartition,
    *,
    asked: LogAtFetch = ASKED,
    now: LogAtFetch = ASKED,
    high_watermark: int = 0,
    epochs: tuple[tuple[int, int], ...] = EPOCHS,
    unclean_epoch: int = -1,
) -> Step:
    """What a follower with a log end of 100 does."""
    return step(
        asked,
        now,
        answer,
        high_watermark=high_watermark,
        epoch_end=lambda epoch: epochs_of(epochs).end_offset_of(LeaderEpoch(epoch), Offset(now.log_end)),
        last_epoch=epochs[-1][0] if epochs else -1,
        unclean_epoch=unclean_epoch,
    )


# --- A1: whether the response is about this log ---------------------------------------------------------------------------

ANSWERS = (
    answered(has_records=True),
    answered(diverging=(3, 60)),
    answered(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start=500),
    answered(error=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE),
    answered(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(
    "now",
    [
        ASKED._replace(leader_epoch=8),
        ASKED._replace(log_end=101),
        ASKED._replace(log_end=99),
        ASKED._replace(truncations=3),
    ],
    ids=["another leader epoch", "grown", "shorter", "cut, and grown to the same end"],
)
def test_a1_a_response_about_the_log_of_before_is_ignored_whatever_it_says(
    now: LogAtFetch, answer: FollowedPartition
) -> None:
    assert do(answer, now=now, high_watermark=90) == Ignore()


@pytest.mark.parametrize("answer", ANSWERS)
def test_a1_a_response_about_this_log_is_not_ignored(answer: FollowedPartition) -> None:
    assert do(answer) != Ignore()


# --- A2: where the histories part -----------------------------------------------------------------------------------------


def test_a2_a_response_that_names_no_other_history_is_appended() -> None:
    assert do(answered(high_watermark=95, log_start=10, has_records=True)) == Append(95, 10)


def test_a2_the_log_is_cut_before_anything_is_appended() -> None:
    assert do(answered(diverging=(5, 90), has_records=True)) == Truncate(90)


@pytest.mark.parametrize(
    ("diverging", "offset", "why"),
    [
        ((5, 90), 90, "the leader's last epoch of both ended earlier there"),
        ((3, 60), 60, "the leader's epoch 3 ended at 60, and the follower's at 80"),
        ((3, 95), 80, "the leader's epoch 3 went on, where the follower has epoch 5"),
        ((4, 95), 80, "the follower has no epoch 4: its epochs above 3 are cut away whole"),
        ((2, 95), 40, "the follower has no epoch 2"),
        ((1, 40), 40, "both have epoch 1 up to 40"),
        ((0, 0), 0, "the follower has nothing that is so old"),
    ],
)
def test_a2_the_log_is_cut_back_to_where_the_epochs_say(diverging: tuple[int, int], offset: int, why: str) -> None:
    assert do(answered(diverging=diverging)) == Truncate(offset), why


def test_a2_the_log_is_never_cut_past_its_end() -> None:
    assert do(answered(diverging=(5, 130))) == Truncate(100)


def test_a2_a_log_that_knows_none_of_the_epochs_is_cut_away_whole() -> None:
    assert do(answered(diverging=(5, 90)), epochs=()) == Truncate(0)


# --- A3: what was acknowledged ------------------------------------------------------------------------------------------


def test_a3_records_below_the_known_high_watermark_are_not_cut_away() -> None:
    assert do(answered(diverging=(3, 60)), high_watermark=60) == Truncate(60)
    damaged = do(answered(diverging=(3, 60)), high_watermark=61)
    assert damaged == Damaged("the leader's history differs from offset 60 on, and records below 61 were committed")


def test_a3_the_high_watermark_of_the_response_does_not_count() -> None:
    assert do(answered(diverging=(3, 60), high_watermark=95), high_watermark=50) == Truncate(60)


@pytest.mark.parametrize("unclean_epoch", [6, 7])
def test_a3_records_that_an_unclean_election_has_given_up_are_cut_away_and_counted(unclean_epoch: int) -> None:
    cut = do(answered(diverging=(3, 60)), high_watermark=75, unclean_epoch=unclean_epoch)
    assert cut == Truncate(60, committed=15)
    assert do(answered(diverging=(3, 60)), high_watermark=60, unclean_epoch=unclean_epoch) == Truncate(60)


@pytest.mark.parametrize(
    ("unclean_epoch", "why"),
    [
        (-1, "there was no such election"),
        (5, "the follower has records of that leader: it has followed it already"),
        (3, "and of a later one"),
        (8, "the leader that answers is an older one"),
    ],
)
def test_a3_an_unclean_election_gives_up_only_what_is_older(unclean_epoch: int, why: str) -> None:
    damaged = do(answered(diverging=(3, 60)), high_watermark=75, unclean_epoch=unclean_epoch)
    assert isinstance(damaged, Damaged), why


# --- T5 and errors ------------------------------------------------------------------------------------------------------


def test_t5_a_follower_begins_at_the_tiered_end_when_the_leader_has_only_that() -> None:
    assert do(answered(error=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, log_start=0)) == StartAtTier()


def test_a_follower_that_is_behind_the_log_start_begins_there() -> None:
    assert do(answered(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start=101)) == StartAt(101)


@pytest.mark.parametrize("log_start", [-1, 0, 99, 100])
def test_a_follower_that_is_out_of_range_otherwise_keeps_what_it_has(log_start: int) -> None:
    step_now = do(answered(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start=log_start))
    assert step_now == Pause(ErrorCode.OFFSET_OUT_OF_RANGE)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_an_error_changes_nothing_whatever_comes_with_it(error: ErrorCode) -> None:
    assert do(answered(error=error, diverging=(3, 60), log_start=500, has_records=True)) == Pause(error)


# --- the model of A2 ----------------------------------------------------------------------------------------------------

# A log is the epoch of each of its records. An epoch has one leader. So logs with the same epoch at an offset have the same
# records up to it.
History = tuple[int, ...]


def history_epochs(history: History) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for offset, epoch in enumerate(history):
        epochs.assign(LeaderEpoch(epoch), Offset(offset))
    return epochs


def end_of(history: History, epoch: int) -> tuple[int, int]:
    return history_epochs(history).end_offset_of(LeaderEpoch(epoch), Offset(len(history)))


def same(one: History, other: History) -> int:
    """How many records both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@st.composite
def two_histories(draw: st.DrawFn) -> tuple[History, History]:
    """The leader's and the follower's log, as leaders of rising epochs wrote and cut them. The leader has begun epoch 99."""
    logs: list[History] = [(), (), ()]
    for epoch in range(draw(st.integers(0, 8))):
        leader = draw(st.integers(0, 2))
        logs[leader] += (epoch,) * draw(st.integers(1, 4))
        follower = draw(st.integers(0, 2))
        copied = draw(st.integers(same(logs[leader], logs[follower]), len(logs[leader])))
        logs[follower] = logs[leader][:copied]
    return (*logs[0], 99), logs[1]


def told(leader: History, follower: History) -> tuple[int, int] | None:
    """What the leader's response says of diverging histories, as the handler of Fetch finds it."""
    if not follower:
        return None
    epoch, end = end_of(leader, follower[-1])
    assert (epoch, end) != (-1, -1), "the leader's own epoch is above"
    return (epoch, end) if epoch < follower[-1] or end < len(follower) else None


@given(two_histories())
def test_a2_the_follower_keeps_what_is_the_same_and_nothing_else(histories: tuple[History, History]) -> None:
    leader, follower = histories
    common = same(leader, follower)
    ends = [len(follower)]
    while (diverging := told(leader, follower)) is not None:
        at = LogAtFetch(99, len(follower), 0)
        todo = step(
            at,
            at,
            answered(diverging=diverging),
            high_watermark=common,
            epoch_end=lambda epoch, log=follower: end_of(log, epoch),
            last_epoch=follower[-1],
            unclean_epoch=-1,
        )
        assert isinstance(todo, Truncate), todo
        follower = follower[: todo.offset]
        ends.append(todo.offset)
    assert len(follower) == common
    assert all(after < before for before, after in pairwise(ends)), "each response cuts something away"
