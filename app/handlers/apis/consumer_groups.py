"""ConsumerGroupHeartbeat (key 68) and ConsumerGroupDescribe (key 69): groups whose assignment the broker makes (KIP-848).

Tests: ``tests/handlers/test_many_groups.py``, ``tests/groups/test_broker.py``.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from app.coordinator.shell import Turn
from app.core.errors import ErrorCode
from app.core.turns import Portion, Steps, run
from app.groups.consumer.assignors import NO_PARTITIONS, Assignment
from app.groups.consumer.consumer import ClientInfo, ConsumerGroup, check_heartbeat
from app.groups.consumer.members import Member as GroupMember
from app.groups.consumer.subscriptions import ResolvedRegex, TopicPattern
from app.groups.shard import GroupShard
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import GROUP_OPERATIONS, NOT_ASKED, may, operations
from app.handlers.base.group_requests import client_host, describe_each
from app.handlers.base.request import Request
from app.handlers.base.views import GroupsView
from app.metadata.image.image import ClusterImage, TopicImage
from app.security.acls import Operation, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.consumer_group_describe import (
    Assignment as DescribedAssignment,
)
from app.wire.apis.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from app.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

if TYPE_CHECKING:
    from uuid import UUID

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1

# --- ConsumerGroupHeartbeat -----------------------------------------------------------------------------------------


def heartbeat(
    context: GroupsView, request: Request, message: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """A member of a group joins, goes on, or leaves. Raises: RequestRejected."""
    check_heartbeat(message, request.api_version, context.groups.config().group_consumer_assignors)
    if not message.member_id:
        message.member_id = new_member_id(context.rng)
    client = ClientInfo(request.client_id or "", client_host(request), _sees(context, request))

    def event(shard: GroupShard, turn: Turn) -> ConsumerGroupHeartbeatResponse | TopicPattern:
        return shard.consumer_heartbeat(turn, message, client)

    found = context.groups.perform(message.group_id, event)
    if isinstance(found, ConsumerGroupHeartbeatResponse):
        return found
    return _heartbeat_later(context, message, client, found)


async def _heartbeat_later(
    context: GroupsView,
    message: ConsumerGroupHeartbeatRequest,
    client: ClientInfo,
    found: TopicPattern | Awaitable[ConsumerGroupHeartbeatResponse | TopicPattern],
) -> ConsumerGroupHeartbeatResponse:
    """Wait until the state behind the response is stored, or until an expression was matched against very many topics."""
    answer = found if isinstance(found, TopicPattern) else await found
    while isinstance(answer, TopicPattern):
        pattern, image, now_ms = answer, context.image, context.clock.now_ms()
        resolved = await context.pool.run(lambda p=pattern, i=image, n=now_ms: p.resolve(i, n))  # type: ignore[misc]
        resolved = resolved.seen_by(client.sees)

        def event(
            shard: GroupShard, turn: Turn, resolved: ResolvedRegex = resolved
        ) -> ConsumerGroupHeartbeatResponse | TopicPattern:
            return shard.consumer_heartbeat(turn, message, client, resolved)

        again = context.groups.perform(message.group_id, event)
        answer = again if isinstance(again, (ConsumerGroupHeartbeatResponse, TopicPattern)) else await again
    return answer


def _sees(context: GroupsView, request: Request) -> Callable[[str], bool] | None:
    """Returns a function that decides whether the caller may describe a topic; None if it may describe every topic."""
    if context.authorizer is None:
        return None
    return lambda topic: may(context, request.caller, Operation.DESCRIBE, ResourceType.TOPIC, topic)


def new_member_id(rng: random.Random) -> str:
    """As Kafka writes a random UUID: 22 characters of base64."""
    return base64.urlsafe_b64encode(rng.randbytes(16)).rstrip(b"=").decode()


def refuse_heartbeat(
    request: Request, message: ConsumerGroupHeartbeatRequest, code: ErrorCode, sentence: str
) -> ConsumerGroupHeartbeatResponse:
    del request, message
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=sentence)


# --- ConsumerGroupDescribe ------------------------------------------------------------------------------------------


async def describe(
    context: GroupsView, request: Request, message: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe each group by itself, with every member's present and target assignment."""
    found = await describe_each(
        context,
        message.group_ids,
        lambda shard, group_id: _seen(shard.consumer_group(group_id)),
        lambda group_id, error: DescribedGroup(error_code=error.code, error_message=str(error), group_id=group_id),
    )
    groups: list[DescribedGroup] = []
    portion = Portion()
    for one in found:
        groups.append(one if isinstance(one, DescribedGroup) else await run(_described(one, context.image), portion))
        await portion.rest_if_spent()
    for answer in groups:
        if message.include_authorized_operations and not answer.error_code:
            answer.authorized_operations = operations(
                context, request.caller, ResourceType.GROUP, answer.group_id, GROUP_OPERATIONS
            )
        else:
            answer.authorized_operations = NOT_ASKED
    return ConsumerGroupDescribeResponse(groups=groups)


class _Seen(NamedTuple):
    """A group at one moment. Its members never change, so they are described later, in portions."""

    described: DescribedGroup
    members: list[GroupMember]
    targets: dict[str, Assignment]


def _seen(group: ConsumerGroup) -> _Seen:
    described = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor_with(),
    )
    return _Seen(described, list(group.members.values()), dict(group.targets))


def _described(seen: _Seen, image: ClusterImage) -> Steps[DescribedGroup]:
    names: dict[frozenset[str], list[str]] = {}
    for member in seen.members:
        known = member.subscription.topic_names
        if known not in names:
            names[known] = sorted(known)
        target = seen.targets.get(member.member_id, NO_PARTITIONS)
        seen.described.members.append(_described_member(member, names[known], target, image.topics_by_id))
        yield
    return seen.described


def _described_member(
    member: GroupMember, names: list[str], target: Assignment, topics: Mapping[UUID, TopicImage]
) -> Member:
    subscription = member.subscription
    return Member(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=names,
        subscribed_topic_regex=subscription.topic_regex or "",
        assignment=_described_assignment(member.current.assigned, topics),
        target_assignment=_described_assignment(target, topics),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _described_assignment(assignment: Assignment, topics: Mapping[UUID, TopicImage]) -> DescribedAssignment:
    """Topics that are gone have no name any more, and are left out."""
    return DescribedAssignment(
        [
            TopicPartitions(topic_id, topics[topic_id].name, sorted(partitions))
            for topic_id, partitions in assignment.items()
            if topic_id in topics
        ]
    )


def refuse_describe(
    request: Request, message: ConsumerGroupDescribeRequest, code: ErrorCode, sentence: str
) -> ConsumerGroupDescribeResponse:
    del request
    return ConsumerGroupDescribeResponse(
        groups=[DescribedGroup(error_code=code, error_message=sentence, group_id=name) for name in message.group_ids]
    )


APIS: Final[ApiTable] = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(heartbeat, refuse_heartbeat),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(describe, refuse_describe),
}
