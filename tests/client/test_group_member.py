"""The state machine of a member of the consumer protocol (KIP-848)."""

from __future__ import annotations

from uuid import UUID

from app.client.group_member import GroupMembership, GroupSubscription
from app.wire.apis.consumer_group_heartbeat import Assignment, ConsumerGroupHeartbeatResponse, TopicPartitions

TOPIC = UUID(int=1)


def response(epoch: int, *partitions: int, silent: bool = False) -> ConsumerGroupHeartbeatResponse:
    found = None if silent else Assignment([TopicPartitions(TOPIC, list(partitions))])
    return ConsumerGroupHeartbeatResponse(
        member_id="m", member_epoch=epoch, heartbeat_interval_ms=5_000, assignment=found
    )


def member(*names: str, regex: str | None = None) -> GroupMembership:
    return GroupMembership("g", "m", GroupSubscription(names, regex))


def joined(*partitions: int) -> GroupMembership:
    made = member("t")
    assigned = made.answered(response(1, *partitions))
    if assigned is not None:
        made.moved(assigned)
    return made


def test_the_first_heartbeat_says_everything_and_owns_nothing() -> None:
    sent = member("t", regex="x.*").heartbeat()
    assert (sent.group_id, sent.member_id, sent.member_epoch) == ("g", "m", 0)
    assert (sent.subscribed_topic_names, sent.subscribed_topic_regex, sent.topic_partitions) == (["t"], "x.*", [])
    assert sent.rebalance_timeout_ms > 0


def test_an_assignment_is_confirmed_by_the_next_heartbeat_and_said_once() -> None:
    made = member("t")
    assert not made.is_current
    assert made.answered(response(1, 0, 1)) == {TOPIC: (0, 1)}
    made.moved({TOPIC: (0, 1)})
    assert not made.is_current
    assert made.heartbeat().topic_partitions == [TopicPartitions(TOPIC, [0, 1])]
    assert made.heartbeat().subscribed_topic_names is None
    assert made.answered(response(1, silent=True)) is None
    assert made.is_current
    assert made.heartbeat().topic_partitions is None


def test_a_partition_that_is_taken_away_is_given_up_before_the_next_heartbeat_says_so() -> None:
    made = joined(0, 1)
    made.answered(response(1, silent=True))
    assert made.answered(response(1, 0)) == {TOPIC: (0,)}
    assert made.owned == {TOPIC: (0, 1)}  # until the owner has given the other one up
    made.moved({TOPIC: (0,)})
    assert made.heartbeat().topic_partitions == [TopicPartitions(TOPIC, [0])]


def test_the_same_assignment_again_changes_nothing() -> None:
    made = joined(0)
    assert made.answered(response(2, 0)) is None
    assert made.epoch == 2


def test_a_fenced_member_owns_nothing_and_joins_anew() -> None:
    made = joined(0)
    made.fenced()
    assert (made.owned, made.is_current) == ({}, False)
    sent = made.heartbeat()
    assert (sent.member_epoch, sent.topic_partitions, sent.subscribed_topic_names) == (0, [], ["t"])


def test_after_a_heartbeat_without_a_response_the_next_one_says_everything() -> None:
    made = joined(0)
    made.answered(response(1, silent=True))
    made.unanswered()
    sent = made.heartbeat()
    assert (sent.member_epoch, sent.subscribed_topic_names) == (1, ["t"])
    assert sent.topic_partitions == [TopicPartitions(TOPIC, [0])]
    made.answered(response(1, 0))
    assert made.is_current
    assert made.heartbeat().topic_partitions is None


def test_a_member_leaves_with_the_epoch_that_says_so() -> None:
    assert joined(0).leave().member_epoch == -1
