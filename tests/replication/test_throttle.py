"""The throttle of replication and the choice of a near replica: pure tables."""

from __future__ import annotations

import pytest

from app.replication.selecting import ReplicaView, select_by_rack
from app.replication.throttle import UNLIMITED, RateWindow, Throttle


def test_a_rate_is_measured_over_the_samples_and_over_one_at_least() -> None:
    window = RateWindow(3, 1000)
    assert window.rate(0) == 0
    window.record(500, 0)
    assert window.rate(0) == window.rate(1000) == 500  # one sample at least
    window.record(700, 900)
    window.record(300, 1000)
    assert window.rate(2000) == 750  # 1500 bytes in two seconds
    assert window.rate(2999) == pytest.approx(1500 / 2.999)
    assert window.rate(3000) == 150  # the first sample has expired; 300 bytes since 1000
    assert window.rate(4000) == 0


def test_a_limit_is_exceeded_only_above_it_and_until_the_window_has_let_it_go() -> None:
    throttle = Throttle(1, samples_max=2, sample_ms=1000)
    throttle.record(10_000, 0)
    assert throttle.limit == UNLIMITED
    assert not throttle.is_exceeded(0)
    throttle.limit = 10_000
    assert not throttle.is_exceeded(0)
    throttle.record(1, 0)
    assert throttle.is_exceeded(999)
    assert not throttle.is_exceeded(1500)
    throttle.limit = 0
    assert throttle.is_exceeded(1999)
    assert not throttle.is_exceeded(2000)


@pytest.mark.parametrize(
    ("replicas", "index", "covered"),
    [((), 0, False), (("*",), 7, True), (("0:1", "1:2"), 0, True), (("0:1", "1:2"), 1, False), (("10:1",), 0, False)],
)
def test_a_setting_names_replicas_of_this_broker(replicas: tuple[str, ...], index: int, covered: bool) -> None:
    assert Throttle(1).covers(frozenset(replicas), index) is covered


def view(broker_id: int, rack: str | None, end: int = 10, caught_up_ms: int = 0) -> ReplicaView:
    return ReplicaView(end, caught_up_ms, broker_id, rack)


@pytest.mark.parametrize(
    ("rack", "followers", "chosen"),
    [
        ("", [view(2, ""), view(3, None)], None),
        ("a", [view(2, "a")], None),  # the leader is there
        ("b", [], None),
        ("b", [view(2, "c"), view(3, None)], None),
        ("b", [view(2, "b"), view(3, "c", 99)], 2),
        ("b", [view(2, "b", 9), view(3, "b", 10)], 3),
        ("b", [view(2, "b", 10, 7), view(3, "b", 10, 6)], 2),
        ("b", [view(2, "b"), view(3, "b")], 3),
    ],
)
def test_the_replica_in_the_rack_that_has_most_is_chosen(rack, followers, chosen) -> None:
    assert select_by_rack(rack, "a", followers) == chosen
