"""What a coordinator that was replaced by an election that may lose records can still do (ADR 0037, J46g): nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import ProducerEpoch, ProducerId
from app.hot.producers import ProducerStates
from app.transactions.markers import Marker, check_still_coordinates
from app.transactions.state import VERSION_2, ProducerIdentity


def image_of(*epochs: int) -> Any:
    partitions = [SimpleNamespace(leader_epoch=epoch) for epoch in epochs]
    return SimpleNamespace(topic=lambda name: SimpleNamespace(partitions=partitions))


def marker_of(coordinator: int, leads_since: int) -> Marker:
    identity = ProducerIdentity(ProducerId(1), ProducerEpoch(2))
    return Marker(identity, True, 9, VERSION_2, b"", coordinator, leads_since)


def test_j46g_a_marker_of_a_former_coordinator_is_refused() -> None:
    with pytest.raises(RequestRejected) as refused:
        check_still_coordinates(image_of(3, 7), marker_of(1, 6))
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize(("coordinator", "leads_since"), [(1, 7), (1, 8), (0, 3), (-1, -1), (2, 0)])
def test_a_marker_of_the_coordinator_of_the_image_or_a_later_one_is_taken(coordinator: int, leads_since: int) -> None:
    check_still_coordinates(image_of(3, 7), marker_of(coordinator, leads_since))


def test_j46g_what_former_coordinators_allowed_begins_no_transaction() -> None:
    producers = ProducerStates()
    guard = producers.guard(7, 1)
    assert producers.holds(guard)
    producers.spend_all()
    assert guard.spent
    assert not producers.holds(guard)
    producers.release(guard)
    again = producers.guard(7, 1)
    assert producers.holds(again)
