"""JoinGroup (key 11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), DescribeGroups (15), ListGroups (16), DeleteGroups (42),
and FirnTopicLags.

These requests come from members of the classic protocol; their groups are in ``app/groups/classic/classic.py``. Groups of
every type are listed, described and deleted.

Tests: ``tests/handlers/test_many_groups.py``, ``tests/groups/test_broker.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import msgspec

from app.coordinator.shell import Reply, Turn
from app.core.errors import ErrorCode, ProtocolError, RequestRejected
from app.core.turns import Portion, run
from app.groups.classic.classic import ClassicGroup, ClassicState, refused_join
from app.groups.classic.classic_member import Join, Sync
from app.groups.group import Group, GroupType
from app.groups.shard import GroupShard
from app.groups.share.core.share_state import ShareKey
from app.groups.topic_lags import topic_lags_steps
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import GROUP_OPERATIONS, judge, operations
from app.handlers.base.group_requests import client_host, describe_each
from app.handlers.base.request import Request
from app.handlers.base.views import GroupsView
from app.security.acls import Operation, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from app.wire.apis.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from app.wire.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from app.wire.apis.join_group import JoinGroupRequest, JoinGroupResponse
from app.wire.apis.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from app.wire.apis.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from app.wire.apis.sync_group import SyncGroupRequest, SyncGroupResponse
from app.wire.private import LAG_ENDS_MAX, TopicLagsRequest, TopicLagsResponse, pack, unpack

MEMBER_ID_REQUIRED_FROM: Final = 4
"""First version of JoinGroup in which a new member is given its id before it joins (KIP-394)."""
NULL_PROTOCOL_FROM: Final = 7
"""First version of JoinGroup whose answer may have no protocol name."""
SKIP_ASSIGNMENT_FROM: Final = 9
"""First version of JoinGroup that can tell a leader to leave the assignment alone (KIP-814)."""
PROTOCOL_FROM: Final = 5
"""First version of SyncGroup that must say the protocol (KIP-559)."""
MEMBERS_FROM: Final = 3
"""First version of LeaveGroup with many members (KIP-345)."""
NOT_FOUND_FROM: Final = 6
"""First version of DescribeGroups that says GROUP_ID_NOT_FOUND instead of describing a dead group (KIP-1043)."""

# --- JoinGroup ------------------------------------------------------------------------------------------------------


async def join(context: GroupsView, request: Request, message: JoinGroupRequest) -> JoinGroupResponse:
    """Wait until the group has all its members. Raises: RequestRejected."""
    if not message.group_id:
        raise RequestRejected(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
    config = context.groups.config()
    shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not shortest <= message.session_timeout_ms <= longest:
        raise RequestRejected(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"A session timeout of {message.session_timeout_ms} ms is not within [{shortest}, {longest}].",
        )
    version = request.api_version
    asked = Join(
        member_id=message.member_id,
        instance_id=message.group_instance_id,
        protocol_type=message.protocol_type,
        protocols=tuple([(protocol.name, protocol.metadata) for protocol in message.protocols]),
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=(
            message.session_timeout_ms if message.rebalance_timeout_ms == -1 else message.rebalance_timeout_ms
        ),
        client_id=request.client_id or "",
        client_host=client_host(request),
        requires_member_id=version >= MEMBER_ID_REQUIRED_FROM,
        can_skip_assignment=version >= SKIP_ASSIGNMENT_FROM,
    )

    def event(shard: GroupShard, turn: Turn, reply: Reply[JoinGroupResponse]) -> None:
        try:
            shard.join(turn, message.group_id, asked, reply)
        except (RequestRejected, ProtocolError) as error:
            turn.answer(reply, refused_join(error.code, message.member_id))

    answer: JoinGroupResponse = await context.groups.request(message.group_id, event)
    if version < NULL_PROTOCOL_FROM and answer.protocol_name is None:
        answer.protocol_name = ""
    return answer


def refuse_join(request: Request, message: JoinGroupRequest, code: ErrorCode, sentence: str) -> JoinGroupResponse:
    del sentence
    answer = refused_join(code, message.member_id)
    if request.api_version < NULL_PROTOCOL_FROM:
        answer.protocol_name = ""
    return answer


# --- SyncGroup ------------------------------------------------------------------------------------------------------


async def sync(context: GroupsView, request: Request, message: SyncGroupRequest) -> SyncGroupResponse:
    """Wait until the leader has brought the assignment. Raises: RequestRejected."""
    if request.api_version >= PROTOCOL_FROM and (message.protocol_type is None or message.protocol_name is None):
        raise RequestRejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "SyncGroup does not say the protocol.")
    asked = Sync(
        member_id=message.member_id,
        instance_id=message.group_instance_id,
        generation=message.generation_id,
        protocol_type=message.protocol_type,
        protocol_name=message.protocol_name,
        assignments=[(each.member_id, each.assignment) for each in message.assignments],
    )
    return await context.groups.request(
        message.group_id, lambda shard, turn, reply: shard.sync(turn, message.group_id, asked, reply)
    )


def refuse_sync(request: Request, message: SyncGroupRequest, code: ErrorCode, sentence: str) -> SyncGroupResponse:
    del request, message, sentence
    return SyncGroupResponse(error_code=code)


def refuse_long_sync(request: Request) -> SyncGroupResponse:
    """Refuse assignments that are too long for a request, even if ``max.message.bytes`` allows their record. The code is the one
    for assignments that are too long for their record."""
    del request
    return SyncGroupResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


# --- Heartbeat ------------------------------------------------------------------------------------------------------


def heartbeat(
    context: GroupsView, request: Request, message: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    """Raises: RequestRejected."""
    del request

    def event(shard: GroupShard, turn: Turn) -> HeartbeatResponse:
        shard.heartbeat(turn, message.group_id, message.member_id, message.group_instance_id, message.generation_id)
        return HeartbeatResponse()

    return context.groups.perform(message.group_id, event)


def refuse_heartbeat(request: Request, message: HeartbeatRequest, code: ErrorCode, sentence: str) -> HeartbeatResponse:
    del request, message, sentence
    return HeartbeatResponse(error_code=code)


# --- LeaveGroup -----------------------------------------------------------------------------------------------------


def leave(
    context: GroupsView, request: Request, message: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    """Raises: RequestRejected."""
    many = request.api_version >= MEMBERS_FROM
    members = message.members if many else [MemberIdentity(member_id=message.member_id)]

    def event(shard: GroupShard, turn: Turn) -> LeaveGroupResponse:
        leaving = [(member.member_id, member.group_instance_id) for member in members]
        codes = shard.leave(turn, message.group_id, leaving)
        if not many:
            return LeaveGroupResponse(error_code=codes[0])
        return LeaveGroupResponse(
            members=[
                MemberResponse(member.member_id, member.group_instance_id, code)
                for member, code in zip(members, codes, strict=True)
            ]
        )

    return context.groups.perform(message.group_id, event)


def refuse_leave(request: Request, message: LeaveGroupRequest, code: ErrorCode, sentence: str) -> LeaveGroupResponse:
    del sentence
    if code is ErrorCode.UNKNOWN_MEMBER_ID and request.api_version >= MEMBERS_FROM:
        return LeaveGroupResponse(
            members=[MemberResponse(member.member_id, member.group_instance_id, code) for member in message.members]
        )
    return LeaveGroupResponse(error_code=code)


# --- DescribeGroups -------------------------------------------------------------------------------------------------


async def describe(context: GroupsView, request: Request, message: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe each group of the classic protocol by itself."""
    groups = await describe_each(
        context,
        message.groups,
        _describe,
        lambda group_id, error: _undescribed(request, group_id, error.code, str(error)),
        nameless=True,
    )
    for answer in groups:
        if message.include_authorized_operations and not answer.error_code:
            answer.authorized_operations = operations(
                context, request.caller, ResourceType.GROUP, answer.group_id, GROUP_OPERATIONS
            )
    return DescribeGroupsResponse(groups=groups)


def _describe(shard: GroupShard, group_id: str) -> DescribedGroup:
    """Raises: RequestRejected GROUP_ID_NOT_FOUND, also for a group of another protocol."""
    group = shard.group(group_id)
    if not isinstance(group, ClassicGroup):
        raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
    stable = group.state is ClassicState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[
            DescribedGroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol_name) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in group.members.values()
        ],
    )


def _undescribed(request: Request, group_id: str, code: ErrorCode, sentence: str) -> DescribedGroup:
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        if request.api_version < NOT_FOUND_FROM:
            return DescribedGroup(group_id=group_id, group_state="Dead")
        return DescribedGroup(error_code=code, error_message=sentence, group_id=group_id, group_state="Dead")
    return DescribedGroup(error_code=code, error_message=sentence, group_id=group_id)


def refuse_describe(
    request: Request, message: DescribeGroupsRequest, code: ErrorCode, sentence: str
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[_undescribed(request, name, code, sentence) for name in message.groups])


# --- ListGroups -----------------------------------------------------------------------------------------------------


async def list_groups(context: GroupsView, request: Request, message: ListGroupsRequest) -> ListGroupsResponse:
    """The groups that this broker coordinates; states and types as filters are not sensitive to case.

    Groups of a partition that cannot be read are left out, as in Kafka.

    Raises: RequestRejected COORDINATOR_LOAD_IN_PROGRESS while some of them are not known yet.
    """
    del request
    if context.groups.shell.being_read:
        raise RequestRejected(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Groups are being read.")
    states = {state.lower() for state in message.states_filter}
    types = {kind.lower() for kind in message.types_filter}

    def is_wanted(group: Group) -> bool:
        return (not states or group.state.lower() in states) and (not types or group.group_type.lower() in types)

    listed: list[ListedGroup] = []
    portion = Portion()
    for _, shard in context.groups.shell.shards():
        for group_id in tuple(shard.groups):
            group = shard.groups.get(group_id)
            if group is not None and is_wanted(group):
                listed.append(ListedGroup(group_id, group.protocol_type, group.state, group.group_type))
            if portion.spent_by():
                await portion.rest()
    return ListGroupsResponse(groups=listed)


def refuse_list(request: Request, message: ListGroupsRequest, code: ErrorCode, sentence: str) -> ListGroupsResponse:
    del request, message, sentence
    return ListGroupsResponse(error_code=code)


# --- DeleteGroups ---------------------------------------------------------------------------------------------------


async def delete(context: GroupsView, request: Request, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete each group by itself, with its offsets."""
    del request
    results = []
    portion = Portion()
    for group_id in dict.fromkeys(message.groups_names):
        code = ErrorCode.NONE
        try:
            await _delete(context, group_id)
        except RequestRejected as error:
            code = error.code
        results.append(DeletableGroupResult(group_id, code))
        await portion.rest_if_spent()  # each may have a thousand tombstones to write
    return DeleteGroupsResponse(results=results)


async def _delete(context: GroupsView, group_id: str) -> None:
    """Delete a group: a share group's progress first, since without the group no client could delete the rest of it.

    Raises: RequestRejected.
    """
    group = context.groups.look(group_id, lambda shard: shard.empty_group(group_id))
    if group.group_type is GroupType.SHARE:
        topics = context.groups.look(group_id, lambda shard: shard.shared_topics(group_id))
        await context.shares.delete(
            ShareKey(group_id, topic_id, index) for topic_id, topic in topics.items() for index in topic.partitions
        )

    deleted = context.groups.perform(group_id, lambda shard, turn: shard.delete_group(turn, group_id), nameless=True)
    if deleted is not None:
        await deleted


def refuse_delete(
    request: Request, message: DeleteGroupsRequest, code: ErrorCode, sentence: str
) -> DeleteGroupsResponse:
    del request, sentence
    return DeleteGroupsResponse(results=[DeletableGroupResult(name, code) for name in message.groups_names])


# --- FirnTopicLags --------------------------------------------------------------------------------------------------


async def topic_lags(context: GroupsView, request: Request, message: bytes) -> bytes:
    """FirnTopicLags: how far the groups that this broker coordinates are behind in some topics. Raises: ProtocolError."""
    asked = unpack(TopicLagsRequest, message)
    if sum(len(ends) for _, ends in asked.ends) > LAG_ENDS_MAX:
        raise ProtocolError(f"A FirnTopicLags request names {LAG_ENDS_MAX} partitions at most.")
    sees_topic = judge(context, request.caller, Operation.DESCRIBE, ResourceType.TOPIC)
    seen = [(topic, ends) for topic, ends in asked.ends if sees_topic(topic)]
    if asked.limit and seen != asked.ends:
        return pack(TopicLagsResponse())  # the groups of the first topic are asked for, which may be another one now

    def sees(group_id: str) -> bool:
        # The authorizer keeps its judge until the rules change.
        return judge(context, request.caller, Operation.DESCRIBE, ResourceType.GROUP)(group_id)

    shell = context.groups.shell
    wanted = msgspec.structs.replace(asked, ends=seen)
    answer = await run(topic_lags_steps(wanted, (shard for _, shard in shell.shards()), sees))
    return pack(msgspec.structs.replace(answer, whole=False) if shell.being_read else answer)


def refuse_topic_lags(request: Request, message: bytes, code: ErrorCode, sentence: str) -> None:
    return None


APIS: Final[ApiTable] = {
    ApiKey.FIRN_TOPIC_LAGS: Api(topic_lags, refuse_topic_lags),
    ApiKey.JOIN_GROUP: Api(join, refuse_join),
    ApiKey.HEARTBEAT: Api(heartbeat, refuse_heartbeat),
    ApiKey.LEAVE_GROUP: Api(leave, refuse_leave),
    ApiKey.SYNC_GROUP: Api(sync, refuse_sync, refuse_long=refuse_long_sync),
    ApiKey.DESCRIBE_GROUPS: Api(describe, refuse_describe),
    ApiKey.LIST_GROUPS: Api(list_groups, refuse_list),
    ApiKey.DELETE_GROUPS: Api(delete, refuse_delete),
}
