"""Reassignments (KIP-455): they begin, complete with the in-sync set, and are cancelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode
from app.core.units import LeaderEpoch, LogSequence, TopicIdPartition
from app.metadata.changes import broker_changes
from app.metadata.changes.broker_changes import ProposedSet
from app.metadata.changes.reassignments import (
    Reassigned,
    Reassignment,
    ReassignmentAsked,
    alter_reassignments,
    begin,
    cancel,
    completed,
    in_progress,
    list_reassignments,
    original,
)
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import PartitionImage
from app.metadata.replicas.elections import NOBODY
from app.metadata.replicas.replica_changes import ProposedReplica
from tests.metadata.several import TOPIC_ID, applied, around, change, ids, partition, several

NONE = ErrorCode.NONE


def reassign(draft: ImageDraft, *targets: int, index: int = 0, factor_may_change: bool = True) -> ErrorCode:
    asked = ReassignmentAsked("t", index, targets)
    plan = alter_reassignments(draft, around(), [asked], allow_factor_change=factor_may_change)
    [answer] = applied(draft, plan).answers
    assert bool(answer.why) == (answer.error is not NONE)
    return answer.error


def stop(draft: ImageDraft, index: int = 0) -> Reassigned:
    return applied(draft, alter_reassignments(draft, around(), [ReassignmentAsked("t", index, None)]))


def propose(draft: ImageDraft, *isr: int) -> ErrorCode:
    """The leader proposes an in-sync set."""
    image = partition(draft)
    members = [ProposedReplica(each, draft.brokers[each].broker_epoch) for each in isr]
    asked = ProposedSet(TOPIC_ID, 0, image.leader_epoch, image.partition_epoch, members)
    leader_epoch = draft.brokers[image.leader].broker_epoch
    plan = broker_changes.alter_in_sync(draft, around(), image.leader, leader_epoch, [asked], after=completed)
    return applied(draft, plan)[0].error


def test_targets_come_first_and_the_others_stay_until_all_targets_are_in_sync() -> None:
    draft = several([1, 2, 3])
    assert reassign(draft, 3, 4, 5) is NONE
    image = partition(draft)
    assert image.replicas == (3, 4, 5, 1, 2)
    assert (image.adding, image.removing) == ((4, 5), (1, 2))
    assert (image.leader, image.leader_epoch, image.partition_epoch, image.isr) == (1, 0, 1, (1, 2, 3))
    assert propose(draft, 1, 2, 3, 4) is NONE
    assert partition(draft).replicas == (3, 4, 5, 1, 2)
    assert propose(draft, 1, 2, 3, 4, 5) is ErrorCode.NEW_LEADER_ELECTED
    image = partition(draft)
    assert (image.replicas, set(image.isr)) == ((3, 4, 5), {3, 4, 5})
    assert (image.adding, image.removing) == ((), ())
    assert (image.leader, image.leader_epoch, image.partition_epoch) == (3, 1, 3)


def test_r6_a_new_leader_epoch_begins_when_a_replica_leaves_although_the_leader_stays() -> None:
    draft = several([1, 2])
    assert reassign(draft, 1, 3) is NONE
    assert propose(draft, 1, 2, 3) is NONE
    image = partition(draft)
    assert (image.replicas, image.leader, image.leader_epoch) == ((1, 3), 1, 1)


def test_an_added_replica_ends_no_leader_epoch() -> None:
    draft = several([1, 2])
    assert reassign(draft, 1, 2, 3) is NONE
    assert propose(draft, 1, 2, 3) is NONE
    image = partition(draft)
    assert (image.replicas, image.leader, image.leader_epoch, in_progress(image)) == ((1, 2, 3), 1, 0, False)


def test_a_reassignment_to_some_of_the_replicas_in_sync_is_complete_at_once() -> None:
    draft = several([1, 2, 3])
    assert reassign(draft, 3, 2) is NONE
    image = partition(draft)
    assert (image.replicas, image.isr, image.leader, image.leader_epoch) == ((3, 2), (2, 3), 3, 1)
    assert not in_progress(image)


def test_another_order_of_the_same_replicas_is_one_change_and_the_same_order_is_none() -> None:
    draft = several([1, 2, 3])
    assert alter_reassignments(draft, around(), [ReassignmentAsked("t", 0, (1, 2, 3))]).records == []
    assert reassign(draft, 2, 1, 3) is NONE
    image = partition(draft)
    assert (image.replicas, image.leader, image.leader_epoch, image.partition_epoch) == ((2, 1, 3), 1, 0, 1)


def test_a_removal_waits_for_the_replicas_that_stay() -> None:
    draft = several([1, 2, 3])
    change(draft, isr=ids(1, 2))
    assert reassign(draft, 1, 3) is NONE
    assert in_progress(partition(draft))
    assert propose(draft, 1, 2, 3) is NONE
    assert partition(draft).replicas == (1, 3)


def test_a_replica_in_no_set_leaves_at_once_when_a_reassignment_is_replaced() -> None:
    draft = several([1, 2])
    assert reassign(draft, 3, 4) is NONE
    assert propose(draft, 1, 2, 3) is NONE
    assert reassign(draft, 1, 5) is NONE
    image = partition(draft)
    # 3 is in sync: it goes with the others. 4 was in no set.
    assert image.replicas == (1, 5, 2, 3)
    assert (image.adding, image.removing) == ((5,), (2, 3))
    assert (image.leader, image.leader_epoch) == (1, 1)
    assert stop(draft).answers[0].error is NONE
    assert partition(draft).replicas == (1, 2, 3)


def test_a_cancelled_reassignment_leaves_the_replicas_of_before() -> None:
    draft = several([1, 2, 3])
    assert reassign(draft, 4, 5, 1) is NONE
    assert propose(draft, 1, 2, 3, 4) is NONE
    change(draft, leader=ids(4)[0], leader_epoch=LeaderEpoch(7))
    assert stop(draft) == Reassigned([("t", 0, NONE, "")], ())  # type: ignore[list-item]
    image = partition(draft)
    assert set(image.replicas) == set(image.isr) == {1, 2, 3}
    assert (image.adding, image.removing) == ((), ())
    assert (image.leader, image.leader_epoch) == (1, 8)
    assert stop(draft).answers[0].error is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_cancellation_never_leaves_a_partition_without_a_leader() -> None:
    draft = several([1, 2])
    assert reassign(draft, 3, 1) is NONE
    change(draft, isr=ids(3), leader=ids(3)[0])
    assert stop(draft).answers[0].error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert in_progress(partition(draft))


def test_a_cancellation_does_not_forget_the_only_replica_that_has_the_records() -> None:
    for known in ("eligible", "last_known_eligible"):
        draft = several([1, 2], fenced=[3])
        change(draft, replicas=ids(3, 1, 2), adding=ids(3), removing=ids(2), isr=(), leader=NOBODY)
        change(draft, **{known: ids(3)})
        assert stop(draft).answers[0].error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_cancellation_may_elect_somebody_eligible() -> None:
    draft = several([1, 2, 4], min_insync_replicas="2")
    assert reassign(draft, 3, 1) is NONE
    change(draft, isr=ids(3), eligible=ids(2, 4), leader=ids(3)[0])
    assert stop(draft).answers[0].error is NONE
    image = partition(draft)
    assert (image.leader, image.isr, image.eligible, image.recovering) == (2, (2,), (4,), False)


def test_a_cancellation_waits_for_an_eligible_replica_that_is_fenced() -> None:
    draft = several([1, 2], fenced=[2], min_insync_replicas="2")
    assert reassign(draft, 3, 1) is NONE
    change(draft, isr=ids(3), eligible=ids(2), leader=ids(3)[0])
    assert stop(draft).answers[0].error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_added_replica_is_eligible_until_it_leaves() -> None:
    draft = several([1, 2], min_insync_replicas="2")
    assert reassign(draft, 3, 1) is NONE
    change(draft, isr=ids(1), eligible=ids(2, 3))
    assert reassign(draft, 4, 1) is NONE
    assert (partition(draft).removing, partition(draft).eligible) == ((2, 3), (2, 3))
    change(draft, replicas=ids(3, 1, 2), adding=ids(3), removing=ids(2))
    assert stop(draft).answers[0].error is NONE
    assert partition(draft).eligible == (2,)


def test_m13_a_broker_that_stops_gets_no_leadership_by_a_reassignment() -> None:
    draft = several([1, 2, 3], stopping=[2])
    assert reassign(draft, 2, 3) is NONE
    assert (partition(draft).replicas, partition(draft).leader) == ((2, 3), 3)


def test_e3_a_cancellation_elects_uncleanly_where_the_topic_allows_it() -> None:
    draft = several([1, 2], unclean_leader_election_enable="true")
    assert reassign(draft, 3, 1) is NONE
    change(draft, isr=ids(3), leader=ids(3)[0])
    assert stop(draft).unclean == (TopicIdPartition(TOPIC_ID, partition(draft).partition_index),)
    image = partition(draft)
    assert (image.leader, image.isr, image.recovering) == (1, (1,), True)


@pytest.mark.parametrize("targets", [(), (1, 1), (1, 9), (1, 5)])
def test_targets_that_cannot_be_are_refused(targets: tuple[int, ...]) -> None:
    draft = several([1, 2], fenced=[5])
    assert reassign(draft, *targets) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert partition(draft) == partition(several([1, 2]))


def test_a_present_replica_may_be_fenced() -> None:
    draft = several([1, 2, 3], fenced=[3])
    change(draft, isr=ids(1, 2))
    assert reassign(draft, 1, 4, 3) is NONE


def test_a_change_of_the_factor_is_refused_if_the_request_forbids_it() -> None:
    draft = several([1, 2])
    assert reassign(draft, 3, 4, 5, factor_may_change=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(draft, 3, 4, factor_may_change=False) is NONE
    # It counts what the partition had before the first reassignment began.
    assert reassign(draft, 4, 5, factor_may_change=False) is NONE


def test_a_cluster_of_one_broker_adds_no_replica() -> None:
    draft = several([1], brokers=(1, 2), level=0)
    assert reassign(draft, 1, 2) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(draft, 1) is NONE


def test_each_partition_is_answered_for_itself() -> None:
    draft = several([1, 2], [2, 3])
    asked = [
        ReassignmentAsked("t", 0, (1, 3)),
        ReassignmentAsked("t", 2, (1, 3)),
        ReassignmentAsked("t", -1, (1, 3)),
        ReassignmentAsked("none", 0, (1, 3)),
        ReassignmentAsked("t", 1, None),
        ReassignmentAsked("t", 0, None),
    ]
    plan = alter_reassignments(draft, around(), asked)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = [answer.error for answer in plan.answer.answers]
    assert codes == [NONE, unknown, unknown, unknown, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, NONE]
    assert [(answer.topic, answer.partition) for answer in plan.answer.answers] == [each[:2] for each in asked]
    draft.apply(plan.records)
    assert partition(draft, 0).replicas == (1, 2)


def test_reassignments_under_way_are_listed() -> None:
    draft = several([1, 2], [2, 3])
    assert reassign(draft, 2, 4, index=1) is NONE
    image = draft.freeze(LogSequence(1))
    found = [Reassignment("t", 1, ids(2, 4, 3), ids(4), ids(3))]
    assert list_reassignments(image) == found
    assert list_reassignments(image, [("t", [0, 1, 7, -1]), ("none", [0])]) == found
    assert list_reassignments(image, [("t", [0])]) == []


def test_original_is_what_a_cancellation_leaves() -> None:
    image = begin(partition(several([1, 2])), [3, 2])
    assert set(original(image)) == set(cancel(image).replicas) == {1, 2}


def check(before: PartitionImage, after: PartitionImage) -> None:
    assert len(set(after.replicas)) == len(after.replicas)
    for named in (after.isr, after.eligible, after.adding, after.removing):
        assert set(named) <= set(after.replicas)
    assert not set(after.adding) & set(after.removing)
    assert not set(after.isr) & set(after.eligible)
    assert original(after)
    assert after.leader in after.isr
    if after == before:
        return
    assert after.partition_epoch == before.partition_epoch + 1
    ended = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
    assert after.leader_epoch == before.leader_epoch + ended


some = st.lists(st.integers(1, 5), min_size=1, max_size=5, unique=True)


@given(
    first=some,
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("reassign"), some),
            st.tuples(st.just("propose"), some),
            st.tuples(st.just("stop"), st.none()),
        ),
        max_size=12,
    ),
)
def test_whatever_is_asked_the_partition_is_led_in_sync_and_each_change_is_one(
    first: list[int], steps: list[tuple[str, list[int] | None]]
) -> None:
    draft = several(first)
    for step, named in steps:
        before = partition(draft)
        match step:
            case "reassign":
                assert reassign(draft, *(named or ())) is NONE
            case "propose":
                propose(draft, *{before.leader, *(each for each in named or () if each in before.replicas)})
            case _:
                stop(draft)
        check(before, partition(draft))
