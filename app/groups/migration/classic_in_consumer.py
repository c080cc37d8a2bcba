"""Members of the classic protocol in a group whose assignment the broker makes (KIP-848, online migration).

Such a member sends JoinGroup, SyncGroup and Heartbeat, and is reconciled like any other member. A JoinGroup is a heartbeat that
names the owned partitions. Its response comes at once, has the member epoch as generation, and names no leader. SyncGroup
returns the assignment. REBALANCE_IN_PROGRESS in response to a Heartbeat makes the member rejoin, to give up or get partitions.
The member has three time limits: its session, the time to rejoin when it was told to, and the time to request its assignment
after it has joined.

Tests: ``tests/groups/test_migration.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from app.core.errors import ErrorCode, RequestRejected
from app.groups.classic.classic_member import CONSUMER_PROTOCOL, Join, Sync
from app.groups.classic.embedded import (
    ClassicSubscription,
    TopicPartitions,
    decode_subscription,
    encode_assignment,
    subscription_version,
)
from app.groups.consumer.assignors import Assignment
from app.groups.consumer.consumer import ConsumerGroup, MemberDue, successor_of
from app.groups.consumer.consumer_records import ClassicMetadata, MemberState, Subscription
from app.groups.consumer.members import Member
from app.wire.apis.join_group import JoinGroupResponse
from app.wire.apis.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from app.coordinator.shell import Turn
    from app.metadata.image.image import ClusterImage


def join(group: ConsumerGroup, turn: Turn, asked: Join, image: ClusterImage, rng: random.Random) -> JoinGroupResponse:
    """A member joins, or rejoins for its next step.

    Raises: RequestRejected GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID;
    ProtocolError for an unreadable subscription. Then nothing has changed.
    """
    group.check_not_full(asked.member_id)
    if not _supports(group, asked):
        raise RequestRejected(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {asked.member_id}'s protocols are not supported."
        )
    is_new = not asked.member_id
    member_id = asked.member_id or str(UUID(bytes=rng.randbytes(16), version=4))
    if is_new and asked.requires_member_id and asked.instance_id is None:
        return JoinGroupResponse(
            error_code=ErrorCode.MEMBER_ID_REQUIRED,
            generation_id=-1,
            protocol_type=None,
            protocol_name=None,
            member_id=member_id,
        )
    member, replaced = _member_that_joins(group, asked, member_id, is_new=is_new)
    subscription = decode_subscription(asked.protocols[0][1])
    wanted = _subscription(member, asked, subscription)
    owned = assignment_of(subscription.owned, image)
    records, advanced = group.advance(turn, member, replaced, wanted, owned, image)
    group.write(turn, records)
    if replaced is not None:
        group.cancel_timers(turn, replaced.member_id)
    group.cancel(turn, MemberDue.JOIN, member_id)
    group.restart_session(turn, advanced)
    group.limit(turn, MemberDue.SYNC, member_id, asked.rebalance_timeout_ms)
    return JoinGroupResponse(
        generation_id=advanced.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=asked.protocols[0][0],
        member_id=member_id,
    )


def _supports(group: ConsumerGroup, asked: Join) -> bool:
    """Whether all members of the classic protocol still share an assignment protocol."""
    if asked.protocol_type != CONSUMER_PROTOCOL or not asked.protocols:
        return False
    others = [
        {name for name, _ in member.subscription.classic.protocols}
        for member in group.members.values()
        if member.subscription.classic is not None
    ]
    return any(all(name in known for known in others) for name, _ in asked.protocols)


def _member_that_joins(
    group: ConsumerGroup, asked: Join, member_id: str, *, is_new: bool
) -> tuple[Member, Member | None]:
    """The member, and the static member that it replaces. Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if asked.instance_id is None:
        return group.members.get(member_id) or Member(member_id), None
    if not is_new:
        return group.static_member(asked.instance_id, member_id), None
    previous = group.member_of_instance(asked.instance_id)
    if previous is None:
        return Member(member_id), None
    return successor_of(previous, member_id), previous


def _subscription(member: Member, asked: Join, subscription: ClassicSubscription) -> Subscription:
    known = member.subscription
    return Subscription(
        client_id=asked.client_id,
        client_host=asked.client_host,
        instance_id=known.instance_id if asked.instance_id is None else asked.instance_id,
        rack_id=known.rack_id if subscription.rack_id is None else subscription.rack_id,
        topic_names=frozenset(subscription.topics),
        rebalance_timeout_ms=asked.rebalance_timeout_ms,
        server_assignor=known.server_assignor,
        classic=ClassicMetadata(asked.session_timeout_ms, asked.protocols),
    )


def sync(group: ConsumerGroup, turn: Turn, asked: Sync, image: ClusterImage) -> SyncGroupResponse:
    """A member requests its partitions.

    Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
    REBALANCE_IN_PROGRESS.
    """
    member = _classic_member(group, asked.member_id, asked.instance_id, asked.generation)
    classic = member.subscription.classic
    assert classic is not None
    name, metadata = classic.protocols[0]
    if asked.protocol_type not in (None, CONSUMER_PROTOCOL) or asked.protocol_name not in (None, name):
        raise RequestRejected(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member.member_id} has joined with the protocol {name}."
        )
    if (
        group.epoch_within_reach(turn.steady_ms) > member.epoch
        and member.current.state is not MemberState.UNREVOKED_PARTITIONS
    ):
        _tell_to_join(group, turn, member)
    group.cancel(turn, MemberDue.SYNC, member.member_id)
    group.restart_session(turn, member)
    return SyncGroupResponse(
        protocol_type=asked.protocol_type,
        protocol_name=asked.protocol_name,
        assignment=encode_assignment(
            subscription_version(metadata), topic_partitions_of(member.current.assigned, image)
        ),
    )


def heartbeat(group: ConsumerGroup, turn: Turn, member_id: str, instance_id: str | None, generation: int) -> None:
    """A heartbeat of a member.

    Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION; REBALANCE_IN_PROGRESS if the member must
    rejoin, to give up or get partitions.
    """
    member = _classic_member(group, member_id, instance_id, generation)
    group.restart_session(turn, member)
    state = member.current.state
    if (
        member.epoch < group.epoch_within_reach(turn.steady_ms)
        or state is MemberState.UNREVOKED_PARTITIONS
        or (state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
    ):
        _tell_to_join(group, turn, member)


def _tell_to_join(group: ConsumerGroup, turn: Turn, member: Member) -> None:
    """Raises: RequestRejected REBALANCE_IN_PROGRESS."""
    if not group.is_told_to_join(member.member_id):
        group.limit(turn, MemberDue.JOIN, member.member_id, member.subscription.rebalance_timeout_ms)
    raise RequestRejected(
        ErrorCode.REBALANCE_IN_PROGRESS,
        f"A new rebalance is triggered in group {group.group_id} and member {member.member_id} should rejoin to catch up.",
    )


def leave(
    group: ConsumerGroup, turn: Turn, leaving: Iterable[tuple[str, str | None]], image: ClusterImage
) -> list[ErrorCode]:
    """Members leave, by member id or (if it is empty) by instance id. Returns a code for each.

    Raises: RequestRejected if it cannot be written; then no member has left.
    """
    codes: list[ErrorCode] = []
    gone: dict[str, Member] = {}
    for member_id, instance_id in leaving:
        try:
            if instance_id is None:
                member = group.member(member_id)
            elif member_id:
                member = group.static_member(instance_id, member_id)
            else:
                found = group.member_of_instance(instance_id)
                member = group.member("" if found is None else found.member_id)
            _check_classic(member)
        except RequestRejected as error:
            codes.append(error.code)
            continue
        gone[member.member_id] = member
        codes.append(ErrorCode.NONE)
    if gone:
        group.remove(turn, list(gone.values()), image)
    return codes


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    """Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION."""
    member = group.member(member_id) if instance_id is None else group.static_member(instance_id, member_id)
    _check_classic(member)
    if generation != member.epoch:
        raise RequestRejected(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation} is not equal to the member epoch {member.epoch} of member "
            f"{member.member_id}.",
        )
    return member


def _check_classic(member: Member) -> None:
    if not member.is_classic:
        raise RequestRejected(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member.member_id} does not use the classic protocol."
        )


def assignment_of(topics: TopicPartitions, image: ClusterImage) -> Assignment:
    """Convert partitions by topic name, as in the classic protocol, to topic ids. Deleted topics are left out."""
    found: dict[UUID, frozenset[int]] = {}
    for name, partitions in topics:
        topic = image.topic(name)
        if topic is not None and partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(partitions)
    return found


def topic_partitions_of(assignment: Assignment, image: ClusterImage) -> TopicPartitions:
    """Convert partitions by topic id to topic names for members of the classic protocol. Deleted topics are left out."""
    named = ((image.topic_by_id(topic_id), partitions) for topic_id, partitions in assignment.items())
    return sorted((topic.name, tuple(sorted(partitions))) for topic, partitions in named if topic is not None)
