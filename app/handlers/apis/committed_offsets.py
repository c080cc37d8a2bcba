"""OffsetCommit (key 8), OffsetFetch (9), OffsetDelete (47): the committed offsets of groups.

Tests: ``tests/groups/test_broker.py``, ``tests/handlers/test_many_groups.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import STRIDE, Portion
from app.core.units import NO_TOPIC_ID
from app.groups.offsets.offsets import NO_COMMITTED_OFFSET, CommittedOffset
from app.groups.shard import CommittedPartition, GroupShard
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import may
from app.handlers.base.commits import COMMITS, check_count, sort_partitions
from app.handlers.base.request import Request
from app.handlers.base.views import GroupsView
from app.security.acls import Operation, ResourceType
from app.security.noting import note
from app.wire.apikeys import ApiKey
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from app.wire.apis.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from app.wire.apis.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

TOPIC_IDS_FROM: Final = 10
"""First version of OffsetCommit and OffsetFetch that names topics by id (KIP-848)."""
GROUPS_FROM: Final = 8
"""First version of OffsetFetch that asks for many groups (KIP-709)."""
CODE_OF_ALL_FROM: Final = 2
"""First version of OffsetFetch with a code for the whole answer."""

DECODED_AT_ONCE: Final = 500
"""Loaded offsets that are decoded before the clock is looked at. It takes a millisecond."""
OFFSETS_ANSWERED_MAX: Final = 200_000
"""Offsets of one response. With more, the groups that are left are to be asked for again: clients retry those."""

# --- OffsetCommit ---------------------------------------------------------------------------------------------------


def commit(
    context: GroupsView, request: Request, message: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Commit offsets of existing partitions whose metadata is not too long. The others are refused one by one. The records are
    appended when this returns.

    Raises: RequestRejected for the request as a whole.
    """
    by_id = request.api_version >= TOPIC_IDS_FROM
    image = context.image
    metadata_max = context.config.offset_metadata_max_bytes
    commits: list[tuple[str, list[CommittedPartition]]] = []
    response = OffsetCommitResponse()
    for topic in message.topics:
        known = image.topic_by_id(topic.topic_id) if by_id else image.topic(topic.name)
        if known is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(_refused_topic(topic, code))
            continue
        codes, taken = sort_partitions(topic.partitions, len(known.partitions), metadata_max)
        if taken is not None:
            commits.append((known.name, taken))
        answers = [
            OffsetCommitResponsePartition(asked.partition_index, code)
            for asked, code in zip(topic.partitions, codes, strict=True)
        ]
        response.topics.append(OffsetCommitResponseTopic(topic.topic_id, topic.name, answers))
    if not commits:
        return response  # there is nothing that the group would be asked of
    waiting = context.groups.commit(
        message.group_id,
        message.member_id,
        message.group_instance_id,
        message.generation_id_or_member_epoch,
        commits,
        api_version=request.api_version,
        retention_ms=message.retention_time_ms,
    )
    return response if waiting is None else _after(waiting, response)


async def _after(waiting: Awaitable[None], response: OffsetCommitResponse) -> OffsetCommitResponse:
    await waiting
    return response


def _refused_topic(topic: OffsetCommitRequestTopic, code: ErrorCode) -> OffsetCommitResponseTopic:
    partitions = [OffsetCommitResponsePartition(asked.partition_index, code) for asked in topic.partitions]
    return OffsetCommitResponseTopic(topic.topic_id, topic.name, partitions)


def refuse_commit(
    request: Request, message: OffsetCommitRequest, code: ErrorCode, sentence: str
) -> OffsetCommitResponse:
    del request, sentence
    return OffsetCommitResponse(topics=[_refused_topic(topic, code) for topic in message.topics])


# --- OffsetFetch ----------------------------------------------------------------------------------------------------


async def fetch(context: GroupsView, request: Request, message: OffsetFetchRequest) -> OffsetFetchResponse:
    """Answer for each group by itself. Before version 8 there is one group, and its answer has another shape."""
    if request.api_version >= GROUPS_FROM:
        portion = Portion()
        groups = []
        answered = 0
        asked_once: set[str] = set()
        for asked in message.groups:
            if asked.group_id in asked_once:
                continue  # a group is answered once: its first entry counts
            asked_once.add(asked.group_id)
            if answered > OFFSETS_ANSWERED_MAX:
                groups.append(
                    OffsetFetchResponseGroup(group_id=asked.group_id, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                )
                continue
            group = await _fetch_group(context, request, asked, portion, require_stable=message.require_stable)
            groups.append(group)
            answered += sum([len(topic.partitions) for topic in group.topics])
            await portion.rest_if_spent()  # a tool asks for all groups at once
        return OffsetFetchResponse(groups=groups)
    topics = (
        None
        if message.topics is None
        else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in message.topics
        ]
    )
    asked = OffsetFetchRequestGroup(message.group_id, topics=topics)
    group = await _fetch_group(context, request, asked, Portion(), require_stable=message.require_stable)
    return _as_one_group(request, message, group)


async def _fetch_group(
    context: GroupsView, request: Request, asked: OffsetFetchRequestGroup, portion: Portion, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    if not may(context, request.caller, Operation.DESCRIBE, ResourceType.GROUP, asked.group_id):
        note(request, Operation.DESCRIBE, ResourceType.GROUP, asked.group_id)
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        if asked.topics is None:
            await _decode_all(context, asked.group_id, portion)
        reading = _Reading(context, request, asked, require_stable=require_stable)
        while True:
            waiting = context.groups.perform(
                asked.group_id, lambda shard, _: reading.read_some(shard, portion), nameless=True
            )
            if waiting if isinstance(waiting, bool) else await waiting:
                return reading.answer
            await portion.rest()
    except RequestRejected as error:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code)


async def _decode_all(context: GroupsView, group_id: str, portion: Portion) -> None:
    """Decode all offsets of a group. Raises: RequestRejected as ``look``."""
    while True:
        if context.groups.look(group_id, lambda shard: shard.offsets.decode_some(group_id, DECODED_AT_ONCE)):
            return
        await portion.rest_if_spent()


class _Reading:
    """The committed offsets of one group, read in portions. Each portion has the offsets as they are when it is read: offsets of
    several partitions are committed together only for one member, and it does not read meanwhile."""

    def __init__(
        self, context: GroupsView, request: Request, asked: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> None:
        self._context = context
        self._request = request
        self._asked = asked
        self._require_stable = require_stable
        self.answer = OffsetFetchResponseGroup(group_id=asked.group_id)
        self._steps: Generator[None, None, None] | None = None
        self._shard: GroupShard | None = None

    def read_some(self, shard: GroupShard, portion: Portion) -> bool:
        """Read until the portion is spent. Returns: whether all is read.

        Raises: RequestRejected as ``Group.check_offset_fetch``; NOT_COORDINATOR if the group was loaded again meanwhile.
        """
        group = shard.groups.get(self._asked.group_id)
        if group is not None:
            group.check_offset_fetch(self._asked.member_id, self._asked.member_epoch)
        if self._steps is None:
            self._shard = shard
            self._steps = self._read(shard)
        elif shard is not self._shard:
            raise RequestRejected(ErrorCode.NOT_COORDINATOR, f"Group {self._asked.group_id} was loaded again.")
        return all(not portion.spent() for _ in self._steps)

    def _sees(self, topic: str) -> bool:
        return may(self._context, self._request.caller, Operation.DESCRIBE, ResourceType.TOPIC, topic)

    def _read(self, shard: GroupShard) -> Generator[None, None, None]:
        """Fills ``answer``; yields after every few offsets."""
        group_id, answer, image = self._asked.group_id, self.answer, self._context.image
        by_id = self._request.api_version >= TOPIC_IDS_FROM
        if self._asked.topics is None:
            for number, name in enumerate(tuple(shard.offsets.topics(group_id))):
                if number % STRIDE == STRIDE - 1:
                    yield
                topic = image.topic(name)
                if not self._sees(name) or (topic is None and by_id):
                    continue
                found = shard.offsets.topics(group_id).get(name)
                if found is not None:
                    topic_id = NO_TOPIC_ID if topic is None else topic.topic_id
                    yield from self._offsets(shard, OffsetFetchResponseTopics(topic_id, name), tuple(found))
            return
        told: set[object] = set()
        for number, each in enumerate(self._asked.topics):
            if number % STRIDE == STRIDE - 1:
                yield
            key = each.topic_id if by_id else each.name
            wanted = [index for index in dict.fromkeys(each.partition_indexes) if (key, index) not in told]
            if not wanted and each.partition_indexes:
                continue  # all of them are named twice
            told.update([(key, index) for index in wanted])
            topic = image.topic_by_id(each.topic_id) if by_id else None
            code = ErrorCode.NONE
            name = each.name if topic is None else topic.name
            if by_id and topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            elif not self._sees(name):
                note(self._request, Operation.DESCRIBE, ResourceType.TOPIC, name)
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if code:
                partitions = [_no_offset(partition, code) for partition in wanted]
                answer.topics.append(OffsetFetchResponseTopics(each.topic_id, each.name, partitions))
            else:
                yield from self._offsets(shard, OffsetFetchResponseTopics(each.topic_id, name), wanted)

    def _offsets(
        self, shard: GroupShard, topics: OffsetFetchResponseTopics, partitions: Sequence[int]
    ) -> Generator[None, None, None]:
        self.answer.topics.append(topics)
        group_id, offsets = self._asked.group_id, shard.offsets
        for number, partition in enumerate(partitions):
            if self._require_stable and offsets.is_pending(group_id, topics.name, partition):
                topics.partitions.append(_no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                known = offsets.get(group_id, topics.name, partition)
                topics.partitions.append(_offset(partition, known or NO_COMMITTED_OFFSET))
            if number % STRIDE == STRIDE - 1:
                yield


def _offset(partition: int, committed: CommittedOffset) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition, committed.offset, committed.leader_epoch, committed.metadata)


def _no_offset(partition: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition, -1, -1, "", code)


def _as_one_group(
    request: Request, message: OffsetFetchRequest, group: OffsetFetchResponseGroup
) -> OffsetFetchResponse:
    code = ErrorCode(group.error_code)
    if code is not ErrorCode.NONE:
        return refuse_fetch(request, message, code, "")
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                topic.name,
                [
                    OffsetFetchResponsePartition(
                        found.partition_index,
                        found.committed_offset,
                        found.committed_leader_epoch,
                        found.metadata,
                        found.error_code,
                    )
                    for found in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def refuse_fetch(request: Request, message: OffsetFetchRequest, code: ErrorCode, sentence: str) -> OffsetFetchResponse:
    del sentence
    if request.api_version >= GROUPS_FROM:
        return OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in message.groups]
        )
    response = OffsetFetchResponse(error_code=code)
    if request.api_version < CODE_OF_ALL_FROM:
        response.topics = [
            OffsetFetchResponseTopic(
                topic.name,
                [OffsetFetchResponsePartition(partition, -1, -1, "", code) for partition in topic.partition_indexes],
            )
            for topic in message.topics or ()
        ]
    return response


# --- OffsetDelete ---------------------------------------------------------------------------------------------------


async def delete(context: GroupsView, request: Request, message: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete committed offsets of topics that no member of the group reads. Raises: RequestRejected."""
    del request
    image = context.image
    counts = {
        topic.name: len(topic.partitions) for topic in map(image.topic, [t.name for t in message.topics]) if topic
    }

    def code_of(topic: str, partition: int, codes: Mapping[str, ErrorCode]) -> ErrorCode:
        if not 0 <= partition < counts.get(topic, 0):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return codes[topic]

    asked = [(topic.name, [each.partition_index for each in topic.partitions]) for topic in message.topics]
    there = [each for each in asked if each[0] in counts]
    deleted = context.groups.perform(
        message.group_id, lambda shard, turn: shard.delete_offsets(turn, message.group_id, there)
    )
    codes = dict(await deleted if isinstance(deleted, Awaitable) else deleted)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name,
                [OffsetDeleteResponsePartition(partition, code_of(name, partition, codes)) for partition in partitions],
            )
            for name, partitions in asked
        ]
    )


def refuse_delete(
    request: Request, message: OffsetDeleteRequest, code: ErrorCode, sentence: str
) -> OffsetDeleteResponse:
    del request, message, sentence
    return OffsetDeleteResponse(error_code=code)


def refuse_delete_of_each(
    request: Request, message: OffsetDeleteRequest, code: ErrorCode, sentence: str
) -> OffsetDeleteResponse:
    del request, sentence
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                topic.name, [OffsetDeleteResponsePartition(each.partition_index, code) for each in topic.partitions]
            )
            for topic in message.topics
        ]
    )


APIS: Final[ApiTable] = {
    ApiKey.OFFSET_COMMIT: Api(commit, refuse_commit, before=check_count, split=COMMITS._replace(overlaps=True)),
    ApiKey.OFFSET_FETCH: Api(fetch, refuse_fetch),
    ApiKey.OFFSET_DELETE: Api(delete, refuse_delete, refuse_delete_of_each),
}
