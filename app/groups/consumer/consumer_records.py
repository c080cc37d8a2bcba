"""The records of a consumer group, in Kafka's schemas (keys 3 to 8 and 16 of ``__consumer_offsets``).

The state machine (``consumer.py``) uses frozen parts of its state. Each kind of record is one such part; the value None means
that the part is gone. Only ``to_bytes`` and ``from_bytes`` know the schemas.

Tests: ``tests/groups/test_consumer.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from app.coordinator.records import GROUP_RECORDS, CoordinatorRecord
from app.coordinator.schemas.consumer_group import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
)
from app.core.units import TimestampMs
from app.groups.consumer.assignors import NO_PARTITIONS, Assignment
from app.groups.consumer.subscriptions import ResolvedRegex


class MemberState(IntEnum):
    """The progress of a member towards its assignment; numbers as in Kafka's records."""

    STABLE = 0
    """The member has its part of the target assignment of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """The member was told to give up partitions, and has not confirmed it."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that other members have not given up yet."""
    UNKNOWN = 127
    """Written by a newer version."""


@dataclass(frozen=True, slots=True)
class ClassicMetadata:
    """The join data of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Names and subscriptions, in its order of preference."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Identity and subscription of a member."""

    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None


AssignmentEpochs = Mapping["UUID", Mapping[int, int]]
"""Member epochs by topic id and partition."""
NO_EPOCHS: Final[AssignmentEpochs] = {}


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The present assignment of a member."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=lambda: NO_PARTITIONS)
    pending_revocation: Assignment = field(default_factory=lambda: NO_PARTITIONS)
    """Revoked partitions that the member may still read."""
    epochs: AssignmentEpochs = field(default_factory=lambda: NO_EPOCHS)
    """Epochs of assigned and revoked partitions. A partition without an entry has the member's epoch."""

    def epoch_of(self, topic_id: UUID, partition: int) -> int:
        """The epoch at which the member got an assigned or revoked partition (KIP-1251)."""
        return self.epochs.get(topic_id, {}).get(partition, self.member_epoch)

    def left_with(self, member_epoch: int) -> CurrentAssignment:
        """The assignment of a leaving member: it keeps its assigned partitions, and no longer reads the revoked ones."""
        epochs = {
            topic_id: {partition: self.epoch_of(topic_id, partition) for partition in partitions}
            for topic_id, partitions in self.assigned.items()
        }
        return replace(self, member_epoch=member_epoch, pending_revocation=NO_PARTITIONS, epochs=epochs or NO_EPOCHS)

    def has(self, topic_id: UUID, partition: int) -> bool:
        """Whether the member has a partition, or may still read it."""
        return any(partition in of.get(topic_id, ()) for of in (self.assigned, self.pending_revocation))


NOBODY: Final = Subscription()
NOTHING_YET: Final = CurrentAssignment()


class GroupEpoch(NamedTuple):
    """Key 3."""

    epoch: int | None
    """None if the group is gone."""
    metadata_hash: int = 0


class MemberSubscription(NamedTuple):
    """Key 5."""

    member_id: str
    subscription: Subscription | None


class TargetEpoch(NamedTuple):
    """Key 6."""

    epoch: int | None


class TargetOfMember(NamedTuple):
    """Key 7."""

    member_id: str
    partitions: Assignment | None


class CurrentOfMember(NamedTuple):
    """Key 8."""

    member_id: str
    current: CurrentAssignment | None


class RegexTopics(NamedTuple):
    """Key 16."""

    regex: str
    resolved: ResolvedRegex | None


class PartitionMetadata(NamedTuple):
    """Key 4, which Kafka wrote before 4.0 instead of the hash in key 3. Firn knows it in order to skip it."""


ConsumerGroupRecord = (
    GroupEpoch | MemberSubscription | TargetEpoch | TargetOfMember | CurrentOfMember | RegexTopics | PartitionMetadata
)

KEY_TYPES: Final = (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupRegularExpressionKey,
)
"""Keys of consumer groups."""


def to_bytes(group_id: str, record: ConsumerGroupRecord) -> CoordinatorRecord:
    """Encode a record for the append."""
    match record:
        case GroupEpoch(epoch, metadata_hash):
            value: Any = None if epoch is None else ConsumerGroupMetadataValue(epoch, metadata_hash)
            return GROUP_RECORDS.record(ConsumerGroupMetadataKey(group_id), value)
        case MemberSubscription(member_id, subscription):
            value = None if subscription is None else _subscription_value(subscription)
            return GROUP_RECORDS.record(ConsumerGroupMemberMetadataKey(group_id, member_id), value)
        case TargetEpoch(epoch):
            value = None if epoch is None else ConsumerGroupTargetAssignmentMetadataValue(epoch)
            return GROUP_RECORDS.record(ConsumerGroupTargetAssignmentMetadataKey(group_id), value)
        case TargetOfMember(member_id, partitions):
            value = None
            if partitions is not None:
                value = ConsumerGroupTargetAssignmentMemberValue(
                    [TopicPartition(topic_id, sorted(of_topic)) for topic_id, of_topic in partitions.items()]
                )
            return GROUP_RECORDS.record(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), value)
        case CurrentOfMember(member_id, current):
            value = None
            if current is not None:
                value = ConsumerGroupCurrentMemberAssignmentValue(
                    current.member_epoch,
                    current.previous_member_epoch,
                    current.state,
                    _topic_partitions(current, current.assigned),
                    _topic_partitions(current, current.pending_revocation),
                )
            return GROUP_RECORDS.record(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), value)
        case RegexTopics(regex, resolved):
            value = None
            if resolved is not None:
                value = ConsumerGroupRegularExpressionValue(
                    sorted(resolved.topics), resolved.version, resolved.resolved_ms
                )
            return GROUP_RECORDS.record(ConsumerGroupRegularExpressionKey(group_id, regex), value)
        case PartitionMetadata():
            return GROUP_RECORDS.record(ConsumerGroupPartitionMetadataKey(group_id), None)


def from_bytes(key: Any, value: bytes | None) -> ConsumerGroupRecord:
    """The record of a decoded key, one of ``KEY_TYPES``, and an encoded value. Raises: CorruptionError."""
    read = None if value is None else GROUP_RECORDS.decode_value(key, value)
    match key:
        case ConsumerGroupMetadataKey():
            return GroupEpoch(None) if read is None else GroupEpoch(read.epoch, read.metadata_hash)
        case ConsumerGroupMemberMetadataKey():
            return MemberSubscription(key.member_id, None if read is None else _subscription(read))
        case ConsumerGroupTargetAssignmentMetadataKey():
            return TargetEpoch(None if read is None else read.assignment_epoch)
        case ConsumerGroupTargetAssignmentMemberKey():
            return TargetOfMember(key.member_id, None if read is None else _assignment(read.topic_partitions))
        case ConsumerGroupCurrentMemberAssignmentKey():
            return CurrentOfMember(key.member_id, None if read is None else _current(read))
        case ConsumerGroupRegularExpressionKey():
            resolved = None
            if read is not None:
                resolved = ResolvedRegex(frozenset(read.topics), read.version, TimestampMs(read.timestamp))
            return RegexTopics(key.regular_expression, resolved)
    assert isinstance(key, ConsumerGroupPartitionMetadataKey), key
    return PartitionMetadata()


def _subscription_value(subscription: Subscription) -> ConsumerGroupMemberMetadataValue:
    classic = subscription.classic
    return ConsumerGroupMemberMetadataValue(
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topic_names),
        subscribed_topic_regex=subscription.topic_regex,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        server_assignor=subscription.server_assignor,
        classic_member_metadata=(
            None
            if classic is None
            else ClassicMemberMetadata(
                classic.session_timeout_ms, [ClassicProtocol(name, metadata) for name, metadata in classic.protocols]
            )
        ),
    )


def _subscription(value: ConsumerGroupMemberMetadataValue) -> Subscription:
    classic = value.classic_member_metadata
    return Subscription(
        client_id=value.client_id,
        client_host=value.client_host,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        topic_names=frozenset(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=(
            None
            if classic is None
            else ClassicMetadata(
                classic.session_timeout_ms,
                tuple([(protocol.name, protocol.metadata) for protocol in classic.supported_protocols]),
            )
        ),
    )


def _current(value: ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    try:
        state = MemberState(value.state)
    except ValueError:
        state = MemberState.UNKNOWN
    return CurrentAssignment(
        value.member_epoch,
        value.previous_member_epoch,
        state,
        _assignment(value.assigned_partitions),
        _assignment(value.partitions_pending_revocation),
        _epochs([*value.assigned_partitions, *value.partitions_pending_revocation]),
    )


def _topic_partitions(current: CurrentAssignment, assignment: Assignment) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id, ordered, [current.epoch_of(topic_id, partition) for partition in ordered])
        for topic_id, partitions in assignment.items()
        for ordered in (sorted(partitions),)
    ]


def _epochs(topics: Iterable[TopicPartitions]) -> AssignmentEpochs:
    """Epochs of partitions, if written: earlier versions did not write them."""
    found: dict[UUID, dict[int, int]] = {}
    for topic in topics:
        if topic.assignment_epochs and len(topic.assignment_epochs) == len(topic.partitions):
            epochs = zip(topic.partitions, topic.assignment_epochs, strict=True)
            found.setdefault(topic.topic_id, {}).update(epochs)
    return found or NO_EPOCHS


def _assignment(topics: Iterable[TopicPartition | TopicPartitions]) -> Assignment:
    partitions: dict[UUID, frozenset[int]] = {
        topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions
    }
    return partitions or NO_PARTITIONS
