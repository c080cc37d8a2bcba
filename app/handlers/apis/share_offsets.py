"""DescribeShareGroupOffsets (key 90), AlterShareGroupOffsets (91), DeleteShareGroupOffsets (92): the progress of share groups.

Tests: ``tests/broker/test_share_groups.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from app.coordinator.shell import Turn
from app.core.errors import ErrorCode, FirnError, RequestRejected, copy_of, kafka_code
from app.core.turns import Portion, each
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.groups.shard import GroupShard
from app.groups.share.core.share import ShareGroup
from app.groups.share.core.share_records import SharedTopic, SharedTopics
from app.groups.share.core.share_state import NOT_BEGUN, ShareKey
from app.groups.share.core.share_state_wire import StateAnswer
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import may
from app.handlers.base.request import Request
from app.handlers.base.views import SharesView
from app.metadata.image.image import TopicImage
from app.replication.roles import Role
from app.security.acls import Operation, ResourceType
from app.security.noting import note
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from app.wire.apis.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from app.wire.apis.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from app.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from uuid import UUID

# --- DescribeShareGroupOffsets --------------------------------------------------------------------------------------


async def describe(
    context: SharesView, request: Request, message: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Describe each group by itself: the named partitions, or all that it has read, or that members have subscribed to.

    A partition or group that does not exist is described as one that has read nothing, as in Kafka.
    """

    def sees(topic: str) -> bool:
        return may(context, request.caller, Operation.DESCRIBE, ResourceType.TOPIC, topic)

    groups = []
    portion = Portion()
    unknown: list[_Unknown] = []
    for asked in message.groups:
        await portion.rest_if_spent()
        try:
            # The group's leader answers for it.
            shared = context.groups.look(asked.group_id, partial(GroupShard.shared_topics, group_id=asked.group_id))
            groups.append(await _described(context, request, asked, shared, sees, unknown))
        except FirnError as error:
            groups.append(
                DescribeShareGroupOffsetsResponseGroup(
                    group_id=asked.group_id, error_code=kafka_code(error), error_message=str(error)
                )
            )
    if unknown:
        ends = await context.shares.ends.of([one.partition for one in unknown])
        await each(partial(_tell_lag, ends), unknown)
    return DescribeShareGroupOffsetsResponse(groups=groups)


class _Unknown(NamedTuple):
    """A partition without a replica here: its leader is asked for its end."""

    partition: TopicPartition
    answer: DescribeShareGroupOffsetsResponsePartition
    done_count: int


def _tell_lag(ends: Mapping[TopicPartition, Offset], one: _Unknown) -> None:
    end = ends.get(one.partition)
    if end is not None:
        one.answer.lag = max(end - one.answer.start_offset - one.done_count, 0)


async def _described(
    context: SharesView,
    request: Request,
    asked: DescribeShareGroupOffsetsRequestGroup,
    shared: SharedTopics,
    sees: Callable[[str], bool],
    unknown: list[_Unknown],
) -> DescribeShareGroupOffsetsResponseGroup:
    image = context.image
    topics: list[tuple[str, Sequence[int]]]
    if asked.topics is None:
        topics = sorted(
            (topic.name, sorted(topic.partitions))
            for topic_id, topic in shared.items()
            if topic_id in image.topics_by_id and sees(topic.name)
        )
    else:
        topics = [(topic.topic_name, topic.partitions) for topic in asked.topics]
    answer = DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
    portion = Portion()
    for name, partitions in topics:
        await portion.rest_if_spent()
        if not sees(name):
            note(request, Operation.DESCRIBE, ResourceType.TOPIC, name)
            answer.topics.append(_unseen(name, partitions))
            continue
        topic = image.topic(name)
        answer.topics.append(
            DescribeShareGroupOffsetsResponseTopic(
                name,
                ZERO_UUID if topic is None else topic.topic_id,
                await _described_partitions(context, asked.group_id, topic, partitions, unknown),
            )
        )
    return answer


def _unseen(name: str, indexes: Sequence[int]) -> DescribeShareGroupOffsetsResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    partitions = [
        DescribeShareGroupOffsetsResponsePartition(index, error_code=code, error_message="Topic authorization failed.")
        for index in indexes
    ]
    return DescribeShareGroupOffsetsResponseTopic(name, ZERO_UUID, partitions)


async def _described_partitions(
    context: SharesView, group_id: str, topic: TopicImage | None, indexes: Sequence[int], unknown: list[_Unknown]
) -> list[DescribeShareGroupOffsetsResponsePartition]:
    known = [index for index in indexes if topic is not None and 0 <= index < len(topic.partitions)]
    if topic is None or not known:
        return [DescribeShareGroupOffsetsResponsePartition(index, NOT_BEGUN) for index in indexes]
    keys = [ShareKey(group_id, topic.topic_id, index) for index in known]
    found = dict(zip(known, await context.shares.summaries(keys), strict=True))
    return [
        _described_partition(context, topic, index, found[index], unknown)
        if index in found
        else DescribeShareGroupOffsetsResponsePartition(index, NOT_BEGUN)
        for index in indexes
    ]


def _described_partition(
    context: SharesView, topic: TopicImage, index: int, found: StateAnswer, unknown: list[_Unknown]
) -> DescribeShareGroupOffsetsResponsePartition:
    answer = DescribeShareGroupOffsetsResponsePartition(index, NOT_BEGUN)
    if found.state is None:
        answer.error_code, answer.error_message = found.error, found.sentence
        return answer
    start = found.state.start
    partition = context.partitions.get(topic.name, index)
    if start != NOT_BEGUN:
        answer.start_offset = start
        answer.leader_epoch = topic.partitions[index].leader_epoch
        if partition is not None and partition.role in (Role.LEADER, Role.FOLLOWER):
            # A follower's high watermark is a moment old.
            end = partition.log.high_watermark
            answer.lag = (end if partition.leads else max(end, start + found.done_count)) - start - found.done_count
        else:
            unknown.append(_Unknown(TopicPartition(topic.name, PartitionIndex(index)), answer, found.done_count))
    return answer


def refuse_describe(
    request: Request, message: DescribeShareGroupOffsetsRequest, code: ErrorCode, sentence: str
) -> DescribeShareGroupOffsetsResponse:
    del request
    return DescribeShareGroupOffsetsResponse(
        groups=[
            DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, error_code=code, error_message=sentence)
            for asked in message.groups
        ]
    )


# --- AlterShareGroupOffsets -----------------------------------------------------------------------------------------


async def alter(
    context: SharesView, request: Request, message: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Set the offsets at which a group without members goes on. With ``NOT_BEGUN`` it begins anew, as ``share.auto.offset.reset``
    says. A group that does not exist is made.

    Raises: RequestRejected GROUP_ID_NOT_FOUND (a group of another type), NON_EMPTY_GROUP.
    """
    del request
    made = context.groups.perform(message.group_id, lambda shard, turn: shard.make_share_group(turn, message.group_id))
    if made is not None:
        await made
    await _check_empty(context, message.group_id)
    portion = Portion()
    shared = await _that_can_be_set(context, message.topics, portion)

    def remember(shard: GroupShard, turn: Turn) -> None:
        group = shard.share_group(message.group_id)
        _require_empty(group)  # a member may have joined meanwhile
        group.remember(turn, shared)

    kept = context.groups.perform(message.group_id, remember)
    if kept is not None:
        await kept
    return AlterShareGroupOffsetsResponse(
        responses=[await _altered(context, message.group_id, topic, portion) for topic in message.topics]
    )


async def _that_can_be_set(
    context: SharesView, asked: Sequence[AlterShareGroupOffsetsRequestTopic], portion: Portion
) -> SharedTopics:
    """The topics and partitions whose offsets can be set."""
    shared: dict[UUID, tuple[str, set[int]]] = {}
    for named in asked:
        topic = context.image.topic(named.topic_name)
        partitions = set()
        for each_asked in named.partitions:
            if _refusal(topic, each_asked) is None:
                partitions.add(each_asked.partition_index)
            await portion.rest_if_spent()
        if topic is not None and partitions:
            shared.setdefault(topic.topic_id, (topic.name, set()))[1].update(partitions)
        await portion.rest_if_spent()
    return {topic_id: SharedTopic(name, frozenset(partitions)) for topic_id, (name, partitions) in shared.items()}


def _refusal(topic: TopicImage | None, asked: AlterShareGroupOffsetsRequestPartition) -> RequestRejected | None:
    """The error of a request to set an offset, if it has one."""
    if topic is None or not 0 <= asked.partition_index < len(topic.partitions):
        return RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if asked.start_offset < NOT_BEGUN:
        return RequestRejected(ErrorCode.INVALID_REQUEST, "An offset must not be negative.")
    return None


async def _altered(
    context: SharesView, group_id: str, asked: AlterShareGroupOffsetsRequestTopic, portion: Portion
) -> AlterShareGroupOffsetsResponseTopic:
    topic = context.image.topic(asked.topic_name)
    answer = AlterShareGroupOffsetsResponseTopic(asked.topic_name, ZERO_UUID if topic is None else topic.topic_id)
    for partition in asked.partitions:
        outcome = AlterShareGroupOffsetsResponsePartition(partition.partition_index)
        answer.partitions.append(outcome)
        try:
            refused = _refusal(topic, partition)
            if refused is not None:
                raise copy_of(refused)
            assert topic is not None
            context.groups.look(group_id, lambda shard: _require_empty(shard.share_group(group_id)))
            key = ShareKey(group_id, topic.topic_id, partition.partition_index)
            await context.shares.reset(key, partition.start_offset)
        except FirnError as error:
            outcome.error_code, outcome.error_message = kafka_code(error), str(error)
        await portion.rest_if_spent()
    await portion.rest_if_spent()
    return answer


def refuse_alter(
    request: Request, message: AlterShareGroupOffsetsRequest, code: ErrorCode, sentence: str
) -> AlterShareGroupOffsetsResponse:
    del request, message
    return AlterShareGroupOffsetsResponse(error_code=code, error_message=sentence)


def refuse_alter_of_each(
    request: Request, message: AlterShareGroupOffsetsRequest, code: ErrorCode, sentence: str
) -> AlterShareGroupOffsetsResponse:
    del request
    return AlterShareGroupOffsetsResponse(
        responses=[
            AlterShareGroupOffsetsResponseTopic(
                topic.topic_name,
                ZERO_UUID,
                [
                    AlterShareGroupOffsetsResponsePartition(each.partition_index, code, sentence)
                    for each in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


# --- DeleteShareGroupOffsets ----------------------------------------------------------------------------------------


async def delete(
    context: SharesView, request: Request, message: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Have a group without members forget topics. Raises: RequestRejected GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
    del request
    await _check_empty(context, message.group_id)
    answers = []
    for asked in message.topics:
        topic = context.image.topic(asked.topic_name)
        answer = DeleteShareGroupOffsetsResponseTopic(asked.topic_name, ZERO_UUID if topic is None else topic.topic_id)
        answers.append(answer)
        if topic is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        try:
            await _forget(context, message.group_id, topic.topic_id)
        except FirnError as error:
            answer.error_code, answer.error_message = kafka_code(error), str(error)
    return DeleteShareGroupOffsetsResponse(responses=answers)


async def _forget(context: SharesView, group_id: str, topic_id: UUID) -> None:
    """Have a group forget a topic: its progress first, since otherwise no client could ask again for the rest of it.

    Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION if no member has read or subscribed to it; errors of an append.
    """
    topic = context.groups.look(group_id, lambda shard: shard.shared_topics(group_id)).get(topic_id)
    if topic is None:
        raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The group has not read the topic.")
    await context.shares.delete([ShareKey(group_id, topic_id, index) for index in sorted(topic.partitions)])
    forgotten = context.groups.perform(group_id, lambda shard, turn: shard.share_group(group_id).forget(turn, topic_id))
    if forgotten is not None:
        await forgotten


def refuse_delete(
    request: Request, message: DeleteShareGroupOffsetsRequest, code: ErrorCode, sentence: str
) -> DeleteShareGroupOffsetsResponse:
    del request, message
    return DeleteShareGroupOffsetsResponse(error_code=code, error_message=sentence)


def refuse_delete_of_each(
    request: Request, message: DeleteShareGroupOffsetsRequest, code: ErrorCode, sentence: str
) -> DeleteShareGroupOffsetsResponse:
    del request
    return DeleteShareGroupOffsetsResponse(
        responses=[
            DeleteShareGroupOffsetsResponseTopic(topic.topic_name, ZERO_UUID, code, sentence)
            for topic in message.topics
        ]
    )


# --- checks of all requests -----------------------------------------------------------------------------------------


def _require_empty(group: ShareGroup) -> None:
    """Raises: RequestRejected NON_EMPTY_GROUP."""
    if not group.is_empty:
        raise RequestRejected(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")


async def _check_empty(context: SharesView, group_id: str) -> None:
    """Raises: RequestRejected GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
    found = context.groups.perform(group_id, lambda shard, _: shard.share_group(group_id).is_empty)
    is_empty = await found if isinstance(found, Awaitable) else found
    if not is_empty:
        raise RequestRejected(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")


APIS: Final[ApiTable] = {
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Api(describe, refuse_describe),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Api(alter, refuse_alter, refuse_alter_of_each),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Api(delete, refuse_delete, refuse_delete_of_each),
}
