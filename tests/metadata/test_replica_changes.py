"""What events of brokers do to one partition: the rules R5 and R9, M2, M3, M6 and M13, and the elections that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TimestampMs, TopicId
from app.metadata.image.image import BrokerImage, PartitionImage, TopicImage
from app.metadata.replicas.elections import NOBODY
from app.metadata.replicas.replica_changes import (
    ProposedReplica,
    Terms,
    altered,
    clear_eligible,
    effective_min_in_sync,
    fenced,
    lost,
    min_in_sync_changed,
    registered,
    stopping,
    unfenced,
)
from tests.metadata.support import uuid_of

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


def partition(
    leader: int = A,
    isr: tuple[BrokerId, ...] = (A, B, C),
    *,
    replicas: tuple[BrokerId, ...] = (A, B, C),
    eligible: tuple[BrokerId, ...] = (),
    last_known: tuple[BrokerId, ...] = (),
    recovering: bool = False,
) -> PartitionImage:
    return PartitionImage(
        PartitionIndex(0),
        BrokerId(leader),
        LeaderEpoch(4),
        9,
        replicas,
        isr,
        eligible,
        last_known,
        recovering=recovering,
    )


def terms(*active: int, stop: tuple[int, ...] = (), min_in_sync: int = 1, unclean: bool = False) -> Terms:
    return Terms(frozenset(active).__contains__, frozenset((*active, *stop)).__contains__, min_in_sync, unclean)


def broker(broker_id: int, epoch: int = 50) -> BrokerImage:
    return BrokerImage(BrokerId(broker_id), uuid_of(1), uuid_of(2), epoch, (), None, TimestampMs(0))


THREE: Mapping[int, BrokerImage] = {each: broker(each, 50 + each) for each in (A, B, C)}


def members(*brokers: int) -> list[ProposedReplica]:
    return [ProposedReplica(each, 50 + each) for each in brokers]


def alter(
    before: PartitionImage,
    named: list[ProposedReplica],
    *,
    leader: int = A,
    leader_epoch: int = 4,
    partition_epoch: int = 9,
    brokers: Mapping[int, BrokerImage] = THREE,
    min_in_sync: int = 1,
    recovering: bool = False,
) -> PartitionImage:
    active = [each for each, image in brokers.items() if image.active]
    stop = tuple(each for each, image in brokers.items() if image.stopping)
    on = terms(*active, stop=stop, min_in_sync=min_in_sync)
    return altered(before, leader, leader_epoch, partition_epoch, named, brokers, on, recovering=recovering)


@pytest.mark.parametrize(("asked", "replicas", "effective"), [(2, 3, 2), (2, 1, 1), (1, 3, 1), (3, 3, 3), (0, 3, 1)])
def test_r2_a_set_need_not_be_larger_than_there_are_replicas(asked: int, replicas: int, effective: int) -> None:
    assert effective_min_in_sync(asked, replicas) == effective


# --- fencing --------------------------------------------------------------------------------------------------------


def test_m6_a_fenced_leader_leaves_the_set_and_the_next_replica_leads() -> None:
    after = fenced(partition(), {A}, terms(B, C))
    assert (after.leader, after.isr, after.eligible) == (B, (B, C), ())
    assert after[2:4] == (5, 10)


def test_m6_a_fenced_follower_leaves_the_set_and_the_leader_epoch_stays() -> None:
    after = fenced(partition(), {B}, terms(A, C))
    assert (after.leader, after.isr, after[2:4]) == (A, (A, C), (4, 10))


def test_a_broker_in_no_set_changes_nothing() -> None:
    before = partition(isr=(A, B), eligible=())
    assert fenced(before, {C}, terms(A, B)) is before


def test_r9_who_leaves_a_set_smaller_than_min_isr_is_eligible() -> None:
    two = fenced(partition(), {C}, terms(A, B, min_in_sync=2))
    assert (two.isr, two.eligible) == ((A, B), ())
    one = fenced(two, {B}, terms(A, min_in_sync=2))
    assert (one.isr, one.eligible) == ((A,), (B,))
    none = fenced(one, {A}, terms(min_in_sync=2))
    assert (none.leader, none.isr, none.eligible, none.last_known_eligible) == (NOBODY, (), (A, B), ())


def test_r9_the_last_member_is_eligible_also_with_a_min_isr_of_one() -> None:
    after = fenced(partition(isr=(A,)), {A}, terms(B, C))
    assert (after.leader, after.isr, after.eligible) == (NOBODY, (), (A,))


def test_brokers_that_are_fenced_together_cost_one_leader_epoch() -> None:
    after = fenced(partition(), {A, B}, terms(C, min_in_sync=2))
    assert (after.leader, after.isr, after.eligible, after[2:4]) == (C, (C,), (A, B), (5, 10))


def test_r9_an_eligible_leader_alone_reaches_a_min_isr_of_one_and_clears_the_others() -> None:
    before = partition(NOBODY, isr=(), eligible=(A, B))
    assert unfenced(before, terms(A)).eligible == ()
    assert unfenced(before, terms(A, min_in_sync=2)).eligible == (B,)


def test_e3_fencing_the_last_member_elects_uncleanly_where_that_is_allowed() -> None:
    after = fenced(partition(isr=(A,)), {A}, terms(B, C, unclean=True))
    assert (after.leader, after.isr, after.eligible, after.recovering) == (B, (B,), (), True)


def test_e3_who_was_eligible_before_an_unclean_election_is_so_no_more() -> None:
    after = fenced(partition(isr=(A,)), {A}, terms(B, C, min_in_sync=3, unclean=True))
    assert (after.isr, after.eligible) == ((B,), ())


# --- registrations --------------------------------------------------------------------------------------------------


def test_m2_a_registration_ends_the_leadership_also_if_everything_was_kept() -> None:
    alone = partition(isr=(A,), replicas=(A,))
    after = registered(alone, A, terms(), kept=True, new_directory=False)
    assert (after.leader, after.isr, after.eligible, after[2:4]) == (NOBODY, (), (A,), (5, 10))
    again = unfenced(after, terms(A))
    assert (again.leader, again.isr, again.eligible, again[2:4]) == (A, (A,), (), (6, 11))


def test_m2_another_leads_after_a_registration_of_the_leader() -> None:
    after = registered(partition(), A, terms(B, C, min_in_sync=3), kept=True, new_directory=False)
    assert (after.leader, after.isr, after.eligible, after[2:4]) == (B, (B, C), (A,), (5, 10))


def test_m3_who_lost_records_is_in_neither_set() -> None:
    leader = lost(partition(), A, terms(B, C, min_in_sync=3), new_directory=False)
    assert (leader.leader, leader.isr, leader.eligible) == (B, (B, C), ())
    eligible = lost(partition(isr=(A,), eligible=(B,)), B, terms(A, min_in_sync=2), new_directory=False)
    assert (eligible.leader, eligible.isr, eligible.eligible, eligible[2:4]) == (A, (A,), (), (4, 10))


def test_m3_the_only_member_becomes_the_last_known_one() -> None:
    after = lost(partition(isr=(A,)), A, terms(B, C, min_in_sync=2), new_directory=False)
    assert (after.leader, after.isr, after.eligible, after.last_known_eligible) == (NOBODY, (), (), (A,))
    only_eligible = lost(partition(NOBODY, isr=(), eligible=(B,)), B, terms(A, C), new_directory=False)
    assert only_eligible.last_known_eligible == (B,)
    assert unfenced(only_eligible, terms(A, B, C)).leader == B


def test_m3_it_is_not_last_known_while_another_is_eligible() -> None:
    after = lost(partition(NOBODY, isr=(), eligible=(A, B)), A, terms(min_in_sync=2), new_directory=False)
    assert (after.eligible, after.last_known_eligible) == ((B,), ())


def test_m3_a_new_directory_is_not_last_known() -> None:
    after = lost(partition(isr=(A,)), A, terms(), new_directory=True)
    assert after.last_known_eligible == ()
    known = lost(partition(NOBODY, isr=(), last_known=(A,)), A, terms(), new_directory=True)
    assert (known.last_known_eligible, known[2:4]) == ((), (4, 10))


def test_m3_another_stays_last_known() -> None:
    before = partition(NOBODY, isr=(), last_known=(A,))
    assert lost(before, B, terms(C), new_directory=False) is before
    assert lost(before, A, terms(C), new_directory=False) is before


def test_m3_a_single_replica_goes_on_with_a_new_directory() -> None:
    after = lost(partition(isr=(A,), replicas=(A,)), A, terms(), new_directory=True)
    assert (after.leader, after.last_known_eligible) == (NOBODY, (A,))
    again = unfenced(after, terms(A))
    assert (again.leader, again.isr, again.recovering) == (A, (A,), False)


def test_a_registration_does_not_touch_partitions_of_others() -> None:
    before = partition(replicas=(A, B), isr=(A, B))
    assert registered(before, C, terms(A, B), kept=False, new_directory=True) is before


def test_a_broker_that_is_unfenced_leads_only_where_nobody_does() -> None:
    before = partition(B, isr=(B, C))
    assert unfenced(before, terms(A, B, C)) is before


# --- stopping -------------------------------------------------------------------------------------------------------


def test_m13_a_leader_that_stops_gives_the_leadership_away_and_leaves_the_set() -> None:
    after = stopping(partition(), A, terms(B, C, stop=(A,), min_in_sync=3))
    assert (after.leader, after.isr, after.eligible, after[2:4]) == (B, (B, C), (A,), (5, 10))


def test_m13_a_follower_that_stops_leaves_the_set() -> None:
    after = stopping(partition(), B, terms(A, C, stop=(B,)))
    assert (after.leader, after.isr, after[2:4]) == (A, (A, C), (4, 10))


@pytest.mark.parametrize("unclean", [False, True])
def test_m13_a_partition_that_nobody_else_can_lead_stays(unclean: bool) -> None:
    before = partition(isr=(A,))
    assert stopping(before, A, terms(B, C, stop=(A,), unclean=unclean)) is before


def test_m13_two_that_stop_do_not_leave_the_partition_without_a_leader() -> None:
    before = partition(isr=(A, B))
    assert stopping(before, A, terms(stop=(A, B))) is before


def test_m13_an_eligible_replica_leads_before_one_that_stops() -> None:
    after = stopping(partition(isr=(A,), eligible=(B,)), A, terms(B, stop=(A,), min_in_sync=2))
    assert (after.leader, after.isr, after.eligible) == (B, (B,), (A,))


def test_m13_a_leader_that_stops_leads_on_when_another_broker_is_fenced() -> None:
    after = fenced(partition(isr=(A, C)), {C}, terms(stop=(A,)))
    assert (after.leader, after.isr, after[2:4]) == (A, (A,), (4, 10))


# --- min.insync.replicas --------------------------------------------------------------------------------------------


def test_r9_a_change_of_min_isr_clears_the_eligible_ones() -> None:
    before = partition(isr=(A,), eligible=(B,))
    after = min_in_sync_changed(before)
    assert (after.eligible, after.isr, after[2:4]) == ((), (A,), (4, 10))
    assert min_in_sync_changed(after) is after


def test_r9_without_a_set_the_eligible_ones_stay_because_nothing_can_be_committed() -> None:
    before = partition(NOBODY, isr=(), eligible=(B,))
    assert min_in_sync_changed(before) is before


def test_r9_records_are_written_for_partitions_that_change() -> None:
    changing = partition(isr=(A,), eligible=(B,))
    topic = TopicImage(TopicId(uuid_of(7)), "t", (partition(), changing), {}, TimestampMs(0))
    assert len(clear_eligible([topic])) == 1


# --- AlterPartition -------------------------------------------------------------------------------------------------


def test_r5_a_proposal_becomes_the_set_in_the_order_of_replicas() -> None:
    after = alter(partition(isr=(A,)), members(C, A, B))
    assert (after.leader, after.isr, after[2:4]) == (A, (A, B, C), (4, 10))


@pytest.mark.parametrize(
    ("named", "epochs", "leader", "code"),
    [
        (members(A, B), (3, 9), A, ErrorCode.FENCED_LEADER_EPOCH),
        (members(A, B), (4, 8), A, ErrorCode.INVALID_UPDATE_VERSION),
        (members(A, B), (5, 9), A, ErrorCode.NOT_CONTROLLER),
        (members(A, B), (4, 10), A, ErrorCode.NOT_CONTROLLER),
        (members(A, B), (4, 9), B, ErrorCode.INVALID_REQUEST),
        (members(B, C), (4, 9), A, ErrorCode.INVALID_REQUEST),
        ([], (4, 9), A, ErrorCode.INVALID_REQUEST),
        (members(A, A), (4, 9), A, ErrorCode.INVALID_REQUEST),
        (members(A, 4), (4, 9), A, ErrorCode.INVALID_REQUEST),
        ([ProposedReplica(A, 51), ProposedReplica(B, 51)], (4, 9), A, ErrorCode.INELIGIBLE_REPLICA),
        ([ProposedReplica(A, 51), ProposedReplica(B, -1)], (4, 9), A, ErrorCode.INELIGIBLE_REPLICA),
        ([ProposedReplica(A, 50), ProposedReplica(B, 52)], (4, 9), A, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_r5_a_proposal_of_another_time_or_with_other_members_is_refused(
    named: list[ProposedReplica], epochs: tuple[int, int], leader: int, code: ErrorCode
) -> None:
    with pytest.raises(RequestRejected) as refused:
        alter(partition(), named, leader=leader, leader_epoch=epochs[0], partition_epoch=epochs[1])
    assert refused.value.code is code


@pytest.mark.parametrize("state", ["fenced", "stopping", "absent"])
def test_r5_members_that_are_not_active_are_refused(state: str) -> None:
    brokers = dict(THREE)
    if state == "absent":
        del brokers[B]
    else:
        brokers[B] = replace(THREE[B], fenced=state == "fenced", stopping=state == "stopping")
    with pytest.raises(RequestRejected) as refused:
        alter(partition(isr=(A,)), members(A, B), brokers=brokers)
    assert refused.value.code is ErrorCode.INELIGIBLE_REPLICA


def test_r9_a_proposal_below_min_isr_makes_eligible_and_one_that_reaches_it_clears() -> None:
    shrunk = alter(partition(), members(A), min_in_sync=2)
    assert (shrunk.isr, shrunk.eligible) == ((A,), (B, C))
    grown = alter(shrunk, members(A, B), partition_epoch=10, min_in_sync=3)
    assert (grown.isr, grown.eligible) == ((A, B), (C,))
    full = alter(shrunk, members(A, C), partition_epoch=10, min_in_sync=2)
    assert (full.isr, full.eligible) == ((A, C), ())


def test_r4_an_accepted_proposal_of_the_present_set_raises_the_partition_epoch() -> None:
    before = partition(isr=(C, A))
    after = alter(before, members(A, C))
    assert after == before._replace(partition_epoch=10)


def test_e3_a_recovering_leader_is_alone_until_it_says_that_it_recovered() -> None:
    before = partition(isr=(A,), recovering=True)
    assert alter(before, members(A), recovering=True).recovering
    after = alter(before, members(A, B))
    assert (after.isr, after.recovering) == ((A, B), False)
    for wrong, named in ((before, members(A, B)), (partition(isr=(A,)), members(A))):
        with pytest.raises(RequestRejected) as refused:
            alter(wrong, named, recovering=True)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_m13_a_leader_that_stops_may_let_another_in_which_then_leads() -> None:
    brokers = {**THREE, A: replace(THREE[A], stopping=True)}
    after = alter(partition(isr=(A,)), members(A, B), brokers=brokers)
    assert (after.leader, after.isr, after[2:4]) == (B, (A, B), (5, 10))


def test_a_reassignment_that_completes_may_take_the_leader_away() -> None:
    before = partition(isr=(A, B))._replace(adding=(C,), removing=(A,))

    def completed(image: PartitionImage) -> PartitionImage:
        assert image.isr == (A, B, C)
        return image._replace(replicas=(C, B), isr=(B, C), adding=(), removing=())

    after = altered(before, A, 4, 9, members(A, B, C), THREE, terms(A, B, C), after=completed)
    assert (after.leader, after.replicas, after.isr, after.eligible) == (C, (C, B), (B, C), ())
    assert after[2:4] == (5, 10)
