"""The replica that a consumer reads from, by its rack (KIP-392)."""

from __future__ import annotations

from app.replication.selecting import ReplicaView, select_by_rack

NEAR = ReplicaView(100, 50, 2, "a")
FAR = ReplicaView(200, 90, 3, "b")


def test_a_consumer_reads_from_the_follower_in_its_rack() -> None:
    assert select_by_rack("a", "c", [FAR, NEAR]) == 2
    assert select_by_rack("b", "c", [FAR, NEAR]) == 3


def test_a_consumer_reads_from_the_leader_if_that_is_near_or_no_follower_is() -> None:
    assert select_by_rack("a", "a", [NEAR]) is None
    assert select_by_rack("d", "c", [NEAR, FAR]) is None
    assert select_by_rack("a", None, []) is None


def test_a_consumer_without_a_rack_reads_from_the_leader() -> None:
    assert select_by_rack("", None, [ReplicaView(1, 1, 4, "")]) is None
    assert select_by_rack("", "c", [NEAR, ReplicaView(1, 1, 4, None)]) is None


def test_the_follower_that_has_most_is_preferred_and_then_the_one_that_caught_up_last() -> None:
    less, later = ReplicaView(99, 90, 4, "a"), ReplicaView(100, 60, 5, "a")
    assert select_by_rack("a", "c", [less, NEAR]) == 2
    assert select_by_rack("a", "c", [NEAR, later, less]) == 5
