"""ShareGroupHeartbeat (key 76) and ShareGroupDescribe (key 77): the members of share groups (KIP-932).

Tests: ``tests/broker/test_share_groups.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from app.coordinator.shell import Turn
from app.core.errors import ErrorCode, FirnError
from app.groups.consumer.consumer import ClientInfo
from app.groups.shard import GroupShard
from app.groups.share.core.share import SIMPLE, ShareGroup, check_share_heartbeat
from app.groups.share.core.share_records import SharedTopics
from app.groups.share.core.share_state import ShareKey
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import GROUP_OPERATIONS, NOT_ASKED, operations
from app.handlers.base.group_requests import client_host, describe_each
from app.handlers.base.request import Request
from app.handlers.base.views import SharesView
from app.metadata.image.image import ClusterImage
from app.security.acls import ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    TopicPartitions,
)
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

STATES_WAIT_S: Final = 3.0
"""How long the response to a heartbeat waits until the states of subscribed topics are made. If they are not, the next heartbeat
tries again."""

Beat = tuple[ShareGroupHeartbeatResponse, SharedTopics | None]
"""The response, and topics whose states must be made."""


def heartbeat(
    context: SharesView, request: Request, message: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
    """A member of a share group joins, goes on, or leaves. Raises: RequestRejected."""
    check_share_heartbeat(message)
    client = ClientInfo(request.client_id or "", client_host(request))

    def beat(shard: GroupShard, turn: Turn) -> Beat:
        return shard.share_heartbeat(turn, message, client), shard.topics_without_states(message.group_id)

    found = context.groups.perform(message.group_id, beat)
    if isinstance(found, tuple) and found[1] is None:
        return found[0]
    return _with_states(context, message.group_id, found)


async def _with_states(
    context: SharesView, group_id: str, found: Beat | Awaitable[Beat]
) -> ShareGroupHeartbeatResponse:
    """Make the states of subscribed topics before a member is told of its partitions, so that it can read them at once (H4)."""
    response, topics = found if isinstance(found, tuple) else await found
    if topics is not None:
        image = context.image
        keys = [
            ShareKey(group_id, topic_id, index)
            for topic_id, topic in topics.items()
            if topic_id in image.topics_by_id
            for index in sorted(topic.partitions)
        ]
        try:
            await context.shares.create(keys, timeout_s=STATES_WAIT_S)
            context.groups.look(group_id, lambda shard: shard.note_states(group_id, topics))
        except FirnError as error:
            context.faults.met_error("making states of share group", group_id, error)
    return response


def refuse_heartbeat(
    request: Request, message: ShareGroupHeartbeatRequest, code: ErrorCode, sentence: str
) -> ShareGroupHeartbeatResponse:
    del request, message
    return ShareGroupHeartbeatResponse(error_code=code, error_message=sentence)


async def describe(
    context: SharesView, request: Request, message: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """Describe each group by itself, with the subscription and the partitions of every member."""
    groups = await describe_each(
        context,
        message.group_ids,
        lambda shard, group_id: _described(shard.share_group(group_id), context.image),
        lambda group_id, error: DescribedGroup(error_code=error.code, error_message=str(error), group_id=group_id),
    )
    for answer in groups:
        if message.include_authorized_operations and not answer.error_code:
            answer.authorized_operations = operations(
                context, request.caller, ResourceType.GROUP, answer.group_id, GROUP_OPERATIONS
            )
        else:
            answer.authorized_operations = NOT_ASKED
    return ShareGroupDescribeResponse(groups=groups)


def _described(group: ShareGroup, image: ClusterImage) -> DescribedGroup:
    topics = image.topics_by_id
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=SIMPLE,
        members=[
            Member(
                member_id=member.member_id,
                rack_id=member.subscription.rack_id,
                member_epoch=member.current.member_epoch,
                client_id=member.subscription.client_id,
                client_host=member.subscription.client_host,
                subscribed_topic_names=sorted(member.subscription.topic_names),
                assignment=Assignment(
                    [
                        TopicPartitions(topic_id, topics[topic_id].name, sorted(partitions))
                        for topic_id, partitions in member.current.assigned.items()
                        if topic_id in topics
                    ]
                ),
            )
            for member in group.members.values()
        ],
    )


def refuse_describe(
    request: Request, message: ShareGroupDescribeRequest, code: ErrorCode, sentence: str
) -> ShareGroupDescribeResponse:
    del request
    return ShareGroupDescribeResponse(
        groups=[DescribedGroup(error_code=code, error_message=sentence, group_id=name) for name in message.group_ids]
    )


APIS: Final[ApiTable] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: Api(heartbeat, refuse_heartbeat),
    ApiKey.SHARE_GROUP_DESCRIBE: Api(describe, refuse_describe),
}
