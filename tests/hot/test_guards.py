"""Guards between the question to a transaction's coordinator and the append (ADR 0026, XV2)."""

from __future__ import annotations

import pytest

from app.core.units import Offset, ProducerEpoch, ProducerId, TimestampMs
from app.hot.producers import ProducerStates
from app.records.control import ControlType, EndTransactionMarker


def marker(producer_id: int) -> EndTransactionMarker:
    return EndTransactionMarker(
        control_type=ControlType.ABORT,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(0),
        coordinator_epoch=1,
        offset=Offset(5),
        timestamp=TimestampMs(0),
    )


@pytest.mark.parametrize("ended_by", ["marker", "batch"])
def test_a_marker_and_the_first_batch_spend_the_guard_of_their_producer_alone(ended_by: str) -> None:
    states = ProducerStates()
    mine, other = states.guard(7, 0), states.guard(8, 0)
    if ended_by == "marker":
        states.apply_marker(marker(7))
    else:
        states.apply(7, 0, 0, 0, 0, 0, True)
    assert mine.spent
    assert not states.holds(mine)
    assert states.holds(other)
    assert not other.spent


def test_batches_without_a_transaction_leave_a_guard() -> None:
    states = ProducerStates()
    guard = states.guard(7, 0)
    states.apply(7, 0, 0, 0, 0, 0, False)
    assert states.holds(guard)


def test_only_the_newest_guard_of_a_producer_holds_and_each_is_released_once() -> None:
    states = ProducerStates()
    older, newer = states.guard(7, 0), states.guard(7, 0)
    assert not states.holds(older)
    states.release(older)
    assert states.holds(newer)
    states.release(newer)
    assert states.guards == {}
