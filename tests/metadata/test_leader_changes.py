"""Elections on request, and the return of preferred leaders (E3, E5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode
from app.core.units import BrokerId, TopicIdPartition
from app.metadata.changes.leader_changes import PUT_OFF_MAX, Comebacks, elect_leaders, preferred_leaders_back
from app.metadata.image.draft import ImageDraft
from app.metadata.image.records import partition_change
from app.metadata.replicas.elections import NOBODY
from tests.metadata.several import TOPIC_ID, applied, around, change, ids, partition, several

NONE = ErrorCode.NONE
B = ids(2)[0]


def elected(draft: ImageDraft, *indexes: int, unclean: bool = False) -> list[tuple[int, ErrorCode]]:
    asked = [("t", index) for index in indexes] or None
    elections, uncleanly = applied(draft, elect_leaders(draft, around(), asked, unclean=unclean))
    assert uncleanly == ()
    assert all(bool(each.why) == (each.error is not NONE) for each in elections)
    return [(each.partition, each.error) for each in elections]


def test_the_preferred_leader_leads_again_in_a_new_epoch() -> None:
    draft = several([1, 2], [2, 1])
    change(draft, leader=B)
    assert elected(draft, 0, 1) == [(0, NONE), (1, ErrorCode.ELECTION_NOT_NEEDED)]
    image = partition(draft)
    assert (image.leader, image.leader_epoch, image.partition_epoch, image.isr) == (1, 1, 1, (1, 2))


def test_of_all_partitions_those_that_need_no_election_are_left_out() -> None:
    draft = several([1, 2], [2, 1])
    change(draft, leader=B)
    assert elected(draft) == [(0, NONE)]
    assert elected(draft) == []


@pytest.mark.parametrize("why", ["fenced", "stopping", "not in sync"])
def test_e1_a_preferred_leader_that_may_not_lead_does_not(why: str) -> None:
    draft = several([1, 2], fenced=[1] if why == "fenced" else [], stopping=[1] if why == "stopping" else [])
    change(draft, leader=B, isr=ids(2) if why == "not in sync" else ids(1, 2))
    assert elected(draft, 0) == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert elected(draft) == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert partition(draft).leader == B


def test_partitions_that_do_not_exist_are_told() -> None:
    draft = several([1, 2])
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for unclean in (False, True):
        plan = elect_leaders(draft, around(), [("t", 1), ("t", -1), ("none", 0)], unclean=unclean)
        assert [each[:3] for each in plan.answer.elections] == [
            ("t", 1, unknown),
            ("t", -1, unknown),
            ("none", 0, unknown),
        ]


def test_e3_any_living_replica_is_elected_on_request_and_the_record_says_so() -> None:
    draft = several([1, 2, 3], [1, 2], fenced=[1])
    change(draft, leader=NOBODY, isr=(), eligible=ids(1))
    assert elected(draft, 1, unclean=True) == [(1, ErrorCode.ELECTION_NOT_NEEDED)]
    plan = elect_leaders(draft, around(), None, unclean=True)
    assert plan.answer.unclean == (TopicIdPartition(TOPIC_ID, partition(draft).partition_index),)
    assert [each[:3] for each in applied(draft, plan).elections] == [("t", 0, NONE)]
    image = partition(draft)
    assert (image.leader, image.isr, image.eligible, image.recovering) == (2, (2,), (), True)
    assert image.leader_epoch == 1


def test_e3_nobody_is_elected_if_no_replica_lives() -> None:
    draft = several([1, 2], fenced=[1], stopping=[2])
    change(draft, leader=NOBODY, isr=(), eligible=ids(1))
    assert elected(draft, 0, unclean=True) == [(0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]


def test_a_partition_that_is_named_twice_is_elected_once() -> None:
    draft = several([1, 2])
    change(draft, leader=B)
    assert elected(draft, 0, 0) == [(0, NONE), (0, ErrorCode.ELECTION_NOT_NEEDED)]
    assert partition(draft).leader_epoch == 1


def test_one_change_elects_so_many_leaders_at_most() -> None:
    draft = several([1, 2], [1, 2])
    preferred_last(draft)
    first = applied(draft, elect_leaders(draft, around(), None, unclean=False, at_most=1))
    assert [each[1:3] for each in first.elections] == [(0, NONE), (1, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    assert elected(draft) == [(1, NONE)]


def preferred_last(draft: ImageDraft) -> None:
    """Both brokers of each partition are in sync, and the second leads."""
    topic = draft.topic("t")
    assert topic is not None
    draft.apply(
        [
            partition_change(TOPIC_ID, each.partition_index, each._replace(leader=B).record())
            for each in topic.partitions
        ]
    )


def test_e5_preferred_leaders_come_back_some_at_a_time() -> None:
    draft = several([1, 2], [1, 2], [3, 2], [1, 2], fenced=[3])
    preferred_last(draft)
    assert applied(draft, preferred_leaders_back(draft, around(), draft.brokers.keys(), 2)) == 2
    assert [partition(draft, index).leader for index in range(4)] == [1, 1, 2, 2]
    assert applied(draft, preferred_leaders_back(draft, around(), draft.brokers.keys(), 2)) == 1
    assert [partition(draft, index).leader for index in range(4)] == [1, 1, 2, 1]
    plan = preferred_leaders_back(draft, around(), draft.brokers.keys(), 2)
    assert (plan.records, plan.answer) == ([], 0)


# --- when they come back ----------------------------------------------------------------------------------------------


def test_leaders_come_back_only_on_brokers_that_are_stable() -> None:
    draft = several([1, 2], [2, 1])
    change(draft, leader=B)
    assert applied(draft, preferred_leaders_back(draft, around(), ids(2), 9)) == 0
    assert partition(draft).leader == B
    assert applied(draft, preferred_leaders_back(draft, around(), ids(1), 9)) == 1


ONE, TWO, THREE = ids(1, 2, 3)


def test_a_broker_that_has_just_come_gets_nothing_back_at_the_next_check() -> None:
    comebacks = Comebacks(30, 0)
    assert comebacks.due(29, {ONE: 0}) == set()
    assert comebacks.due(30, {ONE: 0, TWO: 29}) == set()
    assert comebacks.due(60, {ONE: 0, TWO: 29}) == {ONE, TWO}


def test_brokers_that_are_restarted_one_after_the_other_get_their_leaderships_back_together() -> None:
    comebacks = Comebacks(30, 0)
    steady = {ONE: 0.0, TWO: 0.0, THREE: 0.0}
    moved = []
    for now_s in range(1, 200):
        if now_s in (25, 50, 75):
            steady[BrokerId(now_s // 25)] = now_s
        found = comebacks.due(now_s, steady)
        if found:
            moved.append((now_s, found))
    assert moved[0] == (120, {ONE, TWO, THREE})


def test_a_broker_that_comes_and_goes_keeps_the_others_from_their_leaderships_for_a_while_only() -> None:
    comebacks = Comebacks(30, 0)
    found = [comebacks.due(30 * check, {ONE: 0, TWO: 30 * check - 5}) for check in range(1, 25)]
    assert found.index(frozenset({ONE})) == PUT_OFF_MAX
    assert all(TWO not in one for one in found)


@given(
    st.lists(st.tuples(st.floats(0.1, 20), st.sampled_from([ONE, TWO, THREE]), st.booleans()), min_size=1, max_size=200)
)
def test_whatever_brokers_do_only_stable_ones_get_leaderships_and_none_waits_too_long(
    happens: list[tuple[float, BrokerId, bool]],
) -> None:
    interval_s, tick_s = 10.0, 0.5
    comebacks = Comebacks(interval_s, 0)
    steady = {ONE: 0.0, TWO: 0.0, THREE: 0.0}
    got: dict[BrokerId, float] = {}
    now_s = 0.0
    for wait_s, broker, comes in happens:
        end_s = now_s + wait_s
        while now_s < end_s:
            now_s = min(end_s, now_s + tick_s)
            for one in comebacks.due(now_s, steady):
                assert now_s - steady[one] >= interval_s
                got[one] = now_s
            for one, since_s in steady.items():
                waits_since_s = max(since_s, got.get(one, 0.0))
                assert now_s - waits_since_s <= (PUT_OFF_MAX + 2) * (interval_s + tick_s) + interval_s
        if comes:
            steady[broker] = now_s
        else:
            steady.pop(broker, None)
