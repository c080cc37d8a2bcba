"""Partitions change between replicas and write-ahead logs (ADR 0037, J40 to J42)."""

from __future__ import annotations

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.metadata.changes.broker_changes import ProposedSet, alter_in_sync, fence_brokers, unfence_brokers
from app.metadata.changes.reassignments import ReassignmentAsked, alter_reassignments
from app.metadata.changes.topic_changes import ConfigChange, alter_configs, create_partitions, replace_configs
from app.metadata.changes.wal_changes import plan_wal_sealed, switch_partitions
from app.metadata.image.draft import ImageDraft
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalId, WalRange
from app.metadata.peers.control import SwitchAsked
from app.metadata.replicas.replica_changes import ProposedReplica
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.metadata.leaders import telling
from tests.metadata.several import NOW, TOPIC_ID, applied, around, change, ids, in_logs, partition, several

DURABILITY = "firn.durability"


def alter(draft: ImageDraft, value: str | None, **more: str) -> None:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    changes = [ConfigChange(DURABILITY, operation, value)]
    changes += [ConfigChange(name.replace("_", "."), ConfigOperation.SET, text) for name, text in more.items()]
    applied(
        draft,
        alter_configs(draft, telling(), resource_type=ConfigResourceType.TOPIC, resource_name="t", changes=changes),
    )


def switch(draft: ImageDraft, broker_id: int = 1, *, first: int = 4, last: int = 6, index: int = 0) -> ErrorCode:
    image = partition(draft, index)
    asked = SwitchAsked(TOPIC_ID, index, image.leader_epoch, image.partition_epoch, first, last)
    [answer] = applied(draft, switch_partitions(draft, telling(), broker_id, 10 + broker_id, [asked]))
    return answer.error


def propose(draft: ImageDraft, *members: int) -> ErrorCode:
    image = partition(draft)
    named = [ProposedReplica(each, draft.brokers[each].broker_epoch) for each in members]
    asked = ProposedSet(TOPIC_ID, 0, image.leader_epoch, image.partition_epoch, named)
    leader = draft.brokers[image.leader]
    [answer] = applied(draft, alter_in_sync(draft, around(), leader.broker_id, leader.broker_epoch, [asked]))
    return answer.error


def to_object(**more: object) -> ImageDraft:
    draft = several([1, 2, 3], [2, 3, 1], level=3, **more)  # type: ignore[arg-type]
    alter(draft, "object")
    return draft


# --- to the log -------------------------------------------------------------------------------------------------------


def test_j40_the_first_entry_says_only_that_the_change_has_begun() -> None:
    before = partition(several([1, 2, 3], level=3))
    draft = to_object()
    assert partition(draft) == before._replace(durability=PartitionDurability.TO_OBJECT, partition_epoch=1)
    topic = draft.topic("t")
    assert topic is not None
    assert (topic.configs, topic.replication_factor) == ({DURABILITY: "object"}, 3)
    with pytest.raises(RequestRejected, match="it is 2: run"):
        alter(several([1], level=2), "object")
    with pytest.raises(RequestRejected, match="The topic must be tiered"):
        alter(several([1], level=3), "object", cleanup_policy="compact", remote_storage_enable="false")


def test_j40_the_second_entry_switches_the_rule_and_opens_the_range() -> None:
    draft = to_object()
    other = partition(draft, 1)
    assert switch(draft) is ErrorCode.NONE
    image = partition(draft)
    assert (image.durability, image.leader, image.leader_epoch, image.partition_epoch) == (
        PartitionDurability.OBJECT,
        1,
        1,
        2,
    )
    assert image.replicas == image.isr == ids(1)
    assert image.wal_ranges == (WalRange(1, 11, 0, 4, 6), WalRange(1, 11, 1, 7, OPEN))
    assert partition(draft, 1) == other
    assert switch(draft) is ErrorCode.INVALID_REQUEST, "it is switched"
    assert switch(draft, 2, first=3, last=2, index=1) is ErrorCode.NONE
    assert partition(draft, 1).wal_ranges == (WalRange(2, 12, 1, 3, OPEN),), "nothing was written"


def test_j40_ranges_of_an_earlier_time_in_the_log_are_done() -> None:
    draft = to_object()
    change(draft, wal_ranges=(WalRange(3, 9, 0, 2, 5),))
    assert switch(draft, first=4, last=3) is ErrorCode.NONE
    assert partition(draft).wal_ranges == (WalRange(1, 11, 1, 4, OPEN),)


def test_j40_only_a_leader_that_may_go_on_switches() -> None:
    draft = to_object()
    image = partition(draft)
    for broker_id, epochs in ((2, (0, 1)), (1, (0, 0)), (1, (1, 1))):
        asked = SwitchAsked(TOPIC_ID, 0, *epochs, 4, 6)
        [answer] = switch_partitions(draft, telling(), broker_id, 10 + broker_id, [asked]).answer
        assert answer.error not in (ErrorCode.NONE, None)
    assert switch(draft, first=-1) is ErrorCode.INVALID_REQUEST
    change(draft, recovering=True)
    assert switch(draft) is ErrorCode.INVALID_REQUEST
    assert switch(to_object(stopping=[1])) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert image.durability is PartitionDurability.TO_OBJECT


def test_j42_a_partition_on_its_way_to_the_log_fails_over_by_its_replicas() -> None:
    draft = to_object()
    applied(draft, fence_brokers(draft, around(), [(1, 11)]))
    image = partition(draft)
    assert (image.leader, image.isr, image.durability) == (2, ids(2, 3), PartitionDurability.TO_OBJECT)
    assert applied(draft, unfence_brokers(draft, around(), [(1, 11, NOW)])).brokers == ids(1), "no range waits"
    assert switch(draft, 2) is ErrorCode.NONE
    assert partition(draft).wal_ranges[0] == WalRange(2, 12, 1, 4, 6)


def test_a_change_that_was_not_switched_is_taken_back_at_once() -> None:
    draft = to_object()
    alter(draft, None)
    assert partition(draft).durability is PartitionDurability.REPLICAS
    assert partition(draft).replicas == ids(1, 2, 3)
    assert switch(draft) is ErrorCode.INVALID_REQUEST


def test_new_partitions_of_a_topic_on_its_way_are_in_the_log() -> None:
    draft = to_object()
    grown = applied(draft, create_partitions(draft, telling(), name="t", count=3, assignments=None))
    assert grown.partitions[2].durability is PartitionDurability.OBJECT
    assert len(grown.partitions[2].replicas) == 1


# --- from the log -----------------------------------------------------------------------------------------------------


def from_object(factor: int = 3, **more: object) -> ImageDraft:
    draft = to_object(**more)
    assert switch(draft) is switch(draft, 2, index=1) is ErrorCode.NONE
    alter(draft, "memory")
    return draft


def test_j41_the_first_entry_lets_replicas_fetch() -> None:
    draft = from_object()
    for index, leader in enumerate(ids(1, 2)):
        image = partition(draft, index)
        assert image.durability is PartitionDurability.FROM_OBJECT
        assert (image.leader, image.isr, image.replicas[0], len(image.replicas)) == (leader, (leader,), leader, 3)
        assert len(set(image.replicas)) == 3
        assert image.wal_ranges[-1].is_open
        assert (image.leader_epoch, image.partition_epoch) == (1, 3)
    with pytest.raises(RequestRejected, match="still on its way from object durability"):
        alter(draft, "object")
    asked = [ReassignmentAsked("t", 0, ids(1))]
    [answer] = alter_reassignments(draft, around(), asked).answer.answers
    assert answer.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_j41_the_second_entry_waits_for_replicas_in_sync_and_closes_the_range() -> None:
    draft = from_object(min_insync_replicas="2")
    assert switch(draft, last=9) is ErrorCode.INELIGIBLE_REPLICA
    other = partition(draft).replicas[1]
    assert propose(draft, 1, other) is ErrorCode.NONE
    assert switch(draft, last=9) is ErrorCode.NONE
    image = partition(draft)
    assert (image.durability, image.leader, image.leader_epoch) == (PartitionDurability.REPLICAS, 1, 2)
    assert (image.isr, len(image.replicas)) == (ids(1, int(other)), 3)
    assert image.wal_ranges == (WalRange(1, 11, 0, 4, 6), WalRange(1, 11, 1, 7, 9))
    # From here on it fails over by its replicas, and no log is to end for it.
    applied(draft, fence_brokers(draft, around(), [(1, 11)]))
    assert partition(draft).leader == other
    assert plan_wal_sealed(draft, telling(), WalId(1, 11), 12).answer.closed == 0


def test_j42_a_partition_on_its_way_from_the_log_fails_over_by_the_log() -> None:
    draft = from_object()
    other = partition(draft).replicas[1]
    assert propose(draft, 1, other) is ErrorCode.NONE
    applied(draft, fence_brokers(draft, around(), [(1, 11)]))
    image = partition(draft)
    assert (image.leader, image.isr, image.wal_ranges[-1].is_open) == (-1, (), True)
    applied(draft, plan_wal_sealed(draft, telling(), WalId(1, 11), 12))
    image = partition(draft)
    assert (image.leader, image.isr, set(image.replicas)) == (other, (other,), set(partition(from_object()).replicas))
    assert image.replicas[0] == other
    assert image.wal_ranges[-2:] == (WalRange(1, 11, 1, 7, 11), WalRange(other, 10 + other, 3, 0, OPEN))
    # A follower that is fenced leaves the set.
    assert propose(draft, other, image.replicas[2]) is ErrorCode.NONE
    applied(draft, fence_brokers(draft, around(), [(image.replicas[2], 10 + image.replicas[2])]))
    assert partition(draft).isr == (other,)
    assert partition(draft).leader == other


def test_a_factor_above_the_living_brokers_is_lowered_on_the_way_back() -> None:
    draft = in_logs(1, brokers=[1, 2, 3], fenced=[3], firn_durability="object")
    topic = draft.topic("t")
    assert topic is not None
    applied(
        draft,
        replace_configs(draft, telling(), resource_type=ConfigResourceType.TOPIC, resource_name="t", configs={}),
    )
    assert partition(draft).replicas == ids(1), "the factor that was asked for was not kept: it is the present one"
    asked = applied(draft, create_partitions(draft, telling(), name="t", count=2, assignments=None))
    assert asked.partitions[1].durability is PartitionDurability.REPLICAS


def test_min_in_sync_and_durability_change_in_one_entry() -> None:
    draft = several([1, 2], level=3)
    change(draft, isr=ids(1), eligible=ids(2))
    alter(draft, "object", min_insync_replicas="2")
    image = partition(draft)
    assert (image.durability, image.eligible) == (PartitionDurability.TO_OBJECT, ())
