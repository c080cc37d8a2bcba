"""The end of a write-ahead log, releases, and ranges that are done (ADR 0037, J14 to J23, J35)."""

from __future__ import annotations

from collections import Counter

import pytest

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import LogSequence, TimestampMs, TopicId
from app.metadata.changes.broker_changes import (
    ProposedSet,
    alter_in_sync,
    fence_brokers,
    unfence_brokers,
    unregister_broker,
)
from app.metadata.changes.internal_topics import missing_replicas
from app.metadata.changes.leader_changes import elect_leaders, preferred_leaders_back
from app.metadata.changes.reassignments import ReassignmentAsked, alter_reassignments, list_reassignments
from app.metadata.changes.wal_changes import drop_ranges, plan_wal_sealed, release_partitions
from app.metadata.image.draft import ImageDraft
from app.metadata.image.records import TopicRecord, partition_change, topic_change
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalId, WalRange
from app.metadata.peers.control import ANYBODY, NOTHING_WRITTEN, DropAsked, ReleaseAsked
from app.metadata.replicas.elections import NOBODY
from app.metadata.replicas.replica_changes import ProposedReplica
from tests.metadata.leaders import telling
from tests.metadata.several import NOW, TOPIC_ID, applied, around, change, ids, in_logs, partition
from tests.metadata.support import uuid_of

WAL = WalId(1, 11)
"""Of broker 1."""


def orphaned(*leaders: int, fenced: tuple[int, ...] = (1,), **more: object) -> ImageDraft:
    """A cluster in which broker 1, and others, are fenced."""
    draft = in_logs(*leaders, **more)  # type: ignore[arg-type]
    applied(draft, fence_brokers(draft, around(), [(each, 10 + each) for each in fenced]))
    return draft


# --- the end of a log -------------------------------------------------------------------------------------------------


def test_j16_the_closing_change_closes_the_ranges_and_elects_in_one_entry() -> None:
    draft = orphaned(1, 2, 1, 1, brokers=[1, 2, 3])
    other = partition(draft, 1)
    made = applied(draft, plan_wal_sealed(draft, telling({WalId(3, 13): 30}), WAL, 5))
    assert (made.closed, made.without_leader, made.damaged, made.more) == (3, 0, (), False)
    after = [partition(draft, index) for index in (0, 2, 3)]
    assert [each.leader for each in after] == [3, 2, 3], "those with the fewest leaderships of this kind first"
    for each in after:
        assert (each.leader_epoch, each.partition_epoch) == (2, 2)
        assert each.replicas == each.isr == (each.leader,)
        first = 30 if each.leader == 3 else 0
        assert each.wal_ranges == (
            WalRange(1, 11, 0, 0, 4),
            WalRange(each.leader, 10 + each.leader, 2, first, OPEN),
        )
    assert partition(draft, 1) == other
    assert draft.brokers[1].wal_end == 5
    assert plan_wal_sealed(draft, telling(), WAL, 5).records == [], "planned again it changes nothing"


def test_j21_a_range_in_which_nothing_was_written_is_not_kept() -> None:
    draft = orphaned(1)
    applied(draft, plan_wal_sealed(draft, telling(), WAL, 0))
    assert partition(draft).wal_ranges == (WalRange(2, 12, 2, 0, OPEN),)


def test_j20_a_range_begins_above_earlier_ones_of_the_same_log() -> None:
    draft = orphaned(1, brokers=[1, 2], more=[WalRange(2, 12, 0, 3, 8)])
    applied(draft, plan_wal_sealed(draft, telling({WalId(2, 12): 5}), WAL, 0))
    assert partition(draft).wal_ranges == (WalRange(2, 12, 0, 3, 8), WalRange(2, 12, 2, 9, OPEN))


def test_j21_damage_takes_only_its_partition_offline() -> None:
    draft = orphaned(1, 1)
    lost = WalRange(1, 11, 0, 0, 6)
    before = change(draft, wal_ranges=(lost, *partition(draft).wal_ranges))
    made = applied(draft, plan_wal_sealed(draft, telling(), WAL, 6))
    [(key, why)] = made.damaged
    assert (key.topic_id, key.partition, made.closed) == (TOPIC_ID, 0, 1)
    assert "sealed at 6" in why
    assert "up to 6: the store has lost objects" in why
    assert partition(draft) == before
    assert partition(draft, 1).leader == 2
    applied(draft, unfence_brokers(draft, around(), [(1, 11, NOW)]))
    assert partition(draft) == before, "it stays without a leader"


def test_j23_a_partition_waits_for_a_broker_that_may_lead() -> None:
    draft = orphaned(1, 1, 1, brokers=[1, 2, 3], fenced=(1, 2, 3))
    made = applied(draft, plan_wal_sealed(draft, telling(), WAL, 5))
    assert (made.closed, made.without_leader) == (3, 3)
    image = partition(draft)
    assert (image.leader, image.leader_epoch, image.partition_epoch) == (NOBODY, 1, 2)
    assert image.wal_ranges == (WalRange(1, 11, 0, 0, 4),)
    applied(draft, unfence_brokers(draft, telling(), [(1, 11, NOW), (2, 12, NOW), (3, 13, NOW)]))
    assert Counter(partition(draft, index).leader for index in range(3)) == Counter({2: 2, 3: 1}), (
        "not 1: its log ended"
    )
    assert partition(draft).wal_ranges[-1] == WalRange(2, 12, 2, 0, OPEN)


def test_the_end_is_noted_for_the_broker_epoch_that_it_is_of() -> None:
    draft = orphaned(1)
    applied(draft, plan_wal_sealed(draft, telling(), WalId(1, 9), 5))
    assert draft.brokers[1].wal_end == -1, "an older log"
    applied(draft, unregister_broker(draft, around(), 1))
    assert applied(draft, plan_wal_sealed(draft, telling(), WAL, 5)).closed == 1
    assert 1 not in draft.brokers


def test_the_end_of_one_log_says_nothing_of_others() -> None:
    draft = orphaned(1, 2, fenced=(1, 2))
    before = partition(draft, 1)
    assert applied(draft, plan_wal_sealed(draft, telling(), WAL, 5)).closed == 1
    assert partition(draft, 1) == before
    assert partition(draft).leader == 3


def test_a_broker_that_stops_gets_no_leadership() -> None:
    draft = orphaned(1, brokers=[1, 2, 3], stopping=[2])
    applied(draft, plan_wal_sealed(draft, telling(), WAL, 0))
    assert partition(draft).leader == 3


def test_a_change_closes_a_bounded_number_of_partitions() -> None:
    draft = orphaned(1, 1, 1)
    made = applied(draft, plan_wal_sealed(draft, telling(), WAL, 5, at_most=2))
    assert (made.closed, made.more) == (2, True)
    made = applied(draft, plan_wal_sealed(draft, telling(), WAL, 5, at_most=2))
    assert (made.closed, made.more) == (1, False)


# --- releases ---------------------------------------------------------------------------------------------------------


def release(
    index: int = 0, *, leader_epoch: int = 0, partition_epoch: int = 0, last: int = 7, to: int = ANYBODY
) -> ReleaseAsked:
    return ReleaseAsked(TOPIC_ID, index, leader_epoch, partition_epoch, last, to)


def test_j18_a_release_closes_the_range_and_names_the_next_leader() -> None:
    draft = in_logs(1, 1, 1, 2, brokers=[1, 2, 3])
    asked = [release(0), release(1, last=NOTHING_WRITTEN), release(2, to=3), release(2), release(9)]
    answers = applied(draft, release_partitions(draft, telling(), 1, 11, asked))
    assert [one.error for one in answers] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert partition(draft).wal_ranges == (WalRange(1, 11, 0, 0, 7), WalRange(3, 13, 1, 0, OPEN))
    assert partition(draft, 1).wal_ranges == (WalRange(2, 12, 1, 0, OPEN),), "nothing was written"
    assert partition(draft, 2).leader == 3
    for index in range(3):
        image = partition(draft, index)
        assert (image.leader_epoch, image.partition_epoch, image.replicas) == (1, 1, (image.leader,))


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (release(leader_epoch=1), ErrorCode.FENCED_LEADER_EPOCH),
        (release(leader_epoch=3, partition_epoch=4), ErrorCode.NOT_CONTROLLER),
        (release(leader_epoch=2, partition_epoch=3), ErrorCode.INVALID_UPDATE_VERSION),
        (release(leader_epoch=2, partition_epoch=5), ErrorCode.NOT_CONTROLLER),
    ],
)
def test_j18_a_release_of_other_epochs_is_refused(asked: ReleaseAsked, code: ErrorCode) -> None:
    draft = in_logs(1)
    before = change(draft, leader_epoch=2, partition_epoch=4)
    planned = release_partitions(draft, telling(), 1, 11, [asked])
    assert (planned.records, [one.error for one in planned.answer]) == ([], [code])
    assert planned.answer[0].image == before


def test_j18_only_the_leader_releases_under_its_present_registration() -> None:
    draft = in_logs(1)
    [answer] = release_partitions(draft, telling(), 2, 12, [release()]).answer
    assert answer.error is ErrorCode.INVALID_REQUEST
    with pytest.raises(RequestRejected) as stale:
        release_partitions(draft, telling(), 1, 10, [release()])
    assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH
    change(draft, durability=PartitionDurability.REPLICAS, wal_ranges=())
    [answer] = release_partitions(draft, telling(), 1, 11, [release()]).answer
    assert "has no open range" in answer.why


def test_j18_a_leader_that_nobody_can_replace_hears_of_it_by_the_partition_epoch() -> None:
    draft = in_logs(1, brokers=[1, 2], fenced=[2])
    before = partition(draft)
    [answer] = applied(draft, release_partitions(draft, telling(), 1, 11, [release()]))
    assert answer.error is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert partition(draft) == before._replace(partition_epoch=1)


def test_a_broker_that_stops_releases_to_others() -> None:
    draft = in_logs(1, brokers=[1, 2], stopping=[1])
    applied(draft, release_partitions(draft, telling(), 1, 11, [release(to=1)]))
    assert partition(draft).leader == 2


# --- ranges that are done ---------------------------------------------------------------------------------------------


def test_j35_closed_ranges_leave_the_record_when_the_leader_says_so() -> None:
    first, second = WalRange(3, 9, 0, 2, 5), WalRange(1, 11, 0, 0, 4)
    draft = in_logs(1, 2, more=[first, second])
    opened = partition(draft).wal_ranges[-1]

    def drop(index: int, *ranges: WalRange, leader_epoch: int = 0, partition_epoch: int = 0) -> DropAsked:
        return DropAsked(TOPIC_ID, index, leader_epoch, partition_epoch, ranges)

    asked = [drop(0, first, opened), drop(1, first), drop(0, second)]
    answers = applied(draft, drop_ranges(draft, 1, 11, asked))
    assert [one.error for one in answers] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_UPDATE_VERSION,
    ]
    image = partition(draft)
    assert (image.wal_ranges, image.leader_epoch, image.partition_epoch) == ((second, opened), 0, 1)
    assert len(partition(draft, 1).wal_ranges) == 3
    [answer] = drop_ranges(draft, 1, 11, [drop(0, second, partition_epoch=1)._replace(topic_id=uuid_of(5))]).answer
    assert answer.error is ErrorCode.UNKNOWN_TOPIC_ID
    applied(draft, drop_ranges(draft, 1, 11, [drop(0, second, partition_epoch=1)]))
    assert partition(draft).wal_ranges == (opened,)
    assert ids(1) == partition(draft).replicas


# --- what operators ask for -------------------------------------------------------------------------------------------


def elect(draft: ImageDraft, *, unclean: bool = False, everything: bool = False) -> list[ErrorCode]:
    asked = None if everything else [("t", 0)]
    return [one.error for one in applied(draft, elect_leaders(draft, telling(), asked, unclean=unclean)).elections]


@pytest.mark.parametrize("unclean", [False, True])
def test_j16_no_election_on_request_before_the_log_has_ended(unclean: bool) -> None:
    draft = in_logs(1, 2)
    assert elect(draft, unclean=unclean) == [ErrorCode.ELECTION_NOT_NEEDED]
    draft = orphaned(1, 2)
    before = partition(draft)
    assert elect(draft, unclean=unclean) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    assert elect(draft, unclean=unclean, everything=True) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    assert partition(draft) == before
    assert preferred_leaders_back(draft, telling(), draft.brokers.keys(), 9).records == []
    before = change(draft, wal_ranges=(WalRange(1, 11, 0, 0, 4),))
    assert elect(draft, unclean=unclean) == [ErrorCode.NONE]
    assert partition(draft).leader == 3
    assert partition(draft).leader_epoch == before.leader_epoch + 1


def reassign(draft: ImageDraft, *targets: int, cancel: bool = False) -> ErrorCode:
    asked = ReassignmentAsked("t", 0, None if cancel else targets)
    [answer] = applied(draft, alter_reassignments(draft, around(), [asked])).answers
    return answer.error


def test_a_reassignment_names_the_next_leader_and_waits_for_the_release() -> None:
    draft = in_logs(1, brokers=[1, 2, 3, 4], fenced=[4])
    assert reassign(draft, 4) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(draft) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(draft, 3, 3) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(draft, 9) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(draft, 3, 1, 2) is ErrorCode.NONE
    image = partition(draft)
    assert (image.leader, image.leader_epoch, image.replicas) == (1, 0, ids(1))
    assert (image.adding, image.removing, image.partition_epoch) == (ids(3), ids(1), 1)
    assert [one.adding for one in list_reassignments(draft.freeze(LogSequence(NOW)))] == [ids(3)]
    draft = ImageDraft(draft.freeze(LogSequence(NOW)))
    assert reassign(draft, cancel=True) is ErrorCode.NONE
    assert (partition(draft).adding, partition(draft).removing) == ((), ())
    assert reassign(draft, cancel=True) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(draft, 1) is ErrorCode.NONE
    assert partition(draft).partition_epoch == 2, "it leads already"
    assert reassign(draft, 3) is ErrorCode.NONE
    applied(draft, release_partitions(draft, telling(), 1, 11, [release(partition_epoch=3)]))
    image = partition(draft)
    assert (image.leader, image.replicas, image.adding, image.removing) == (3, ids(3), (), ())


def test_a_reassignment_decides_who_leads_after_the_end_of_the_log() -> None:
    draft = in_logs(1, 3, 3, brokers=[1, 2, 3])
    assert reassign(draft, 3) is ErrorCode.NONE
    applied(draft, fence_brokers(draft, around(), [(1, 11)]))
    applied(draft, plan_wal_sealed(draft, telling(), WAL, 2))
    image = partition(draft)
    assert (image.leader, image.adding, image.removing) == (3, (), ())


def test_internal_topics_in_logs_get_no_replicas() -> None:
    draft = in_logs(1)
    offsets = TopicRecord(1, "__consumer_offsets", 1, {}, TimestampMs(0))
    key = TopicId(uuid_of(77))
    draft.apply([topic_change(key, offsets), partition_change(key, 0, partition(draft).record())])
    image = draft.freeze(LogSequence(NOW))
    assert missing_replicas(image, BrokerConfig(), ids(1, 2, 3)) == []


def test_the_leader_of_a_partition_may_not_change_its_in_sync_set_to_others() -> None:
    draft = in_logs(1, brokers=[1, 2], stopping=[1])
    asked = ProposedSet(TOPIC_ID, 0, 0, 0, [ProposedReplica(1, 11)])
    [answer] = applied(draft, alter_in_sync(draft, around(), 1, 11, [asked])).copy()
    assert (answer.error, partition(draft).leader, partition(draft).partition_epoch) == (ErrorCode.NONE, 1, 1)
