"""Internal topics get more replicas as brokers join (ADR 0025, N)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from app.configs import BrokerConfig
from app.core.units import BrokerId, LeaderEpoch, LogSequence, TimestampMs, TopicId
from app.metadata.changes.internal_topics import PARTITIONS_AT_ONCE, MoreReplicas, add_replicas, missing_replicas
from app.metadata.changes.reassignments import completed, in_progress
from app.metadata.changes.topic_changes import PlanInputs
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, TopicImage
from app.metadata.image.records import (
    LEVEL_FEATURE,
    MemberRecord,
    PartitionRecord,
    TopicRecord,
    broker_change,
    feature_change,
    partition_change,
    topic_change,
)
from tests.metadata.several import applied, around, ids
from tests.metadata.support import uuid_of

OFFSETS = TopicId(uuid_of(901))
CONFIG = BrokerConfig()


def cluster(
    *partitions: Sequence[int], brokers: Sequence[int] = (1, 2, 3), fenced: Collection[int] = (), racks: str = ""
) -> ClusterImage:
    """``__consumer_offsets`` with these replicas. ``racks``: a letter for each broker."""
    draft = ImageDraft(ClusterImage())
    records = [feature_change(LEVEL_FEATURE, 1)]
    for place, each in enumerate(brokers):
        member = MemberRecord(
            1,
            uuid_of(100 + each),
            uuid_of(200 + each),
            10 + each,
            (),
            racks[place] if racks else None,
            TimestampMs(0),
            fenced=each in fenced,
            level_max=1,
        )
        records.append(broker_change(each, member))
    records.append(topic_change(OFFSETS, TopicRecord(1, "__consumer_offsets", len(partitions), {}, TimestampMs(0))))
    for index, replicas in enumerate(partitions):
        named = ids(*replicas)
        records.append(partition_change(OFFSETS, index, PartitionRecord(1, named[0], LeaderEpoch(0), 0, named, named)))
    draft.apply(records)
    return draft.freeze(LogSequence(1))


def topic(image: ClusterImage | ImageDraft) -> TopicImage:
    found = image.topic("__consumer_offsets")
    assert found is not None
    return found


def surroundings(image: ClusterImage) -> PlanInputs:
    live = [BrokerId(key) for key, one in sorted(image.brokers.items()) if one.active]
    return replace(around(), live_brokers=live)


def step(image: ClusterImage, more: MoreReplicas, config: BrokerConfig = CONFIG) -> ClusterImage:
    """What the controller does now."""
    places = more.due(image, config)
    if not places:
        return image
    draft = ImageDraft(image)
    made = applied(draft, add_replicas(draft, surroundings(image), config, places))
    assert not any(answer.error for answer in made.answers)
    more.begun(places)
    return draft.freeze(LogSequence(image.sequence + 1))


def all_in_sync(image: ClusterImage) -> ClusterImage:
    """All replicas have caught up, and their leaders' proposals were accepted."""
    draft = ImageDraft(image)
    draft.apply(
        [
            partition_change(OFFSETS, one.partition_index, completed(one._replace(isr=one.replicas)).record())
            for one in topic(image).partitions
        ]
    )
    return draft.freeze(LogSequence(image.sequence + 1))


def raised(image: ClusterImage, config: BrokerConfig = CONFIG) -> ClusterImage:
    """The cluster when there is nothing left to do."""
    more = MoreReplicas()
    for _ in range(100):
        after = all_in_sync(step(image, more, config))
        if [one.replicas for one in topic(after).partitions] == [one.replicas for one in topic(image).partitions]:
            return after
        image = after
    raise AssertionError("it never ends")


def test_n2_all_partitions_get_replicas_a_few_at_a_time() -> None:
    image, more = cluster(*[(1,)] * 50), MoreReplicas()
    for round_number in range(1, 6):
        image = step(image, more)
        assert sum(in_progress(one) for one in topic(image).partitions) == PARTITIONS_AT_ONCE
        assert step(image, more) is image  # not before those are done
        image = all_in_sync(image)
        assert sum(len(one.replicas) == 3 for one in topic(image).partitions) == PARTITIONS_AT_ONCE * round_number
    assert step(image, more) is image
    assert all(set(one.replicas) == {1, 2, 3} for one in topic(image).partitions)


def test_n5_the_first_replicas_are_spread_and_the_present_ones_stay() -> None:
    image = raised(cluster(*[(1,)] * 50, brokers=(1, 2, 3, 4, 5)))
    partitions = topic(image).partitions
    assert all(1 in one.replicas and len(set(one.replicas)) == 3 for one in partitions)
    first = Counter(one.replicas[0] for one in partitions)
    assert max(first.values()) - min(first.values()) <= 1
    assert len(first) == 5
    others = Counter(replica for one in partitions for replica in one.replicas if replica != 1)
    assert max(others.values()) - min(others.values()) <= 1


def test_replicas_are_added_on_other_racks() -> None:
    image = raised(cluster(*[(1, 2)] * 6, brokers=(1, 2, 3, 4), racks="aabb"))
    assert all(sorted(one.replicas)[2] in (3, 4) for one in topic(image).partitions)


def test_n1_there_are_no_more_replicas_than_live_brokers_nor_than_configured() -> None:
    assert missing_replicas(cluster((1,), (1,)), CONFIG, ids(1)) == []
    image = raised(cluster((1,), (1,), fenced=[3]))
    assert all(set(one.replicas) == {1, 2} for one in topic(image).partitions)
    image = raised(cluster((1,), (1,)), BrokerConfig(offsets_topic_replication_factor=2))
    assert all(len(one.replicas) == 2 for one in topic(image).partitions)


def test_n6_nothing_is_taken_away_and_a_dead_replica_counts() -> None:
    image = cluster((1, 2, 3), brokers=(1, 2, 3, 4), fenced=[3])
    assert step(image, MoreReplicas()) is image
    image = cluster((1, 2, 3))
    assert step(image, MoreReplicas(), BrokerConfig(offsets_topic_replication_factor=1)) is image


def test_n3_another_controller_goes_on_where_the_last_one_ended() -> None:
    image = cluster(*[(1,)] * 15)
    image = step(image, MoreReplicas())
    assert step(image, MoreReplicas()) is image
    image = step(all_in_sync(image), MoreReplicas())
    image = all_in_sync(image)
    assert all(len(one.replicas) == 3 for one in topic(image).partitions)


def test_n4_what_an_operator_cancels_is_not_begun_again_until_the_brokers_change() -> None:
    image, more = cluster((1,), (1,)), MoreReplicas()
    step(image, more)
    cancelled = replace(image, sequence=LogSequence(image.sequence + 2))
    assert step(cancelled, more) is cancelled
    joined = cluster((1,), (1,), brokers=(1, 2, 3, 4))
    assert step(joined, more) is not joined


def test_a_reassignment_of_somebody_else_is_left_alone() -> None:
    image = cluster((1,), (1,))
    draft = ImageDraft(image)
    moving = topic(image).partitions[0]._replace(replicas=ids(2, 1), adding=ids(2), removing=ids(1))
    draft.apply([partition_change(OFFSETS, 0, moving.record())])
    image = draft.freeze(LogSequence(2))
    assert step(image, MoreReplicas()) is image
    # Also if it began after the controller looked.
    plan = add_replicas(ImageDraft(image), surroundings(image), CONFIG, [(OFFSETS, 1)])
    assert plan.records == []


def test_a_change_that_may_not_have_been_made_is_tried_again() -> None:
    image, more = cluster((1,)), MoreReplicas()
    assert more.due(image, CONFIG) == [(OFFSETS, 0)]
    assert more.due(image, CONFIG) == []
    more.again()
    assert more.due(image, CONFIG) == [(OFFSETS, 0)]
