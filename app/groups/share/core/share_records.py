"""Records of a share group's members: Kafka's kinds 10 to 15 of ``__consumer_offsets`` (KIP-932).

As in ``consumer_records.py``, the state machine uses frozen parts of its state. The value None means that a part is gone.

Tests: ``tests/groups/test_share.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from app.coordinator.records import GROUP_RECORDS, CoordinatorRecord
from app.coordinator.schemas.share_group import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
    TopicPartitionsInfo,
)
from app.groups.consumer.assignors import NO_PARTITIONS, Assignment


@dataclass(frozen=True, slots=True)
class ShareSubscription:
    """Identity and subscription of a member."""

    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    topic_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """The present assignment of a member."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    assigned: Assignment = field(default_factory=lambda: NO_PARTITIONS)


class SharedTopic(NamedTuple):
    """A topic in which a group has progress, or is about to begin."""

    name: str
    partitions: frozenset[int]


SharedTopics = Mapping[UUID, SharedTopic]
"""By topic id."""

NO_TOPICS: Final[SharedTopics] = {}


class ShareEpoch(NamedTuple):
    """Kind 11."""

    epoch: int | None
    metadata_hash: int = 0


class ShareMemberSubscription(NamedTuple):
    """Kind 10."""

    member_id: str
    subscription: ShareSubscription | None


class ShareTargetEpoch(NamedTuple):
    """Kind 12."""

    epoch: int | None


class ShareTarget(NamedTuple):
    """Kind 13."""

    member_id: str
    partitions: Assignment | None


class ShareCurrent(NamedTuple):
    """Kind 14."""

    member_id: str
    current: ShareAssignment | None


class ShareTopics(NamedTuple):
    """Kind 15: topics to which members have subscribed since the creation of the group, or whose offsets were set."""

    topics: SharedTopics


ShareGroupRecord = ShareEpoch | ShareMemberSubscription | ShareTargetEpoch | ShareTarget | ShareCurrent | ShareTopics

SHARE_KEY_TYPES: Final = (
    ShareGroupMetadataKey,
    ShareGroupMemberMetadataKey,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupStatePartitionMetadataKey,
)


def to_bytes(group_id: str, record: ShareGroupRecord) -> CoordinatorRecord:
    """Encode a record for the append."""
    value: Any = None
    match record:
        case ShareEpoch(epoch, metadata_hash):
            if epoch is not None:
                value = ShareGroupMetadataValue(epoch, metadata_hash)
            return GROUP_RECORDS.record(ShareGroupMetadataKey(group_id), value)
        case ShareMemberSubscription(member_id, subscription):
            if subscription is not None:
                value = ShareGroupMemberMetadataValue(
                    subscription.rack_id,
                    subscription.client_id,
                    subscription.client_host,
                    sorted(subscription.topic_names),
                )
            return GROUP_RECORDS.record(ShareGroupMemberMetadataKey(group_id, member_id), value)
        case ShareTargetEpoch(epoch):
            if epoch is not None:
                value = ShareGroupTargetAssignmentMetadataValue(epoch)
            return GROUP_RECORDS.record(ShareGroupTargetAssignmentMetadataKey(group_id), value)
        case ShareTarget(member_id, partitions):
            if partitions is not None:
                value = ShareGroupTargetAssignmentMemberValue(
                    [TopicPartition(topic_id, sorted(of_topic)) for topic_id, of_topic in partitions.items()]
                )
            return GROUP_RECORDS.record(ShareGroupTargetAssignmentMemberKey(group_id, member_id), value)
        case ShareCurrent(member_id, current):
            if current is not None:
                value = ShareGroupCurrentMemberAssignmentValue(
                    current.member_epoch,
                    current.previous_member_epoch,
                    0,
                    [TopicPartitions(topic_id, sorted(of_topic)) for topic_id, of_topic in current.assigned.items()],
                )
            return GROUP_RECORDS.record(ShareGroupCurrentMemberAssignmentKey(group_id, member_id), value)
        case ShareTopics(topics):
            if topics:
                value = ShareGroupStatePartitionMetadataValue(
                    initialized_topics=[
                        TopicPartitionsInfo(topic_id, topic.name, sorted(topic.partitions))
                        for topic_id, topic in topics.items()
                    ]
                )
            return GROUP_RECORDS.record(ShareGroupStatePartitionMetadataKey(group_id), value)


def from_bytes(key: Any, value: bytes | None) -> ShareGroupRecord:
    """The record of a decoded key, one of ``SHARE_KEY_TYPES``, and an encoded value. Raises: CorruptionError."""
    read = None if value is None else GROUP_RECORDS.decode_value(key, value)
    match key:
        case ShareGroupMetadataKey():
            return ShareEpoch(None) if read is None else ShareEpoch(read.epoch, read.metadata_hash)
        case ShareGroupMemberMetadataKey():
            subscription = None
            if read is not None:
                subscription = ShareSubscription(
                    read.client_id, read.client_host, read.rack_id, frozenset(read.subscribed_topic_names)
                )
            return ShareMemberSubscription(key.member_id, subscription)
        case ShareGroupTargetAssignmentMetadataKey():
            return ShareTargetEpoch(None if read is None else read.assignment_epoch)
        case ShareGroupTargetAssignmentMemberKey():
            return ShareTarget(key.member_id, None if read is None else _assignment(read.topic_partitions))
        case ShareGroupStatePartitionMetadataKey():
            if read is None:
                return ShareTopics(NO_TOPICS)
            return ShareTopics(
                {
                    topic.topic_id: SharedTopic(topic.topic_name, frozenset(topic.partitions))
                    for topic in read.initialized_topics
                }
            )
    assert isinstance(key, ShareGroupCurrentMemberAssignmentKey), key
    current = None
    if read is not None:
        current = ShareAssignment(read.member_epoch, read.previous_member_epoch, _assignment(read.assigned_partitions))
    return ShareCurrent(key.member_id, current)


def _assignment(topics: list[Any]) -> Assignment:
    partitions: dict[UUID, frozenset[int]] = {
        topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions
    }
    return partitions or NO_PARTITIONS
