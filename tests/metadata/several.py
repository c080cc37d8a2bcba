"""A cluster of several brokers, as a draft on which plans are tested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from app.configs import BrokerConfig
from app.core.units import BrokerId, LeaderEpoch, LogSequence, TimestampMs, TopicId
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, PartitionImage
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
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalRange
from tests.metadata.support import uuid_of

T = TypeVar("T")

TOPIC_ID = TopicId(uuid_of(900))
NOW = 20
"""Number of the entry that is planned."""


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(each) for each in brokers)


def around(sequence: int = NOW) -> PlanInputs:
    return PlanInputs(BrokerConfig(), ids(1, 2, 3, 4, 5), TimestampMs(5), 0, LogSequence(sequence))


def several(
    *partitions: Sequence[int],
    brokers: Iterable[int] = (1, 2, 3, 4, 5),
    fenced: Iterable[int] = (),
    stopping: Iterable[int] = (),
    level: int = 1,
    level_max: int = 1,
    **configs: str,
) -> ImageDraft:
    """Brokers, and a topic ``t`` whose partitions have these replicas, all in sync and led by the first."""
    draft = ImageDraft(ClusterImage())
    records = [
        broker_change(
            each,
            MemberRecord(
                1,
                uuid_of(100 + each),
                uuid_of(200 + each),
                10 + each,
                (),
                None,
                TimestampMs(0),
                fenced=each in set(fenced),
                stopping=each in set(stopping),
                level_max=level_max,
            ),
        )
        for each in brokers
    ]
    if level:
        records.append(feature_change(LEVEL_FEATURE, level))
    overrides = {name.replace("_", "."): value for name, value in configs.items()}
    records.append(topic_change(TOPIC_ID, TopicRecord(1, "t", len(partitions), overrides, TimestampMs(0))))
    for index, replicas in enumerate(partitions):
        named = ids(*replicas)
        records.append(partition_change(TOPIC_ID, index, PartitionRecord(1, named[0], LeaderEpoch(0), 0, named, named)))
    draft.apply(records)
    return draft


def in_logs(
    *leaders: int,
    brokers: Iterable[int] = (1, 2, 3, 4, 5),
    level: int = 3,
    more: Iterable[WalRange] = (),
    **named: object,
) -> ImageDraft:
    """As ``several``, with a topic ``t`` whose partitions are in the write-ahead logs of these leaders, after ``more``."""
    draft = several(*((each,) for each in leaders), brokers=brokers, level=level, level_max=level, **named)  # type: ignore[arg-type]
    records = []
    for index, leader in enumerate(leaders):
        image = partition(draft, index)._replace(
            durability=PartitionDurability.OBJECT,
            wal_ranges=(*more, WalRange(leader, draft.brokers[leader].broker_epoch, 0, 0, OPEN)),
        )
        records.append(partition_change(TOPIC_ID, index, image.record()))
    draft.apply(records)
    return draft


def change(draft: ImageDraft, **fields: object) -> PartitionImage:
    """Change fields of the first partition, as some earlier entry did."""
    image = partition(draft)._replace(**fields)  # type: ignore[arg-type]
    draft.apply([partition_change(TOPIC_ID, 0, image.record())])
    return image


def partition(draft: ImageDraft, index: int = 0) -> PartitionImage:
    topic = draft.topic("t")
    assert topic is not None
    return topic.partitions[index]


def applied(draft: ImageDraft, planned: Planned[T]) -> T:
    draft.apply(planned.records)
    return planned.answer
