"""The state machine of a member of the consumer protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from app.client.cluster import ClusterClient, TopicView
from app.client.group_member import ActiveMember, GroupMembership, GroupSubscription, moves
from app.core.units import BrokerId, PartitionIndex, TopicId, TopicPartition
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


class Told:
    """An owner that notes what it is told."""

    def __init__(self) -> None:
        self.given_up: list[TopicPartition] = []
        self.anew: list[TopicPartition] = []
        self.has: tuple[TopicPartition, ...] = ()

    async def giving_up(self, partitions: Sequence[TopicPartition]) -> None:
        self.given_up += partitions

    async def taken(self, partitions: Sequence[TopicPartition], anew: Collection[TopicPartition]) -> None:
        self.has = tuple(partitions)
        self.anew += anew

    def lost(self) -> None:
        self.has = ()


class Answers:
    """A cluster whose coordinator gives these responses, one after the other."""

    def __init__(self, *responses: ConsumerGroupHeartbeatResponse) -> None:
        self.responses = list(responses)
        self.view = SimpleNamespace(topics={"t": view_of(TOPIC)})

    async def broker(self, _: BrokerId) -> Answers:
        return self

    async def request(self, *_: Any) -> ConsumerGroupHeartbeatResponse:
        return self.responses.pop(0)

    async def refresh(self, names: list[str]) -> None:
        self.view.topics = {name: view_of(NEW_TOPIC) for name in names}


NEW_TOPIC = UUID(int=2)
T0, T1 = (TopicPartition("t", PartitionIndex(index)) for index in (0, 1))


def view_of(topic_id: UUID) -> TopicView:
    return TopicView("t", TopicId(topic_id), False, ())


async def test_partitions_of_a_new_topic_with_the_old_name_are_taken_anew_and_the_old_ones_not_given_up() -> None:
    recreated = response(2)
    assert recreated.assignment is not None
    recreated.assignment.topic_partitions.append(TopicPartitions(NEW_TOPIC, [0]))
    told = Told()
    made = ActiveMember(
        cast(ClusterClient, Answers(response(1, 0, 1), recreated)), "g", "m", GroupSubscription(("t",)), told
    )
    made._coordinator = BrokerId(1)
    await made.beat()
    assert (told.has, told.given_up, told.anew) == ((T0, T1), [], [])
    await made.beat()
    assert (told.has, told.given_up, told.anew) == ((T0,), [], [T0])


def test_partitions_that_leave_are_given_up_unless_another_topic_has_their_name() -> None:
    before = {T0: TOPIC, T1: TOPIC}
    assert moves(before, {T0: TOPIC}, {"t": view_of(TOPIC)}) == ([T1], [])
    assert moves(before, {T0: TOPIC}, {}) == ([T1], [])
    assert moves(before, {}, {"t": view_of(NEW_TOPIC)}) == ([], [])
    assert moves(before, {T0: NEW_TOPIC}, {"t": view_of(NEW_TOPIC)}) == ([], [T0])
