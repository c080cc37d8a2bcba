"""Plans of what brokers do: registrations (M1 to M4, M8 to M11), fences (M6, M7), stops (M13), and in-sync sets (R5)."""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import UUID

import pytest

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId, LeaderEpoch, LogSequence, TimestampMs, TopicId, TopicIdPartition
from app.metadata.changes import broker_changes
from app.metadata.changes.broker_changes import (
    ANY_NODE_ID,
    BrokersChanged,
    ProposedSet,
    RegistrationAnswer,
    RegistrationAsked,
)
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage
from app.metadata.image.records import (
    ALL_BROKERS,
    LEVEL_FEATURE,
    Endpoint,
    MemberRecord,
    PartitionRecord,
    TopicRecord,
    broker_change,
    broker_configs_change,
    feature_change,
    partition_change,
    topic_change,
)
from app.metadata.replicas.elections import NOBODY
from app.metadata.replicas.replica_changes import ProposedReplica
from tests.metadata.support import uuid_of

T = TypeVar("T")

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)
TOPIC = TopicId(uuid_of(900))
NOW = 20
"""Number of the entry that the tests plan."""
ENDPOINTS = (Endpoint("PLAINTEXT", "host", 9092, "PLAINTEXT"),)


def directory(broker_id: int) -> UUID:
    return uuid_of(100 + broker_id)


def epoch(broker_id: int) -> int:
    """The broker epoch that the tests' brokers have."""
    return 10 + broker_id


def around(sequence: int = NOW) -> PlanInputs:
    return PlanInputs(BrokerConfig(), [A, B, C], TimestampMs(5), 0, LogSequence(sequence))


def cluster(*partitions: tuple[int, ...], level: int = 1, **configs: str) -> ImageDraft:
    """Brokers 1 to 3, and a topic whose partitions have these replicas, all in sync."""
    draft = ImageDraft(ClusterImage())
    records = [
        broker_change(
            each,
            MemberRecord(
                1,
                directory(each),
                uuid_of(200 + each),
                epoch(each),
                ENDPOINTS,
                None,
                TimestampMs(0),
                changed_at=epoch(each),
            ),
        )
        for each in (A, B, C)
    ]
    if level:
        records.append(feature_change(LEVEL_FEATURE, level))
    overrides = {name.replace("_", "."): value for name, value in configs.items()}
    records.append(topic_change(TOPIC, TopicRecord(1, "t", len(partitions), overrides, TimestampMs(0))))
    for index, replicas in enumerate(partitions):
        named = tuple(BrokerId(each) for each in replicas)
        records.append(partition_change(TOPIC, index, PartitionRecord(1, named[0], LeaderEpoch(0), 0, named, named)))
    draft.apply(records)
    return draft


def apply(draft: ImageDraft, planned: Planned[T]) -> T:
    draft.apply(planned.records)
    return planned.answer


def partition(draft: ImageDraft, index: int = 0) -> PartitionImage:
    topic = draft.topic_by_id(TOPIC)
    assert topic is not None
    return topic.partitions[index]


def broker(draft: ImageDraft, broker_id: int) -> BrokerImage:
    return draft.brokers[broker_id]


def asked(broker_id: int, **changes: Any) -> RegistrationAsked:
    """A broker that starts again after a clean stop."""
    base = RegistrationAsked(
        broker_id,
        directory(broker_id),
        uuid_of(300 + broker_id),
        "boot",
        ENDPOINTS,
        1,
        1,
        replaces=epoch(broker_id),
        clean_epoch=epoch(broker_id),
    )
    return base._replace(**changes)


def register(draft: ImageDraft, request: RegistrationAsked, sequence: int = NOW) -> RegistrationAnswer:
    return apply(draft, broker_changes.register_broker(draft, around(sequence), request))


def fence(draft: ImageDraft, *brokers: int, sequence: int = NOW) -> BrokersChanged:
    named = [(each, broker(draft, each).broker_epoch) for each in brokers]
    return apply(draft, broker_changes.fence_brokers(draft, around(sequence), named))


def unfence(draft: ImageDraft, *brokers: int, applied: int = 1000) -> BrokersChanged:
    named = [(each, broker(draft, each).broker_epoch, applied) for each in brokers]
    return apply(draft, broker_changes.unfence_brokers(draft, around(), named))


def refusal(draft: ImageDraft, request: RegistrationAsked) -> ErrorCode:
    with pytest.raises(RequestRejected) as refused:
        broker_changes.register_broker(draft, around(), request)
    assert str(refused.value).endswith(".")
    return refused.value.code


# --- registration ---------------------------------------------------------------------------------------------------


def test_m1_the_broker_epoch_is_the_number_of_the_entry() -> None:
    draft = cluster()
    answer = register(draft, asked(4, replaces=-1))
    assert answer == RegistrationAnswer(BrokerId(4), NOW, LogSequence(NOW))
    new = broker(draft, 4)
    assert (new.directory_id, new.incarnation, new.broker_epoch, new.changed_at) == (
        directory(4),
        uuid_of(304),
        NOW,
        NOW,
    )
    assert (new.boot_id, new.level_max, new.endpoints, new.fenced, new.stopping) == ("boot", 1, ENDPOINTS, True, False)


def test_m1_the_broker_epoch_rises_though_an_older_one_is_above_the_entry() -> None:
    draft = cluster()
    assert register(draft, asked(A), sequence=5).broker_epoch == epoch(A) + 1


def test_m2_a_registration_ends_every_leadership_in_its_entry() -> None:
    draft = cluster((A, B), (B, A), (A,), (B, C))
    register(draft, asked(A))
    found = [
        (each.leader, each.leader_epoch, each.isr, each.eligible) for each in map(partition, [draft] * 4, range(4))
    ]
    assert found == [(B, 1, (B,), ()), (B, 0, (B,), ()), (NOBODY, 1, (), (A,)), (B, 0, (B, C), ())]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"clean_epoch": -1, "run_epoch": 11, "run_boot_id": "boot"}, True),
        ({"clean_epoch": -1, "run_epoch": 11, "run_boot_id": "earlier"}, False),
        ({"clean_epoch": -1, "run_epoch": 11, "run_boot_id": "", "boot_id": ""}, False),
        ({"clean_epoch": 10, "run_epoch": 10, "run_boot_id": "boot"}, False),
        ({"clean_epoch": -1}, False),
        ({"directory_id": uuid_of(5), "force": True}, False),
    ],
    ids=["clean", "not booted", "booted", "boot unknown", "older markers", "no marker", "another directory"],
)
def test_m4_what_is_kept_stays_eligible_and_the_rest_does_not(changes: dict[str, Any], kept: bool) -> None:
    draft = cluster((A, B), min_insync_replicas="2")
    register(draft, asked(A, **changes))
    assert partition(draft).eligible == ((A,) if kept else ())


def test_m3_a_new_directory_is_not_the_last_known_one_above_factor_one() -> None:
    draft = cluster((A, B), (A,))
    fence(draft, B)
    register(draft, asked(A, directory_id=uuid_of(5), clean_epoch=-1, force=True))
    assert [partition(draft, each).last_known_eligible for each in (0, 1)] == [(), (A,)]


def test_m8_the_same_incarnation_is_answered_again_and_nothing_is_written() -> None:
    draft = cluster((A, B))
    first = register(draft, asked(A))
    unfence(draft, A)
    again = broker_changes.register_broker(draft, around(NOW + 1), asked(A))
    assert (again.records, again.answer) == ([], first)


def test_m8_a_broker_with_any_node_id_is_answered_again_too() -> None:
    draft = cluster()
    request = asked(ANY_NODE_ID, replaces=-1, clean_epoch=-1)
    first = register(draft, request)
    again = broker_changes.register_broker(draft, around(NOW + 1), request)
    assert (again.records, again.answer) == ([], first)


@pytest.mark.parametrize(("broker_id", "replaces"), [(A, 10), (A, -1), (A, 12), (4, 11)])
def test_m9_a_registration_of_another_time_is_refused(broker_id: int, replaces: int) -> None:
    assert refusal(cluster(), asked(broker_id, replaces=replaces)) is ErrorCode.STALE_BROKER_EPOCH


def test_m10_node_ids_are_counted_and_never_given_again() -> None:
    draft = cluster()
    new = {"replaces": -1, "clean_epoch": -1}
    first = register(draft, asked(ANY_NODE_ID, **new))
    second = register(draft, asked(ANY_NODE_ID, directory_id=uuid_of(6), incarnation=uuid_of(7), **new))
    assert (first.broker_id, second.broker_id, draft.next_node_id) == (4, 5, 6)
    apply(draft, broker_changes.unregister_broker(draft, around(), 5))
    third = register(draft, asked(ANY_NODE_ID, directory_id=uuid_of(8), incarnation=uuid_of(9), **new))
    assert third.broker_id == 6


def test_m10_a_node_id_that_an_operator_chose_is_not_given_again_either() -> None:
    draft = cluster()
    apply(draft, broker_changes.unregister_broker(draft, around(), C))
    assert register(draft, asked(ANY_NODE_ID, replaces=-1, clean_epoch=-1)).broker_id == 4


def test_m10_a_directory_keeps_its_node_id() -> None:
    draft = cluster()
    request = asked(ANY_NODE_ID, directory_id=directory(B), replaces=epoch(B), clean_epoch=epoch(B))
    assert register(draft, request).broker_id == B


def test_m11_the_place_of_an_unfenced_broker_is_given_to_no_other_directory() -> None:
    draft = cluster()
    other = asked(A, directory_id=uuid_of(5))
    assert refusal(draft, other) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert broker_changes.register_broker(draft, around(), other._replace(force=True)).records
    assert broker_changes.register_broker(draft, around(), asked(A)).records
    fence(draft, A)
    assert broker_changes.register_broker(draft, around(), other).records


@pytest.mark.parametrize(("low", "high"), [(0, 0), (2, 3)])
def test_a_program_of_other_levels_is_refused(low: int, high: int) -> None:
    assert refusal(cluster(), asked(A, level_min=low, level_max=high)) is ErrorCode.UNSUPPORTED_VERSION


def test_a_cluster_of_one_broker_takes_no_other() -> None:
    assert refusal(cluster(level=0), asked(4, replaces=-1)) is ErrorCode.INVALID_REQUEST
    for plan in (broker_changes.elect_where_nobody_leads, lambda d, a: broker_changes.unregister_broker(d, a, A)):
        with pytest.raises(RequestRejected) as refused:
            plan(cluster(level=0), around())
        assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_negative_node_id_is_refused() -> None:
    assert refusal(cluster(), asked(-2, replaces=-1)) is ErrorCode.INVALID_REQUEST


# --- fencing --------------------------------------------------------------------------------------------------------


def test_m6_fenced_brokers_lead_nothing_and_are_in_no_set_in_the_same_entry() -> None:
    draft = cluster((A, B, C), (B, C, A), (C, A, B))
    assert fence(draft, A, B).brokers == (A, B)
    assert [(each.leader, each.isr) for each in map(partition, [draft] * 3, range(3))] == [(C, (C,))] * 3
    assert (broker(draft, A).fenced, broker(draft, A).changed_at, broker(draft, C).fenced) == (True, NOW, False)


def test_m5_a_fence_of_another_broker_epoch_or_of_a_fenced_broker_does_nothing() -> None:
    draft = cluster((A, B))
    planned = broker_changes.fence_brokers(draft, around(), [(A, epoch(A) + 1), (9, 1)])
    assert (planned.records, planned.answer.brokers) == ([], ())
    fence(draft, A)
    assert fence(draft, A, sequence=NOW + 1).brokers == ()
    assert broker(draft, A).changed_at == NOW


def test_m7_a_broker_is_unfenced_once_it_has_applied_the_entry_that_fenced_it() -> None:
    draft = cluster((A,))
    fence(draft, A)
    assert unfence(draft, A, applied=NOW - 1).brokers == ()
    assert broker(draft, A).fenced
    assert unfence(draft, A, applied=NOW).brokers == (A,)
    assert (broker(draft, A).fenced, partition(draft).leader, partition(draft).leader_epoch) == (False, A, 2)


def test_m7_counts_also_from_the_registration() -> None:
    draft = cluster((A,))
    register(draft, asked(A))
    assert unfence(draft, A, applied=NOW - 1).brokers == ()
    assert unfence(draft, A, applied=NOW).brokers == (A,)


def test_m5_an_older_broker_epoch_unfences_nobody() -> None:
    draft = cluster((A,))
    register(draft, asked(A))
    planned = broker_changes.unfence_brokers(draft, around(), [(A, epoch(A), 1000), (9, 1, 1000)])
    assert planned.records == []


def test_unclean_elections_are_told() -> None:
    draft = cluster((A, B), unclean_leader_election_enable="true")
    fence(draft, B)
    assert fence(draft, A).unclean == ()
    assert unfence(draft, B).unclean == (TopicIdPartition(TOPIC, partition(draft).partition_index),)
    assert (partition(draft).leader, partition(draft).isr, partition(draft).recovering) == (B, (B,), True)


def test_a_setting_of_all_brokers_decides_where_the_topic_says_nothing() -> None:
    draft = cluster((A, B))
    fence(draft, B)
    fence(draft, A)
    draft.apply([broker_change(B, broker(draft, B).record(fenced=False))])
    elect = broker_changes.elect_where_nobody_leads
    assert elect(draft, around()).records == []
    draft.apply([broker_configs_change(A, {"unclean.leader.election.enable": "true"})])
    assert elect(draft, around()).records == [], "one broker's own setting"
    draft.apply([broker_configs_change(ALL_BROKERS, {"unclean.leader.election.enable": "true"})])
    assert len(apply(draft, elect(draft, around())).unclean) == 1
    assert partition(draft).leader == B


def test_r9_min_isr_of_the_topic_and_of_all_brokers_counts() -> None:
    for draft in (cluster((A, B), min_insync_replicas="2"), cluster((A, B))):
        draft.apply([broker_configs_change(ALL_BROKERS, {"min.insync.replicas": "2"})])
        fence(draft, A)
        assert partition(draft).eligible == (A,)
    own = cluster((A, B), min_insync_replicas="1")
    own.apply([broker_configs_change(ALL_BROKERS, {"min.insync.replicas": "2"})])
    fence(own, A)
    assert partition(own).eligible == ()


# --- stopping and leaving -------------------------------------------------------------------------------------------


def stop(draft: ImageDraft, broker_id: int) -> int:
    return apply(draft, broker_changes.begin_stop(draft, around(), broker_id, epoch(broker_id)))


def test_m13_a_stop_moves_the_leaderships_in_one_entry() -> None:
    draft = cluster((A, B), (B, A), (A,))
    assert stop(draft, A) == 0
    assert broker(draft, A).stopping
    assert [(each.leader, each.isr) for each in map(partition, [draft] * 3, range(3))] == [
        (B, (B,)),
        (B, (B,)),
        (A, (A,)),
    ]
    assert broker_changes.begin_stop(draft, around(), A, epoch(A)).records == []


def test_m13_a_broker_waits_for_a_replica_that_may_come_into_sync() -> None:
    draft = cluster((A, B))
    fence(draft, B)
    assert stop(draft, A) == 0, "nobody else lives"
    unfence(draft, B)
    assert stop(draft, A) == 1
    proposal = ProposedSet(TOPIC, 0, 0, 1, [ProposedReplica(A, epoch(A)), ProposedReplica(B, epoch(B))])
    [answer] = apply(draft, broker_changes.alter_in_sync(draft, around(), A, epoch(A), [proposal]))
    assert (answer.error, partition(draft).leader) == (ErrorCode.NEW_LEADER_ELECTED, B)
    assert stop(draft, A) == 0
    assert partition(draft).isr == (B,)


@pytest.mark.parametrize(
    ("broker_id", "code"), [(9, ErrorCode.BROKER_ID_NOT_REGISTERED), (A, ErrorCode.STALE_BROKER_EPOCH)]
)
def test_m5_a_stop_of_another_broker_epoch_is_refused(broker_id: int, code: ErrorCode) -> None:
    with pytest.raises(RequestRejected) as refused:
        broker_changes.begin_stop(cluster(), around(), broker_id, 10)
    assert refused.value.code is code


def test_a_fenced_broker_may_stop() -> None:
    draft = cluster((A, B))
    fence(draft, A)
    assert stop(draft, A) == 0
    assert broker(draft, A).stopping


def test_an_unregistered_broker_leaves_everything_but_the_lists_of_replicas() -> None:
    draft = cluster((A, B), (B, A), (A,), min_insync_replicas="2")
    apply(draft, broker_changes.unregister_broker(draft, around(), A))
    assert A not in draft.brokers
    images = [partition(draft, each) for each in range(3)]
    assert [(each.leader, each.isr, each.eligible) for each in images] == [
        (B, (B,), ()),
        (B, (B,), ()),
        (NOBODY, (), ()),
    ]
    assert [each.replicas for each in images] == [(A, B), (B, A), (A,)]
    assert register(draft, asked(A, replaces=-1), sequence=NOW + 1).broker_epoch == NOW + 1
    unfence(draft, A)
    assert (partition(draft, 2).leader, partition(draft, 0).isr) == (A, (B,))


def test_a_broker_that_is_unknown_cannot_be_unregistered() -> None:
    with pytest.raises(RequestRejected) as refused:
        broker_changes.unregister_broker(cluster(), around(), 9)
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


# --- in-sync sets ---------------------------------------------------------------------------------------------------


def test_r5_each_proposal_is_decided_for_itself() -> None:
    draft = cluster((A, B), (A, C), (B, A))
    alone = [ProposedReplica(A, epoch(A))]
    proposals = [
        ProposedSet(TOPIC, 0, 0, 0, alone),
        ProposedSet(TOPIC, 1, 0, 7, alone),
        ProposedSet(TOPIC, 2, 0, 0, alone),
        ProposedSet(TOPIC, 3, 0, 0, alone),
        ProposedSet(uuid_of(5), 0, 0, 0, alone),
        ProposedSet(TOPIC, 0, 0, 0, alone),
    ]
    answers = apply(draft, broker_changes.alter_in_sync(draft, around(), A, epoch(A), proposals))
    assert [each.error for each in answers] == [
        ErrorCode.NONE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_UPDATE_VERSION,
    ]
    assert [bool(each.why) for each in answers] == [False] + [True] * 5
    assert answers[0].image == partition(draft)
    assert partition(draft).isr == (A,)
    assert [partition(draft, each).partition_epoch for each in (0, 1, 2)] == [1, 0, 0]


def test_m5_proposals_under_another_broker_epoch_are_refused() -> None:
    with pytest.raises(RequestRejected) as refused:
        broker_changes.alter_in_sync(cluster((A, B)), around(), A, epoch(A) + 1, [])
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_r5_a_proposal_for_the_process_before_is_refused() -> None:
    draft = cluster((A, B))
    register(draft, asked(B))
    unfence(draft, B)
    state = partition(draft)
    of_before = ProposedSet(
        TOPIC, 0, state.leader_epoch, state.partition_epoch, [ProposedReplica(A, 11), ProposedReplica(B, 12)]
    )
    of_now = of_before._replace(members=[ProposedReplica(A, 11), ProposedReplica(B, NOW)])
    answers = apply(draft, broker_changes.alter_in_sync(draft, around(), A, epoch(A), [of_before, of_now]))
    assert [each.error for each in answers] == [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.NONE]
    assert partition(draft).isr == (A, B)


def test_the_hook_completes_a_reassignment() -> None:
    draft = cluster((A, B))
    proposal = ProposedSet(TOPIC, 0, 0, 0, [ProposedReplica(A, epoch(A)), ProposedReplica(B, epoch(B))])

    def moved(image: PartitionImage) -> PartitionImage:
        return image._replace(replicas=(B,), isr=(B,))

    [answer] = apply(draft, broker_changes.alter_in_sync(draft, around(), A, epoch(A), [proposal], after=moved))
    assert (answer.error, partition(draft).leader, partition(draft).leader_epoch) == (
        ErrorCode.NEW_LEADER_ELECTED,
        B,
        1,
    )
