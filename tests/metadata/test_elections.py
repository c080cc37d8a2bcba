"""Elections: the rules E1 to E5 of ADR 0024, one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.core.units import BrokerId, LeaderEpoch, PartitionIndex
from app.metadata.image.image import PartitionImage
from app.metadata.replicas.elections import NOBODY, elect, preferred, stamped, was_unclean

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


def of(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(each) for each in brokers)


def active(*brokers: int) -> Callable[[BrokerId], bool]:
    return frozenset(brokers).__contains__


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


def test_e1_a_leader_that_is_alive_and_in_sync_stays_though_another_is_first() -> None:
    before = partition(leader=C)
    assert elect(before, active(A, B, C)) == (before, False)
    assert elect(before, active(A, B, C)).partition is before


def test_e1_the_leader_comes_from_the_set_in_the_order_of_replicas() -> None:
    before = partition(leader=C, isr=(C, B, A), replicas=(C, A, B))
    after, unclean = elect(before, active(A, B))
    assert (after.leader, after.isr, unclean) == (A, (C, B, A), False)


def test_e1_without_the_set_an_eligible_replica_leads_and_is_the_set() -> None:
    before = partition(NOBODY, isr=(), eligible=(A, B))
    after, unclean = elect(before, active(B, C), unclean=True)
    assert (after.leader, after.isr, after.eligible, unclean, after.recovering) == (B, (B,), (A,), False, False)


def test_e1_nobody_leads_if_nobody_in_a_set_lives() -> None:
    after, _ = elect(partition(A, isr=(A,), eligible=(B,)), active(C))
    assert (after.leader, after.isr, after.eligible) == (NOBODY, (A,), (B,))


def test_e1_a_leader_outside_the_set_does_not_stay() -> None:
    assert elect(partition(A, isr=(B,)), active(A, B)).partition.leader == B


@pytest.mark.parametrize("alive", [(B,), ()])
def test_e2_every_change_of_leader_raises_both_epochs_also_to_nobody(alive: tuple[int, ...]) -> None:
    before = partition()
    after, _ = elect(before, active(*alive))
    assert (after.leader_epoch, after.partition_epoch) == (5, 10)
    again, _ = elect(after, active(*alive))
    assert again is after


def test_e2_an_epoch_that_was_raised_stays_raised_and_rises_by_one_only() -> None:
    before = partition()
    assert stamped(before, before._replace(leader_epoch=LeaderEpoch(6), partition_epoch=12))[2:4] == (5, 10)
    assert stamped(before, before._replace(isr=(A,)))[2:4] == (4, 10)
    assert stamped(before, before._replace(partition_epoch=12)) is before


def test_e3_an_unclean_leader_is_alone_in_sync_and_recovers() -> None:
    before = partition(NOBODY, isr=(), eligible=(A,), last_known=())
    assert elect(before, active(B, C)) == (before, False)
    after, unclean = elect(before, active(B, C), unclean=True)
    assert (after.leader, after.isr, after.eligible, after.recovering, unclean) == (B, (B,), (), True, True)
    assert after.unclean_epoch == after.leader_epoch == before.leader_epoch + 1
    assert was_unclean(before, after)


def test_e3_the_epoch_of_the_last_unclean_election_stays_for_good() -> None:
    after, _ = elect(partition(NOBODY, isr=()), active(B), unclean=True)
    again, _ = elect(after._replace(leader=NOBODY, recovering=False, isr=(B, A)), active(A))
    assert (again.leader, again.unclean_epoch) == (A, after.unclean_epoch)


def test_e3_an_unclean_election_in_a_change_of_more_is_of_the_epoch_of_that_change() -> None:
    before = partition(isr=())
    raised = before._replace(leader_epoch=LeaderEpoch(before.leader_epoch + 1))
    after = stamped(before, elect(raised, active(B), unclean=True).partition)
    assert after.unclean_epoch == after.leader_epoch == before.leader_epoch + 1


def test_e3_nobody_leads_if_no_replica_lives_also_uncleanly() -> None:
    assert elect(partition(), active(), unclean=True).partition.leader == NOBODY


def test_e4_the_last_known_replica_leads_once_it_lives_and_recovers() -> None:
    before = partition(NOBODY, isr=(), last_known=(B,))
    assert elect(before, active(A, C)).partition is before
    after, unclean = elect(before, active(A, B, C))
    assert (after.leader, after.isr, after.last_known_eligible, after.recovering, unclean) == (B, (B,), (), True, True)
    assert was_unclean(before, after)


def test_e4_a_single_replica_is_not_elected_uncleanly() -> None:
    before = partition(NOBODY, isr=(), replicas=(A,), last_known=(A,))
    after, unclean = elect(before, active(A))
    assert (after.leader, after.isr, after.recovering, unclean) == (A, (A,), False, False)
    assert not was_unclean(before, after)


@pytest.mark.parametrize(("isr", "eligible", "last_known"), [((C,), (), (B,)), ((), (C,), (B,)), ((), (), (A, B))])
def test_e4_needs_two_empty_sets_and_one_last_known(
    isr: tuple[BrokerId, ...], eligible: tuple[BrokerId, ...], last_known: tuple[BrokerId, ...]
) -> None:
    before = partition(NOBODY, isr=isr, eligible=eligible, last_known=last_known)
    assert elect(before, active(A, B)).partition is before


def test_e3_a_recovering_leader_that_is_elected_again_still_recovers() -> None:
    before = partition(NOBODY, isr=(), eligible=(B,), recovering=True)
    after, unclean = elect(before, active(B))
    assert (after.leader, after.recovering, unclean) == (B, True, False)
    assert not was_unclean(before, after)


def test_m13_a_leader_that_stops_goes_after_everybody_who_loses_nothing() -> None:
    both = partition(A, isr=(A, B))
    assert elect(both, active(A, B), prefer_other_than=A).partition.leader == B
    alone = partition(A, isr=(A,), eligible=(C,))
    assert elect(alone, active(B, C), prefer_other_than=A).partition.leader == C
    assert elect(alone, active(B), prefer_other_than=A, unclean=True).partition is alone


def test_e5_the_first_replica_leads_again_once_it_is_in_sync() -> None:
    before = partition(leader=B)
    after = preferred(before, active(A, B))
    assert (after.leader, after.isr, after[2:4]) == (A, before.isr, (5, 10))
    assert preferred(after, active(A, B)) is after
    assert preferred(before, active(B)) is before
    out_of_sync = partition(leader=B, isr=(B, C))
    assert preferred(out_of_sync, active(A, B, C)) is out_of_sync


def test_e5_the_leaderships_of_a_dead_broker_spread_over_the_survivors() -> None:
    orders = [(A, B, C), (A, C, B)] * 5
    leaders = [elect(partition(isr=each, replicas=each), active(B, C)).partition.leader for each in orders]
    assert (leaders.count(B), leaders.count(C)) == (5, 5)
