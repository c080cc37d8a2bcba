"""UpdateFeatures: ``firn.version`` rises and never falls, and makes the one broker a member of a cluster of several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId, LeaderEpoch, LogSequence, TimestampMs
from app.metadata.changes.features import OF_PROTOCOL, FeatureAsked, UpgradeType, update_features
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage
from app.metadata.image.records import (
    LEVEL_FEATURE,
    LEVEL_MAX,
    BrokerRecord,
    ClusterRecord,
    ControllerRecord,
    Endpoint,
    PartitionRecord,
    TopicRecord,
    broker_change,
    cluster_change,
    controller_change,
    feature_change,
    partition_change,
    topic_change,
)
from app.metadata.replicas.elections import NOBODY
from tests.metadata.several import NOW, TOPIC_ID, applied, around, ids, partition, several
from tests.metadata.support import uuid_of

ENDPOINTS = (Endpoint("PLAINTEXT", "host", 9092, "PLAINTEXT"),)


def one_broker(*others: int) -> ImageDraft:
    """A cluster of level 0, run by broker 1. ``others`` ran it before, and each leads a partition still."""
    draft = ImageDraft(ClusterImage())
    records = [
        cluster_change(ClusterRecord(1, "cluster", TimestampMs(77))),
        controller_change(ControllerRecord(1, 3, BrokerId(1), uuid_of(201))),
        topic_change(TOPIC_ID, TopicRecord(1, "t", 1 + len(others), {}, TimestampMs(0))),
    ]
    for index, broker in enumerate(ids(1, *others)):
        record = BrokerRecord(1, uuid_of(100 + broker), uuid_of(200 + broker), 4, ENDPOINTS, "r", TimestampMs(6), "i")
        records.append(broker_change(broker, record))
        leads = PartitionRecord(1, broker, LeaderEpoch(2), 5, (broker,), (broker,))
        records.append(partition_change(TOPIC_ID, index, leads))
    draft.apply(records)
    return draft


def update(draft: ImageDraft, *asked: FeatureAsked) -> None:
    applied(draft, update_features(draft, around(), asked))


def code_of(draft: ImageDraft, *asked: FeatureAsked) -> ErrorCode:
    with pytest.raises(RequestRejected) as refused:
        update_features(draft, around(), asked)
    assert str(refused.value)
    return refused.value.code


def test_level_1_makes_the_one_broker_an_unfenced_member() -> None:
    draft = one_broker()
    before = draft.brokers[1]
    update(draft, FeatureAsked(LEVEL_FEATURE, 1))
    image = draft.freeze(LogSequence(NOW))
    assert (image.level, image.cluster_id, image.created_ms) == (1, "cluster", 77)
    broker = image.brokers[1]
    assert (broker.fenced, broker.stopping, broker.changed_at, broker.level_max) == (False, False, NOW, LEVEL_MAX)
    assert replace(broker, changed_at=-1, level_max=0) == before
    assert (partition(draft).leader, partition(draft).leader_epoch) == (1, 2)


def test_programs_of_level_0_refuse_the_first_record_of_level_1() -> None:
    first = update_features(one_broker(), around(), [FeatureAsked(LEVEL_FEATURE, 1)]).records[0]
    assert first == cluster_change(ClusterRecord(2, "cluster", TimestampMs(77)))


def test_m6_earlier_brokers_of_the_cluster_are_fenced_members() -> None:
    draft = one_broker(2)
    update(draft, FeatureAsked(LEVEL_FEATURE, 1))
    assert [(each.fenced, each.changed_at, each.level_max) for each in draft.brokers.values()] == [
        (False, NOW, LEVEL_MAX),
        (True, NOW, 0),
    ]
    led = partition(draft, 0)
    assert (led.leader, led.isr, led.partition_epoch) == (1, (1,), 5)
    left = partition(draft, 1)
    assert (left.leader, left.leader_epoch, left.isr, left.eligible) == (NOBODY, 3, (), (2,))


def test_partitions_of_the_one_broker_stay_as_they_are() -> None:
    records = update_features(one_broker(2), around(), [FeatureAsked(LEVEL_FEATURE, 1)]).records
    assert sum(key == partition_change(TOPIC_ID, 0, None)[0] for key, _ in records) == 0


def test_e3_nobody_is_elected_uncleanly_by_a_rising_level() -> None:
    draft = one_broker(2)
    replicas = ids(2, 1)
    topic = TopicRecord(1, "t", 2, {"unclean.leader.election.enable": "true"}, TimestampMs(0))
    record = PartitionRecord(1, replicas[0], LeaderEpoch(0), 0, replicas, ids(2))
    draft.apply([topic_change(TOPIC_ID, topic), partition_change(TOPIC_ID, 1, record)])
    update(draft, FeatureAsked(LEVEL_FEATURE, 1))
    assert partition(draft, 1).leader == NOBODY


def test_the_present_level_is_no_change() -> None:
    draft = several([1])
    for name, level in {LEVEL_FEATURE: 1, **OF_PROTOCOL}.items():
        assert update_features(draft, around(), [FeatureAsked(name, level)]).records == []


@pytest.mark.parametrize(
    "asked",
    [
        FeatureAsked("no.such", 1),
        FeatureAsked(LEVEL_FEATURE, 0),
        FeatureAsked(LEVEL_FEATURE, 0, UpgradeType.SAFE_DOWNGRADE),
        FeatureAsked(LEVEL_FEATURE, 0, UpgradeType.UNSAFE_DOWNGRADE),
        FeatureAsked(LEVEL_FEATURE, -1, UpgradeType.UNSAFE_DOWNGRADE),
        FeatureAsked(LEVEL_FEATURE, LEVEL_MAX + 1),
        FeatureAsked(LEVEL_FEATURE, 1, UpgradeType.UNKNOWN),
        FeatureAsked("group.version", 0, UpgradeType.UNSAFE_DOWNGRADE),
        FeatureAsked("group.version", 2),
    ],
)
def test_levels_that_cannot_be_are_refused(asked: FeatureAsked) -> None:
    assert code_of(several([1]), asked) is ErrorCode.INVALID_UPDATE_VERSION


def test_a_level_rises_neither_too_far_nor_by_a_downgrade() -> None:
    assert code_of(one_broker(), FeatureAsked(LEVEL_FEATURE, LEVEL_MAX + 1)) is ErrorCode.INVALID_UPDATE_VERSION
    for kind in (UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
        assert code_of(one_broker(), FeatureAsked(LEVEL_FEATURE, 1, kind)) is ErrorCode.INVALID_UPDATE_VERSION


def test_a_level_that_one_brokers_program_does_not_understand_is_refused() -> None:
    asked = [FeatureAsked(LEVEL_FEATURE, 2)]
    with pytest.raises(RequestRejected) as refused:
        update_features(several([1], level_max=1), around(), asked, level_max=2)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    plan = update_features(several([1], level_max=2), around(), asked, level_max=2)
    assert plan.records == [feature_change(LEVEL_FEATURE, 2)]


def test_nothing_changes_if_one_of_several_features_is_refused() -> None:
    draft = one_broker()
    assert (
        code_of(draft, FeatureAsked(LEVEL_FEATURE, 1), FeatureAsked("no.such", 1)) is ErrorCode.INVALID_UPDATE_VERSION
    )
    twice = FeatureAsked(LEVEL_FEATURE, 1)
    assert code_of(draft, twice, twice) is ErrorCode.INVALID_REQUEST
    assert update_features(draft, around(), []).records == []


def test_numbers_that_are_no_type_of_change_are_unknown() -> None:
    assert [UpgradeType.of(number) for number in (-1, 0, 1, 2, 3, 4)] == [0, 0, 1, 2, 3, 0]
