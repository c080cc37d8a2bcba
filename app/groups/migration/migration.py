"""From the classic protocol to the consumer protocol and back, while a group has members (KIP-848, online migration). Pure.

A classic group becomes a consumer group when the first member of the consumer protocol joins. The others keep their partitions,
and stay as members of the classic protocol (``classic_in_consumer.py``). The group becomes classic again when the last member
of the consumer protocol has left and members of the classic protocol remain. ``group.consumer.migration.policy`` allows each
direction.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from uuid import UUID

from app.core.errors import ErrorCode, ProtocolError, RequestRejected, clause
from app.groups.classic.classic import ClassicGroup, members_max
from app.groups.classic.classic_member import CONSUMER_PROTOCOL, ClassicMember
from app.groups.classic.embedded import decode_assignment, decode_subscription, encode_assignment, subscription_version
from app.groups.consumer.assignors import NO_PARTITIONS, Assignment
from app.groups.consumer.consumer import ConsumerGroup
from app.groups.consumer.consumer_records import (
    ClassicMetadata,
    ConsumerGroupRecord,
    CurrentAssignment,
    CurrentOfMember,
    GroupEpoch,
    MemberState,
    MemberSubscription,
    Subscription,
    TargetEpoch,
    TargetOfMember,
    to_bytes,
)
from app.groups.consumer.members import Member
from app.groups.migration.classic_in_consumer import assignment_of, topic_partitions_of

if TYPE_CHECKING:
    from app.configs import BrokerConfig
    from app.metadata.image.image import ClusterImage


def can_upgrade(group: ClassicGroup, config: BrokerConfig) -> bool:
    """Whether a classic group with members may become a consumer group."""
    return (
        config.group_consumer_migration_policy in ("bidirectional", "upgrade")
        and group.protocol_type == CONSUMER_PROTOCOL
        and len(group.members) <= config.group_consumer_max_size
    )


def upgraded(classic: ClassicGroup, config: BrokerConfig, image: ClusterImage) -> ConsumerGroup:
    """A consumer group with the members and the assignment of a classic one. Its first records replace the classic group.

    Raises: RequestRejected GROUP_ID_NOT_FOUND if the members' subscriptions cannot be decoded.
    """
    records: list[ConsumerGroupRecord] = []
    owners: dict[tuple[UUID, int], str] = {}
    try:
        for member in classic.members.values():
            records += _upgraded_member(classic, member, image, owners)
    except ProtocolError as error:
        raise RequestRejected(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade the classic group {classic.group_id} to consumer group because the embedded consumer protocol is "
            f"malformed: {clause(error)}.",
        ) from error
    records += [GroupEpoch(classic.generation), TargetEpoch(classic.generation)]
    group = ConsumerGroup(classic.group_id, config)
    for record in records:
        group.replay(record)
    group.replaces = [classic.tombstone(), *(to_bytes(group.group_id, record) for record in records)]
    return group


def _upgraded_member(
    classic: ClassicGroup, member: ClassicMember, image: ClusterImage, owners: dict[tuple[UUID, int], str]
) -> list[ConsumerGroupRecord]:
    """Raises: ProtocolError."""
    protocol = classic.protocol_name or member.protocols[0][0]
    said = decode_subscription(member.metadata(protocol))
    assigned: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in assignment_of(decode_assignment(member.assignment), image).items():
        # Nothing but good will keeps a client-side assignor from giving a partition to two members.
        own = frozenset(
            [each for each in partitions if owners.setdefault((topic_id, each), member.member_id) == member.member_id]
        )
        if own:
            assigned[topic_id] = own
    subscription = Subscription(
        client_id=member.client_id,
        client_host=member.client_host,
        instance_id=member.instance_id,
        rack_id=said.rack_id,
        topic_names=frozenset(said.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMetadata(member.session_timeout_ms, member.protocols),
    )
    current = CurrentAssignment(classic.generation, classic.generation, MemberState.STABLE, assigned)
    return [
        MemberSubscription(member.member_id, subscription),
        TargetOfMember(member.member_id, assigned),
        CurrentOfMember(member.member_id, current),
    ]


def can_downgrade(group: ConsumerGroup, leaving_id: str | None, config: BrokerConfig) -> bool:
    """Whether a consumer group becomes classic without ``leaving_id``: then only members of the classic protocol are left."""
    left = len(group.members) - (leaving_id in group.members)
    return (
        0 < left <= members_max(config)
        and config.group_consumer_migration_policy in ("bidirectional", "downgrade")
        and all(member.is_classic for member in group.members.values() if member.member_id != leaving_id)
    )


def downgraded(
    group: ConsumerGroup,
    leaving_id: str | None,
    config: BrokerConfig,
    rng: random.Random,
    image: ClusterImage,
    now_ms: int,
) -> ClassicGroup:
    """A classic group with the members of a consumer group except the leaving one, and with their target assignment."""
    members = [
        _downgraded_member(group.group_id, member, group.targets.get(member.member_id, NO_PARTITIONS), image)
        for member in group.members.values()
        if member.member_id != leaving_id
    ]
    return ClassicGroup.from_members(group.group_id, CONSUMER_PROTOCOL, group.epoch, members, config, rng, now_ms)


def _downgraded_member(group_id: str, member: Member, target: Assignment, image: ClusterImage) -> ClassicMember:
    subscription, classic = member.subscription, member.subscription.classic
    assert classic is not None
    version = subscription_version(classic.protocols[0][1])
    return ClassicMember(
        group_id,
        member.member_id,
        subscription.instance_id,
        subscription.client_id,
        subscription.client_host,
        subscription.rebalance_timeout_ms,
        classic.session_timeout_ms,
        classic.protocols,
        encode_assignment(version, topic_partitions_of(target, image)),
    )
