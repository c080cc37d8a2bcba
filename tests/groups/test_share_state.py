"""The share coordinator's states: which leader and which epoch counts (ADR 0027, rules H1 to H5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import PartitionIndex
from app.groups.share.core.share_state import (
    ANY_EPOCH,
    NOT_BEGUN,
    RESET_EPOCHS,
    ShareKey,
    ShareSettings,
    ShareState,
    ShareStateShard,
    epoch_after_reset,
)
from app.groups.share.core.share_window import RecordState, Run
from tests.groups.bench import topic_id
from tests.groups.shards import ShardTurn

KEY = ShareKey("g", topic_id("t"), 0)
SETTINGS = ShareSettings(lock_ms=1000, deliveries_max=5, window_max=100)
DONE, FREE = RecordState.ACKNOWLEDGED, RecordState.AVAILABLE


class Bench:
    """One shard with its log."""

    def __init__(self) -> None:
        self.turn = ShardTurn()
        self.shard = self.empty()

    @staticmethod
    def empty() -> ShareStateShard:
        return ShareStateShard(PartitionIndex(0), lambda _: SETTINGS)

    def reload(self) -> None:
        """Another broker becomes the coordinator."""
        self.shard = self.empty()
        for batch in self.turn.batches:
            self.shard.load(batch)

    def initialize(self, state_epoch: int = ANY_EPOCH, start: int = NOT_BEGUN) -> None:
        self.shard.initialize(self.turn, KEY, state_epoch, start)

    def read(self, leader_epoch: int) -> ShareState:
        return self.shard.read(self.turn, KEY, leader_epoch)

    def write(self, state_epoch: int, leader_epoch: int, start: int, *runs: Run, whole: bool = False) -> None:
        self.shard.write(self.turn, KEY, state_epoch, leader_epoch, start, runs, whole=whole)

    def refused(self, call: Callable[..., Any], *args: Any) -> ErrorCode:
        """The code with which it is refused; nothing is written or changed."""
        state, written = self.state, len(self.turn.batches)
        with pytest.raises(RequestRejected) as error:
            call(*args)
        assert (self.state, len(self.turn.batches)) == (state, written)
        return error.value.code

    @property
    def state(self) -> ShareState | None:
        shared = self.shard.shared(KEY)
        return None if shared is None else shared.state


@pytest.mark.parametrize("moves", [False, True], ids=["the coordinator stays", "the coordinator moves"])
def test_a_leader_counts_until_a_newer_one_has_read(moves: bool) -> None:
    bench = Bench()
    bench.initialize()
    assert bench.read(3) == ShareState(0, 3, NOT_BEGUN, ())
    bench.write(0, 3, 10, Run(10, 12, FREE, 1))
    assert bench.read(3).start == 10, "the same leader may read again"
    assert bench.read(5).runs == (Run(10, 12, FREE, 1),)
    if moves:
        bench.reload()
    assert bench.refused(bench.write, 0, 3, 12) is ErrorCode.FENCED_LEADER_EPOCH
    assert bench.refused(bench.read, 4) is ErrorCode.FENCED_LEADER_EPOCH
    bench.write(0, 5, 11)
    assert bench.state == ShareState(0, 5, 11, (Run(11, 12, FREE, 1),))


def test_what_was_decided_on_the_progress_before_a_reset_does_not_count() -> None:
    bench = Bench()
    bench.initialize()
    bench.write(bench.read(0).state_epoch, 0, 10)
    bench.initialize(RESET_EPOCHS, 4)
    assert bench.refused(bench.write, 0, 0, 12) is ErrorCode.FENCED_STATE_EPOCH
    assert bench.refused(bench.write, RESET_EPOCHS - 1, 0, 12) is ErrorCode.FENCED_STATE_EPOCH
    bench.write(RESET_EPOCHS, 0, 5)
    assert bench.refused(bench.initialize, RESET_EPOCHS, 4) is ErrorCode.FENCED_STATE_EPOCH
    assert bench.refused(bench.initialize, 1, 0) is ErrorCode.FENCED_STATE_EPOCH
    bench.reload()
    assert bench.refused(bench.write, 0, 0, 12) is ErrorCode.FENCED_STATE_EPOCH
    assert bench.state == ShareState(RESET_EPOCHS, 0, 5, ())


def test_the_state_of_a_subscribed_partition_may_be_made_any_number_of_times() -> None:
    bench = Bench()
    for _ in range(2):
        bench.initialize()
    assert len(bench.turn.batches) == 1
    bench.write(0, 0, 10)
    bench.initialize()
    assert bench.state == ShareState(0, 0, 10, ())
    bench.initialize(RESET_EPOCHS, 4)
    bench.initialize(RESET_EPOCHS, 4)
    bench.initialize()
    assert bench.state == ShareState(RESET_EPOCHS, 0, 4, ())


def test_a_state_that_is_made_again_is_not_that_which_was_deleted() -> None:
    bench = Bench()
    bench.initialize()
    bench.write(3, 0, 10)
    bench.shard.forget(bench.turn, [KEY, KEY._replace(partition=7)])
    assert bench.state is None
    assert bench.refused(bench.read, 0) is ErrorCode.INVALID_REQUEST
    assert bench.refused(bench.write, 3, 0, 11) is ErrorCode.INVALID_REQUEST
    bench.reload()
    bench.initialize()
    assert bench.refused(bench.write, 3, 0, 11) is ErrorCode.FENCED_STATE_EPOCH
    assert bench.state == ShareState(RESET_EPOCHS, 0, NOT_BEGUN, ())


def test_a_write_that_comes_late_is_fenced_by_the_one_that_took_its_place() -> None:
    """The leader heard nothing of the first, and sent everything again under the next state epoch (H5)."""
    bench = Bench()
    bench.initialize()
    late = (0, 0, 10, Run(10, 11, FREE, 1), Run(11, 12, DONE, 1))
    bench.write(1, 0, 12, Run(12, 13, FREE, 2), Run(13, 14, DONE, 1))
    assert bench.refused(bench.write, *late) is ErrorCode.FENCED_STATE_EPOCH
    bench.reload()
    assert bench.refused(bench.write, *late) is ErrorCode.FENCED_STATE_EPOCH
    assert bench.state == ShareState(1, 0, 12, (Run(12, 13, FREE, 2), Run(13, 14, DONE, 1)))
    assert epoch_after_reset(1) == RESET_EPOCHS


def test_changed_runs_take_the_place_of_what_was_there_and_gaps_are_available() -> None:
    bench = Bench()
    bench.initialize(start=0)
    bench.write(0, 0, 0, Run(2, 4, DONE, 1))
    assert bench.state == ShareState(0, 0, 0, (Run(0, 2), Run(2, 4, DONE, 1)))
    bench.write(0, 0, NOT_BEGUN, Run(1, 2, FREE, 1), Run(6, 8, DONE, 3))
    bench.reload()
    assert bench.state == ShareState(
        0, 0, 0, (Run(0, 1), Run(1, 2, FREE, 1), Run(2, 4, DONE, 1), Run(4, 6), Run(6, 8, DONE, 3))
    )
    bench.write(0, 0, 3, Run(0, 1, DONE, 1))
    assert bench.state == ShareState(0, 0, 4, (Run(4, 6), Run(6, 8, DONE, 3)))


def test_what_cannot_be_written_does_not_count() -> None:
    bench = Bench()
    bench.initialize()
    assert bench.refused(bench.write, 0, 0, NOT_BEGUN, Run(0, 1, DONE, 1)) is ErrorCode.INVALID_REQUEST
    bench.write(0, 1, 10)
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    for call, args in (
        (bench.write, (2, 4, 11)),
        (bench.read, (4,)),
        (bench.initialize, (RESET_EPOCHS, 0)),
        (lambda: bench.shard.forget(bench.turn, [KEY]), ()),
    ):
        assert bench.refused(call, *args) is ErrorCode.COORDINATOR_NOT_AVAILABLE
