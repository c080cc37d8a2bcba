"""Groups seen from outside: lists them, describes their members and offsets, and moves their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from app.client.cluster import ClusterClient, check_code
from app.client.connection import KafkaConnection
from app.client.retry import backoff_ms, retrying
from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.turns import Portion, Steps, Stepwise, each, ordered, run, slices
from app.core.units import BrokerId, Offset, PartitionIndex, TopicPartition
from app.metadata.image.records import APPEND_LEVEL, LEVEL_FEATURE
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from app.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from app.wire.apis.consumer_group_describe import Member as ConsumerMember
from app.wire.apis.consumer_group_describe import TopicPartitions as ConsumerTopicPartitions
from app.wire.apis.delete_groups import DeleteGroupsRequest
from app.wire.apis.describe_groups import DescribedGroupMember, DescribeGroupsRequest
from app.wire.apis.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.list_groups import ListedGroup as ListGroupsRow
from app.wire.apis.list_groups import ListGroupsRequest
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from app.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from app.wire.apis.share_group_describe import Member as ShareMember
from app.wire.apis.share_group_describe import ShareGroupDescribeRequest
from app.wire.apis.share_group_describe import TopicPartitions as ShareTopicPartitions
from app.wire.private import TopicLagsRequest, TopicLagsResponse, pack, unpack
from app.wire.schema import ZERO_UUID

T = TypeVar("T")

GROUP_KEY: Final = 0
"""Kind of key of FindCoordinator."""
KEYS_IN_A_LIST_FROM: Final = 4
BY_NAME_UNTIL: Final = 9
"""Last version of OffsetCommit and OffsetFetch that names topics; later ones use ids."""
GROUPS_FROM: Final = 8
"""First version of OffsetFetch that asks for many groups. It is used here."""
CONSUMER_TYPE: Final = "consumer"
SHARE_TYPE: Final = "share"
PARTITIONS_A_STEP: Final = 1_000
NO_MEMBER: Final = ("", -1)
"""Id and epoch of a caller that is no member."""
STALE_TRIES_MAX: Final = 5
"""A member's epoch may rise between a commit and its arrival. Then the commit is sent again with the new one."""
CLASSIC_MEMBER: Final = 0
"""``member_type`` of a member of the classic protocol in a consumer group."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


class ListedGroup(NamedTuple):
    """One row of ListGroups."""

    group_id: str
    group_type: str
    """``classic``, ``consumer`` or ``share``; empty from a broker that does not say."""
    protocol_type: str
    state: str
    coordinator: BrokerId


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member, and its assigned partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group as its coordinator describes it."""

    group_id: str
    group_type: str
    state: str
    assignor: str
    """The assignment protocol that is in use; empty if none is."""
    members: tuple[GroupMember, ...]
    protocol_type: str = ""
    """``consumer`` for consumers; empty for a group that only has offsets."""
    mixed: bool = False
    """Whether members of both protocols are in it, while it changes from one to the other."""


class Committed(NamedTuple):
    """A committed offset."""

    offset: Offset
    leader_epoch: int
    metadata: str


class ShareProgress(NamedTuple):
    """How far a share group is in a partition."""

    offset: Offset
    """All records before it are done."""
    lag: int | None
    """Records that are not done; None from a broker that does not say."""


class GroupClient:
    """Questions about groups, and changes of them, over one ``ClusterClient``."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def list_groups(self, types: Collection[str] = ()) -> list[ListedGroup]:
        """Every group of the cluster, by id, or those of some types. Raises: RequestRejected, BrokerUnavailable."""

        async def ask() -> list[ListedGroup]:
            view = await self._cluster.refresh([])
            found: list[ListedGroup] = []
            for node_id in view.brokers:
                found += await self.groups_at(node_id, await self._cluster.broker(node_id), types)
            return await ordered(found, Portion(), lambda group: group)

        return await self._retrying(ask)

    async def groups_at(
        self, node_id: BrokerId, connection: KafkaConnection, types: Collection[str] = ()
    ) -> list[ListedGroup]:
        """The groups that one broker coordinates. Raises: RequestRejected, BrokerUnavailable."""
        answer = await connection.request(ApiKey.LIST_GROUPS, ListGroupsRequest(types_filter=sorted(types)))
        check_code(answer.error_code, None, "groups")
        found: list[ListedGroup] = []

        def add(group: ListGroupsRow) -> None:
            row = ListedGroup(group.group_id, group.group_type, group.protocol_type, group.group_state, node_id)
            if not types or row.group_type.lower() in types:  # an older broker does not know the filter
                found.append(row)

        await each(add, answer.groups)
        return found

    async def topic_lags_at(
        self,
        connection: KafkaConnection,
        ends: Mapping[str, Sequence[int]],
        *,
        limit: int = 0,
        after: str = "",
        partition: int = -1,
    ) -> TopicLagsResponse:
        """How far the groups that one broker coordinates are behind in some topics, whose ``ends`` are those of their partitions.
        With a ``limit`` so many groups of the one topic are named, from the one behind ``after`` on, with their offset in a
        ``partition`` or with those that are furthest behind. Groups and topics that this
        user may not describe are left out.

        Raises: RequestRejected UNSUPPORTED_VERSION by a broker of an older release; BrokerUnavailable, ProtocolError.
        """
        if connection.supported.get(LEVEL_FEATURE, 0) < APPEND_LEVEL:
            raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION, "The broker is too old to sum up the lags of a topic.")
        asked = TopicLagsRequest([(topic, [*own]) for topic, own in ends.items()], limit, after, partition)
        return unpack(TopicLagsResponse, await connection.request(ApiKey.FIRN_TOPIC_LAGS, pack(asked)))

    async def coordinator_of(self, group_id: str) -> BrokerId:
        """The broker that coordinates a group. Raises: RequestRejected, BrokerUnavailable."""
        return await self._retrying(lambda: self._coordinator_id(group_id))

    async def describe_consumer_group(self, group_id: str) -> GroupView:
        """One consumer group, of either protocol. Raises: RequestRejected GROUP_ID_NOT_FOUND; BrokerUnavailable."""

        async def ask() -> GroupView:
            connection = await self._coordinator(group_id)
            try:
                return await _describe_consumer(connection, group_id)
            except RequestRejected as error:
                if error.code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                    raise
            found = await _describe_classic(connection, group_id)
            if found.state.lower() == "dead":  # so versions before 6 say that there is no such group
                raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id}.")
            return found

        return await self._retrying(ask)

    async def describe_share_group(self, group_id: str) -> GroupView:
        """One share group. Raises: RequestRejected GROUP_ID_NOT_FOUND; BrokerUnavailable."""

        async def ask() -> GroupView:
            return await _describe_share(await self._coordinator(group_id), group_id)

        return await self._retrying(ask)

    async def describe(self, group_id: str) -> GroupView:
        """One group, of any type. Raises: RequestRejected GROUP_ID_NOT_FOUND; BrokerUnavailable.

        The coordinator is asked for each type, because a list of its groups to find the type is long.
        """

        async def ask() -> GroupView:
            connection = await self._coordinator(group_id)
            for describe in (_describe_consumer, _describe_share):
                try:
                    return await describe(connection, group_id)
                except RequestRejected as error:
                    if error.code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                        raise
            missing = RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {group_id}.")
            try:
                found = await _describe_classic(connection, group_id)
            except RequestRejected as error:
                raise missing if error.code is ErrorCode.GROUP_ID_NOT_FOUND else error from error
            if found.state.lower() == "dead":  # so versions before 6 say that there is no such group
                raise missing
            return found

        return await self._retrying(ask)

    async def committed(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed]:
        """The offsets that the group has committed, of all partitions or of some. A partition without a commit is left out.

        Raises: RequestRejected, BrokerUnavailable.
        """
        asked: dict[str, OffsetFetchRequestTopics] = {}
        for topic, partition in sorted(partitions or ()):
            asked.setdefault(topic, OffsetFetchRequestTopics(name=topic)).partition_indexes.append(partition)
        wanted = None if partitions is None else list(asked.values())
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=wanted)])
        request.require_stable = partitions is not None

        async def ask() -> dict[TopicPartition, Committed]:
            connection = await self._coordinator(group_id)
            version = min(BY_NAME_UNTIL, connection.version_of(ApiKey.OFFSET_FETCH))
            if version < GROUPS_FROM:
                raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION, "The broker is too old to list a group's offsets.")
            answer = await connection.request(ApiKey.OFFSET_FETCH, request, version=version)
            (group,) = answer.groups
            check_code(group.error_code, None, group_id)
            found: dict[TopicPartition, Committed] = {}
            portion = Portion()
            for topic in group.topics:
                for one in topic.partitions:
                    check_code(one.error_code, None, f"{topic.name}-{one.partition_index}")
                    if one.committed_offset >= 0:
                        place = TopicPartition(topic.name, PartitionIndex(one.partition_index))
                        found[place] = Committed(
                            Offset(one.committed_offset), one.committed_leader_epoch, one.metadata or ""
                        )
                    if portion.spent_by():
                        await portion.rest()
            return found

        return await self._retrying(ask)

    async def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the group's committed offsets. It must have no members.

        Raises: RequestRejected UNKNOWN_MEMBER_ID (it has some), UNKNOWN_TOPIC_OR_PARTITION…; BrokerUnavailable.
        """
        named = {one: (offset, "") for one, offset in offsets.items()}
        await self.commit_as(lambda: NO_MEMBER, group_id, lambda: named)

    async def commit_as(
        self,
        identity: Callable[[], tuple[str, int]],
        group_id: str,
        offsets: Callable[[], Mapping[TopicPartition, tuple[int, str]]],
        ids: Callable[[TopicPartition], UUID | None] = lambda one: None,
    ) -> None:
        """Commit offsets with their metadata for a member.

        ``identity`` gives its id and its epoch before each try, and ``offsets`` what it may commit then: a try with a new epoch
        must not name partitions that other members have got meanwhile. Without offsets nothing is sent. ``ids`` gives the id of a
        partition's topic. If all are known, and the coordinator serves a version with ids, nothing is committed for another topic
        that has taken the name.

        Raises: RequestRejected (UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, OFFSET_METADATA_TOO_LARGE, UNKNOWN_TOPIC_ID,
        UNKNOWN_TOPIC_OR_PARTITION…), BrokerUnavailable.
        """

        names: dict[UUID, str] = {}

        async def try_once() -> OffsetCommitResponse:
            connection = await self._coordinator(group_id)
            version = connection.version_of(ApiKey.OFFSET_COMMIT)
            named = [(one, ids(one), offset) for one, offset in sorted(offsets().items())]
            if any(topic_id is None for _, topic_id, _ in named):
                version = min(BY_NAME_UNTIL, version)
            topics: dict[tuple[str, UUID | None], OffsetCommitRequestTopic] = {}
            for (topic, partition), topic_id, (offset, metadata) in named:
                new = OffsetCommitRequestTopic(topic_id or ZERO_UUID, topic)
                asked = topics.setdefault((topic, topic_id), new)
                asked.partitions.append(OffsetCommitRequestPartition(partition, offset, committed_metadata=metadata))
                if topic_id is not None:
                    names[topic_id] = topic
            if not topics:
                return OffsetCommitResponse()
            member_id, epoch = identity()
            request = OffsetCommitRequest(group_id, epoch, member_id, topics=list(topics.values()))
            answer: OffsetCommitResponse = await connection.request(ApiKey.OFFSET_COMMIT, request, version=version)
            return answer

        async def ask() -> None:
            answer = await try_once()
            for attempt in range(1, STALE_TRIES_MAX):
                if not _has_stale_epoch(answer):
                    break
                await asyncio.sleep(backoff_ms(attempt, self._cluster.rng) / 1000)
                answer = await try_once()
            for topic in answer.topics:
                name = topic.name or names.get(topic.topic_id, "")
                for one in topic.partitions:
                    check_code(one.error_code, None, f"{name}-{one.partition_index}")

        gone = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
        await self._retrying(ask, also_final=gone)

    async def is_share(self, group_id: str) -> bool:
        """Whether there is a share group of that id. Raises: RequestRejected, BrokerUnavailable."""

        async def ask() -> bool:
            connection = await self._coordinator(group_id)
            answer = await connection.request(ApiKey.LIST_GROUPS, ListGroupsRequest())
            check_code(answer.error_code, None, group_id)
            return any(group.group_id == group_id and group.group_type.lower() == SHARE_TYPE for group in answer.groups)

        return await self._retrying(ask)

    async def share_progress(self, group_id: str) -> dict[TopicPartition, ShareProgress]:
        """Every partition that a share group has started. Raises: RequestRejected GROUP_ID_NOT_FOUND…; BrokerUnavailable."""
        request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group_id, topics=None)])

        async def ask() -> dict[TopicPartition, ShareProgress]:
            connection = await self._coordinator(group_id)
            answer = await connection.request(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, request)
            (group,) = answer.groups
            check_code(group.error_code, group.error_message, group_id)
            found: dict[TopicPartition, ShareProgress] = {}
            for topic in group.topics:
                for one in topic.partitions:
                    check_code(one.error_code, one.error_message, f"{topic.topic_name}-{one.partition_index}")
                    if one.start_offset >= 0:
                        partition = TopicPartition(topic.topic_name, PartitionIndex(one.partition_index))
                        lag = one.lag if one.lag >= 0 else None
                        found[partition] = ShareProgress(Offset(one.start_offset), lag)
            return found

        return await self._retrying(ask)

    async def alter_share_progress(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Make a share group start again at these offsets. It must have no members.

        Raises: RequestRejected GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, UNKNOWN_TOPIC_OR_PARTITION…; BrokerUnavailable.
        """
        topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            asked = topics.setdefault(topic, AlterShareGroupOffsetsRequestTopic(topic))
            asked.partitions.append(AlterShareGroupOffsetsRequestPartition(partition, offset))
        request = AlterShareGroupOffsetsRequest(group_id, list(topics.values()))

        async def ask() -> None:
            connection = await self._coordinator(group_id)
            answer = await connection.request(ApiKey.ALTER_SHARE_GROUP_OFFSETS, request)
            check_code(answer.error_code, answer.error_message, group_id)
            for topic in answer.responses:
                for one in topic.partitions:
                    check_code(one.error_code, one.error_message, f"{topic.topic_name}-{one.partition_index}")

        await self._retrying(ask, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets.

        Raises: RequestRejected GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; BrokerUnavailable.
        """

        async def ask() -> None:
            connection = await self._coordinator(group_id)
            answer = await connection.request(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([group_id]))
            (result,) = answer.results
            check_code(result.error_code, None, group_id)

        await self._retrying(ask)

    async def _coordinator(self, group_id: str) -> KafkaConnection:
        """A connection to the broker that coordinates a group. Raises: RequestRejected, BrokerUnavailable."""
        return await self._cluster.broker(await self._coordinator_id(group_id))

    async def _coordinator_id(self, group_id: str) -> BrokerId:
        broker = await self._cluster.any_broker()
        request = FindCoordinatorRequest(key=group_id, key_type=GROUP_KEY, coordinator_keys=[group_id])
        answer = await broker.request(ApiKey.FIND_COORDINATOR, request)
        found = answer.coordinators[0] if answer.coordinators else answer
        check_code(found.error_code, found.error_message, group_id)
        node_id = BrokerId(found.node_id)
        if node_id not in self._cluster.view.brokers:
            await self._cluster.refresh([])
        return node_id

    async def _retrying(self, ask: Callable[[], Awaitable[T]], also_final: Collection[ErrorCode] = frozenset()) -> T:
        async def before_retry(error: FirnError) -> None:
            await self._cluster.refresh([])

        return await retrying(
            ask,
            rng=self._cluster.rng,
            budget_ms=self._cluster.retry_budget_ms,
            before_retry=before_retry,
            also_final=frozenset(also_final),
        )


def _has_stale_epoch(answer: OffsetCommitResponse) -> bool:
    return any(one.error_code == ErrorCode.STALE_MEMBER_EPOCH for topic in answer.topics for one in topic.partitions)


async def _describe_classic(connection: KafkaConnection, group_id: str) -> GroupView:
    answer = await connection.request(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest([group_id]))
    (group,) = answer.groups
    check_code(group.error_code, group.error_message, group_id)
    members: list[GroupMember] = []
    portion = Portion()
    for one in group.members:
        partitions = await run(assigned_partitions.steps(one.member_assignment), portion)
        members.append(_member(one, one.group_instance_id, partitions))
    return GroupView(
        group_id, "classic", group.group_state, group.protocol_data, tuple(members), protocol_type=group.protocol_type
    )


async def _describe_consumer(connection: KafkaConnection, group_id: str) -> GroupView:
    answer = await connection.request(ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest([group_id]))
    (group,) = answer.groups
    check_code(group.error_code, group.error_message, group_id)
    members: list[GroupMember] = []
    portion = Portion()
    for one in group.members:
        partitions = await run(partitions_of(one.assignment.topic_partitions), portion)
        members.append(_member(one, one.instance_id, partitions))
        await portion.rest_if_spent()
    mixed = any(one.member_type == CLASSIC_MEMBER for one in group.members)
    return GroupView(
        group_id, CONSUMER_TYPE, group.group_state, group.assignor_name, tuple(members), CONSUMER_TYPE, mixed=mixed
    )


async def _describe_share(connection: KafkaConnection, group_id: str) -> GroupView:
    answer = await connection.request(ApiKey.SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest([group_id]))
    (group,) = answer.groups
    check_code(group.error_code, group.error_message, group_id)
    members: list[GroupMember] = []
    portion = Portion()
    for one in group.members:
        partitions = await run(partitions_of(one.assignment.topic_partitions), portion)
        members.append(_member(one, None, partitions))
        await portion.rest_if_spent()
    return GroupView(group_id, SHARE_TYPE, group.group_state, group.assignor_name, tuple(members))


def _member(
    described: DescribedGroupMember | ConsumerMember | ShareMember,
    instance_id: str | None,
    partitions: tuple[TopicPartition, ...],
) -> GroupMember:
    return GroupMember(described.member_id, instance_id, described.client_id, described.client_host, partitions)


def partitions_of(
    topics: Iterable[ConsumerTopicPartitions] | Iterable[ShareTopicPartitions],
) -> Steps[tuple[TopicPartition, ...]]:
    """The partitions in a member's assignment, as a coordinator describes it."""
    found: list[TopicPartition] = []
    for topic in topics:
        for some in slices(topic.partitions, PARTITIONS_A_STEP):
            found += [TopicPartition(topic.topic_name, PartitionIndex(partition)) for partition in some]
            yield
    return tuple(found)


@Stepwise
def assigned_partitions(assignment: bytes) -> Steps[tuple[TopicPartition, ...]]:
    """The partitions in an assignment of the consumer protocol. None if it is empty, or of another protocol. A client wrote it, so
    it may be long, and malformed."""
    found: list[TopicPartition] = []
    try:
        (topics_count,) = _INT32.unpack_from(assignment, _INT16.size)
        position = _INT16.size + _INT32.size
        for _ in range(topics_count):
            (length,) = _INT16.unpack_from(assignment, position)
            position += _INT16.size
            if length < 0:
                return ()
            topic = assignment[position : position + length].decode()
            position += length
            (count,) = _INT32.unpack_from(assignment, position)
            position += _INT32.size
            if not 0 <= count <= len(assignment):
                return ()
            for _ in range(count):
                found.append(TopicPartition(topic, PartitionIndex(_INT32.unpack_from(assignment, position)[0])))
                position += _INT32.size
                if not len(found) % PARTITIONS_A_STEP:
                    yield
            yield
    except (StructError, UnicodeDecodeError):
        return ()
    return tuple(found)
