"""Groups whose targets are computed between requests, and the limits of what a group may read (INV-15)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import SUBSCRIBED_NAMES_MAX, SUBSCRIBED_TOPICS_MAX
from app.groups.consumer.consumer import ClientInfo, check_heartbeat
from app.groups.consumer.consumer_records import NOBODY, MemberSubscription
from app.groups.share.core.share import SHARE_NAMES_MAX, SHARE_READS_MAX, ShareGroup, check_share_heartbeat
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.groups.bench import FakeTurn, image_of, topic_id
from tests.groups.consumers import CONFIG, Consumer, Coordinator, settle

A, B = topic_id("a"), topic_id("b")


def late(**topics: int) -> Coordinator:
    """A group whose targets are all computed between requests."""
    return Coordinator(image_of(topics), CONFIG, 0)


def test_members_go_on_until_the_target_of_a_large_group_is_there() -> None:
    coordinator = late(a=4)
    alice, bob = Consumer("alice", {"a"}), Consumer("bob", {"a"})
    settle(coordinator, [alice])
    assert alice.owned == {A: frozenset(range(4))}
    bob.beat(coordinator)
    alice.beat(coordinator)
    assert (alice.count, bob.count, coordinator.group.state) == (4, 0, "Assigning")
    coordinator.pass_time(0)
    coordinator.take()
    settle(coordinator, [alice, bob])
    assert (alice.count, bob.count) == (2, 2)


def test_a_target_of_a_group_that_was_made_anew_is_not_taken() -> None:
    coordinator = late(a=4)
    old = Consumer("old", {"a"})
    old.beat(coordinator)
    coordinator.compute()
    (stale,) = coordinator.computed
    coordinator.computed.clear()
    again = late(a=4)
    new = Consumer("new", {"a"})
    new.beat(again)
    assert again.group.take(again.turn, stale, again.image) is False
    settle(again, [new])
    assert new.count == 4


def test_an_older_target_does_not_replace_a_newer_one() -> None:
    coordinator = late(a=4)
    alice, bob = Consumer("alice", {"a"}), Consumer("bob", {"a"})
    alice.beat(coordinator)
    coordinator.compute()
    bob.beat(coordinator)
    coordinator.compute()
    older, newer = coordinator.computed
    assert coordinator.group.take(coordinator.turn, newer, coordinator.image) is True
    assert coordinator.group.take(coordinator.turn, older, coordinator.image) is False
    assert coordinator.group.target_epoch == coordinator.group.epoch == 2


def test_the_successor_of_a_static_member_takes_its_part_of_a_computed_target() -> None:
    coordinator = late(a=4)
    alice, bob = Consumer("alice", {"a"}, instance_id="i1"), Consumer("bob", {"a"}, instance_id="i2")
    settle(coordinator, [alice])
    bob.beat(coordinator)
    coordinator.compute()
    alice.epoch = -2
    coordinator.heartbeat(alice.request())
    successor = Consumer("alice-2", {"a"}, instance_id="i1")
    successor.beat(coordinator)
    coordinator.take()
    targets = coordinator.group.targets
    assert sorted(len(targets[member_id][A]) for member_id in ("alice-2", "bob")) == [2, 2]
    assert not targets["alice-2"][A] & targets["bob"][A]


def test_a_topic_that_a_member_has_given_up_meanwhile_is_not_assigned_to_it() -> None:
    coordinator = late(a=2, b=2)
    alice = Consumer("alice", {"a", "b"})
    alice.beat(coordinator)
    coordinator.compute()
    alice.topics, alice.changed = {"b"}, True
    alice.beat(coordinator)
    coordinator.take()
    alice.beat(coordinator)
    assert alice.owned == {B: frozenset({0, 1})}
    settle(coordinator, [alice])
    assert coordinator.group.target_epoch == coordinator.group.epoch == 2


def test_a_target_that_cannot_be_written_is_told_to_one_member_and_tried_again_after_the_interval() -> None:
    config = BrokerConfig(group_consumer_assignment_interval_ms=1_000)
    coordinator = Coordinator(image_of({"a": 4}), config, 0)
    alice, bob = Consumer("alice", {"a"}), Consumer("bob", {"a"})
    settle(coordinator, [alice])
    coordinator.pass_time(1_000)
    bob.beat(coordinator)
    coordinator.compute()
    coordinator.computed.clear()  # the append failed
    error = RequestRejected(ErrorCode.UNKNOWN_SERVER_ERROR, "The records are too large.")
    coordinator.group.was_not_written(error, coordinator.turn.steady_ms)
    for _ in range(3):
        bob.beat(coordinator)
        coordinator.pass_time(100)
    assert coordinator.computed == [], "it is not tried again at once"
    coordinator.pass_time(1_000)
    with pytest.raises(RequestRejected, match="too large"):
        bob.beat(coordinator)
    settle(coordinator, [alice, bob])
    assert (alice.count, bob.count) == (2, 2)


def test_a_group_is_large_by_its_different_lists_or_by_what_its_assignor_looks_at() -> None:
    names = {f"t{index}": 1 for index in range(300)}
    for assignor, lists, members, is_large in (
        ("uniform", 1, 100, False),  # 300 names once
        ("uniform", 20, 20, True),  # 20 lists of 300 names
        ("range", 1, 40, False),
        ("range", 1, 100, True),  # 30,000 names of members
    ):
        coordinator = Coordinator(image_of(names), BrokerConfig(group_consumer_assignment_interval_ms=0))
        for index in range(members):
            kept = set(sorted(names)[index % lists :])
            Consumer(f"m{index}", kept, assignor=assignor).beat(coordinator)
        group = coordinator.group
        assert (group.target_epoch < group.epoch) is is_large, (assignor, lists, members)


def test_members_with_equal_lists_share_one() -> None:
    coordinator = Coordinator(image_of({"a": 2, "b": 2}))
    for name in ("m1", "m2", "m3"):
        Consumer(name, {"a", "b"}).beat(coordinator)
    assert len({id(member.subscription.topic_names) for member in coordinator.group.members.values()}) == 1


def test_the_names_of_a_member_and_of_a_group_have_a_limit() -> None:
    coordinator = Coordinator(image_of({"a": 2}))
    members = SUBSCRIBED_TOPICS_MAX // SUBSCRIBED_NAMES_MAX
    for index in range(members):
        names = {f"{index}-{number}" for number in range(SUBSCRIBED_NAMES_MAX)}
        Consumer(f"m{index}", names).beat(coordinator)
    known = dict(coordinator.group.members)
    with pytest.raises(RequestRejected) as refused:
        Consumer("one-more", {"a"}).beat(coordinator)
    assert refused.value.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert coordinator.group.members == known
    request = Consumer("many", {str(number) for number in range(SUBSCRIBED_NAMES_MAX + 1)}).request()
    with pytest.raises(RequestRejected) as refused:
        check_heartbeat(request, 1, ["uniform"])
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_group_that_is_beyond_the_limit_already_may_shrink_but_not_grow() -> None:
    coordinator = Coordinator(image_of({"a": 2}))
    names = frozenset(str(number) for number in range(SUBSCRIBED_TOPICS_MAX + 10))
    coordinator.group.replay(MemberSubscription("old", replace(NOBODY, topic_names=names)))
    with pytest.raises(RequestRejected, match="would subscribe"):
        Consumer("new", {"a"}).beat(coordinator)
    Consumer("new", {"1", "2"}).beat(coordinator)
    assert set(coordinator.group.members) == {"old", "new"}


def test_what_the_members_of_a_share_group_read_has_a_limit() -> None:
    group, turn, image = ShareGroup("g", BrokerConfig()), FakeTurn(), image_of({"a": 2})
    names = [f"t{index}" for index in range(SHARE_NAMES_MAX)]

    def join(member_id: str) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=0, subscribed_topic_names=names
        )
        check_share_heartbeat(request)
        group.heartbeat(turn, request, ClientInfo("client", "/h"), image)

    for index in range(SHARE_READS_MAX // SHARE_NAMES_MAX):
        join(f"m{index}")
    known = dict(group.members)
    with pytest.raises(RequestRejected) as refused:
        join("one-more")
    assert (refused.value.code, group.members) == (ErrorCode.GROUP_MAX_SIZE_REACHED, known)
    request = ShareGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=[*names, "a"]
    )
    with pytest.raises(RequestRejected) as refused:
        check_share_heartbeat(replace(request))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
