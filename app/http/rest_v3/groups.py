"""Consumer groups of REST v3: members, assignments, and how far the groups are behind (lags).

Lags are asked of the leaders of partitions, ``PARTITIONS_ASKED_MAX`` at a time.

Tests: ``tests/http/rest_v3/test_groups.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import LATEST
from app.client.groups import CONSUMER_TYPE, Committed, GroupMember, GroupView, ListedGroup
from app.core.turns import Portion, each, ordered, slices
from app.core.units import BrokerId, PartitionIndex, TopicPartition
from app.http.bodies import json_response
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.rest_v3.resources import (
    PAGED,
    Related,
    RestResource,
    checked,
    described,
    escaped,
    listed,
    long_list,
    metadata,
    next_link,
    page_list,
    page_of,
    part_of,
    related,
    text_of,
)

router = APIRouter(prefix="/v3/clusters", default_response_class=Response, tags=["Consumer Group (v3)"])

CLASSIC_TYPE: Final = "classic"
PARTITIONS_ASKED_MAX: Final = 500
"""Partitions whose ends are asked for by one call. Finding their leaders is one portion of work."""
GROUP: Final = "/{cluster_id}/consumer-groups/{consumer_group_id}"
CONSUMER: Final = GROUP + "/consumers/{consumer_id}"

_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


class ConsumerGroupResource(RestResource, kw_only=True):
    """A consumer group. In a list the assignor is empty, because only the group's coordinator knows it."""

    kind: Literal["KafkaConsumerGroup"] = "KafkaConsumerGroup"
    cluster_id: str
    consumer_group_id: str
    is_simple: bool
    partition_assignor: str
    state: str
    type: str
    is_mixed_consumer_group: bool
    coordinator: Related
    consumers: Related
    lag_summary: Related


class ConsumerResource(RestResource, kw_only=True):
    """A member of a consumer group."""

    kind: Literal["KafkaConsumer"] = "KafkaConsumer"
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    instance_id: str | None
    client_id: str
    assignments: Related


class ConsumerAssignment(RestResource, kw_only=True):
    """A partition that is assigned to a member."""

    kind: Literal["KafkaConsumerAssignment"] = "KafkaConsumerAssignment"
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    topic_name: str
    partition_id: int
    partition: Related
    lag: Related


class ConsumerLag(RestResource, kw_only=True):
    """How far a group is behind in a partition. Offset and lag are null if the group has committed no offset there."""

    kind: Literal["KafkaConsumerLag"] = "KafkaConsumerLag"
    cluster_id: str
    consumer_group_id: str
    topic_name: str
    partition_id: int
    current_offset: int | None
    log_end_offset: int
    lag: int | None
    consumer_id: str
    instance_id: str | None
    client_id: str


class LagSummary(RestResource, kw_only=True):
    """The greatest lag of a group, and the sum of its lags. Without a committed offset, both are 0 and the links are null.

    A partition that no member has links to all members of the group, because clients need an object there.
    """

    kind: Literal["KafkaConsumerGroupLagSummary"] = "KafkaConsumerGroupLagSummary"
    cluster_id: str
    consumer_group_id: str
    max_lag_consumer_id: str
    max_lag_instance_id: str | None
    max_lag_client_id: str
    max_lag_topic_name: str
    max_lag_partition_id: int
    max_lag: int
    total_lag: int
    max_lag_consumer: Related | None
    max_lag_partition: Related | None


BODIES: Final = (ConsumerGroupResource, ConsumerResource, ConsumerAssignment, ConsumerLag, LagSummary)

# --- groups ---------------------------------------------------------------------------------------------------------


@router.get(
    "/{cluster_id}/consumer-groups",
    summary="List consumer groups",
    responses=listed(ConsumerGroupResource, "The groups that the caller may describe, by id."),
    openapi_extra=PAGED,
)
async def list_groups(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    groups = await gateway.groups.list_groups((CLASSIC_TYPE, CONSUMER_TYPE))
    return await page_list(
        request,
        "KafkaConsumerGroupList",
        f"clusters/{cluster_id}/consumer-groups",
        groups,
        place=lambda group: (group.group_id,),
        shape=lambda group: _listed_group(request, cluster_id, group),
    )


@router.get(GROUP, summary="Get a consumer group", responses=described(ConsumerGroupResource, "The group."))
async def get_group(cluster_id: str, consumer_group_id: str, request: Request) -> Response:
    gateway, view = await _found(request, cluster_id)
    coordinator = await gateway.groups.coordinator_of(view.group_id)
    return json_response(_group(request, cluster_id, view, coordinator))


@router.get(
    GROUP + "/consumers",
    summary="List the members of a consumer group",
    responses=listed(ConsumerResource, "The members, by id."),
    openapi_extra=PAGED,
)
async def list_consumers(cluster_id: str, consumer_group_id: str, request: Request) -> Response:
    _, view = await _found(request, cluster_id)
    return await member_list(
        request,
        "KafkaConsumerList",
        _path(cluster_id, view.group_id),
        view,
        lambda member: _consumer(request, cluster_id, view.group_id, member),
    )


@router.get(CONSUMER, summary="Get a member of a consumer group", responses=described(ConsumerResource, "The member."))
async def get_consumer(cluster_id: str, consumer_group_id: str, consumer_id: str, request: Request) -> Response:
    _, view = await _found(request, cluster_id)
    return json_response(_consumer(request, cluster_id, view.group_id, member_of(view, request)))


@router.get(
    CONSUMER + "/assignments",
    summary="List the partitions of a member",
    responses=listed(ConsumerAssignment, "The partitions that are assigned to the member."),
    openapi_extra=PAGED,
)
async def list_assignments(cluster_id: str, consumer_group_id: str, consumer_id: str, request: Request) -> Response:
    _, view = await _found(request, cluster_id)
    member = member_of(view, request)
    return await assignment_list(
        request,
        "KafkaConsumerAssignmentList",
        _path(cluster_id, view.group_id),
        member,
        lambda partition: _assignment(request, cluster_id, view.group_id, member, partition),
    )


@router.get(
    CONSUMER + "/assignments/{topic_name}/partitions/{partition_id}",
    summary="Get a partition of a member",
    responses=described(ConsumerAssignment, "The partition, which is assigned to the member."),
)
async def get_assignment(
    cluster_id: str, consumer_group_id: str, consumer_id: str, topic_name: str, partition_id: int, request: Request
) -> Response:
    _, view = await _found(request, cluster_id)
    member = member_of(view, request)
    partition = TopicPartition(topic_name, PartitionIndex(partition_id))
    if partition not in member.partitions:
        raise RestError(404, f"Partition {partition_id} of topic {topic_name} is not assigned to this consumer.")
    return json_response(_assignment(request, cluster_id, view.group_id, member, partition))


# --- lags -----------------------------------------------------------------------------------------------------------


class Behind(NamedTuple):
    """How far a group is in a partition."""

    partition: TopicPartition
    offset: int | None
    end_offset: int
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        return None if self.offset is None else max(0, self.end_offset - self.offset)


@router.get(
    GROUP + "/lags",
    summary="List the lags of a consumer group",
    responses=listed(ConsumerLag, "The partitions of which the group has committed an offset, by topic and number."),
    openapi_extra=PAGED,
)
async def list_lags(cluster_id: str, consumer_group_id: str, request: Request) -> Response:
    gateway, view = await _found(request, cluster_id)
    committed = await gateway.groups.committed(view.group_id)
    partitions = await ordered(committed, Portion(), lambda partition: partition)
    part, after = part_of(page_of(request), partitions, lambda partition: partition)
    found = await behind(gateway, await owners_in(view), committed, await present(gateway, part))
    path = f"{_path(cluster_id, view.group_id)}/lags"
    shaped = (_lag(request, cluster_id, view.group_id, one) for one in found)
    return await long_list(request, "KafkaConsumerLagList", path, shaped, next_link(request, after))


@router.get(
    GROUP + "/lags/{topic_name}/partitions/{partition_id}",
    summary="Get the lag of a consumer group in a partition",
    responses=described(ConsumerLag, "The lag."),
)
async def get_lag(
    cluster_id: str, consumer_group_id: str, topic_name: str, partition_id: int, request: Request
) -> Response:
    gateway, view = await _found(request, cluster_id)
    partition = TopicPartition(topic_name, PartitionIndex(partition_id))
    committed = await gateway.groups.committed(view.group_id)
    owners = await owners_in(view)
    if partition not in committed and partition not in owners:
        raise RestError(404, f"Group {view.group_id} reads no partition {partition_id} of topic {topic_name}.")
    (one,) = await behind(gateway, owners, committed, [partition])
    return json_response(_lag(request, cluster_id, view.group_id, one))


@router.get(
    GROUP + "/lag-summary",
    summary="Get the greatest lag of a consumer group, and the sum of its lags",
    responses=described(LagSummary, "The greatest lag and the sum."),
)
async def get_lag_summary(cluster_id: str, consumer_group_id: str, request: Request) -> Response:
    gateway, view = await _found(request, cluster_id)
    committed = await gateway.groups.committed(view.group_id)
    partitions = await ordered(committed, Portion(), lambda partition: partition)
    total, greatest = 0, None
    portion = Portion()
    for one in await behind(gateway, await owners_in(view), committed, await present(gateway, partitions)):
        total += one.lag or 0
        if greatest is None or (one.lag or 0) > (greatest.lag or 0):
            greatest = one
        if portion.spent_by():
            await portion.rest()
    return json_response(_summary(request, cluster_id, view.group_id, greatest, total))


async def behind(
    gateway: Gateway,
    owners: Mapping[TopicPartition, GroupMember],
    committed: Mapping[TopicPartition, Committed],
    partitions: Sequence[TopicPartition],
) -> list[Behind]:
    """How far the group is in some partitions. Raises: RequestRejected if one does not exist; BrokerUnavailable."""
    found: list[Behind] = []
    for asked in slices(partitions, PARTITIONS_ASKED_MAX):
        ends = await gateway.cluster.list_offsets(dict.fromkeys(asked, LATEST))
        portion = Portion()
        for partition in asked:
            known = committed.get(partition)
            offset = None if known is None else known.offset
            found.append(Behind(partition, offset, ends[partition].offset, owners.get(partition)))
        await portion.rest()
    return found


async def present(gateway: Gateway, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """The partitions that still exist. Raises: RequestRejected, BrokerUnavailable."""
    portion = Portion()
    names: dict[str, None] = {}
    await each(lambda partition: names.setdefault(partition.topic), partitions, portion)
    counts = await gateway.admin.partition_counts(list(names))
    found: list[TopicPartition] = []
    for partition in partitions:
        if partition.partition < counts.get(partition.topic, 0):
            found.append(partition)
        if portion.spent_by():
            await portion.rest()
    return found


async def owners_in(view: GroupView) -> dict[TopicPartition, GroupMember]:
    """The member to which each partition is assigned."""
    found: dict[TopicPartition, GroupMember] = {}
    portion = Portion()
    for member in view.members:
        for partition in member.partitions:
            found[partition] = member
            if portion.spent_by():
                await portion.rest()
    return found


# --- shapes ---------------------------------------------------------------------------------------------------------


def state_name(state: str) -> str:
    """A state as REST v3 names it: ``PreparingRebalance`` is ``PREPARING_REBALANCE``."""
    return _WORD.sub("_", state).upper() or "UNKNOWN"


async def _found(request: Request, cluster_id: str) -> tuple[Gateway, GroupView]:
    """The group that the path names. Raises: RequestRejected GROUP_ID_NOT_FOUND; BrokerUnavailable."""
    gateway = await checked(request, cluster_id)
    return gateway, await gateway.groups.describe_consumer_group(text_of(request, "consumer_group_id"))


async def member_list(
    request: Request, kind: str, group_path: str, view: GroupView, shape: Callable[[GroupMember], object]
) -> Response:
    """A page of the members of a group, by id. Raises: RestError 400."""
    members = await ordered(view.members, Portion(), lambda member: member.member_id)
    path = f"{group_path}/consumers"
    return await page_list(request, kind, path, members, place=lambda member: (member.member_id,), shape=shape)


async def assignment_list(
    request: Request, kind: str, group_path: str, member: GroupMember, shape: Callable[[TopicPartition], object]
) -> Response:
    """A page of the partitions of a member, by topic and number. Raises: RestError 400."""
    partitions = await ordered(member.partitions, Portion(), lambda partition: partition)
    path = f"{group_path}/consumers/{escaped(member.member_id)}/assignments"
    return await page_list(request, kind, path, partitions, place=lambda partition: partition, shape=shape)


def member_of(view: GroupView, request: Request) -> GroupMember:
    """The member that the path names. Raises: RestError 404."""
    member_id = text_of(request, "consumer_id")
    for member in view.members:
        if member.member_id == member_id:
            return member
    raise RestError(404, f"Group {view.group_id} has no consumer {member_id}.")


def _path(cluster_id: str, group_id: str) -> str:
    return f"clusters/{cluster_id}/consumer-groups/{escaped(group_id)}"


def _listed_group(request: Request, cluster_id: str, group: ListedGroup) -> ConsumerGroupResource:
    view = GroupView(group.group_id, group.group_type, group.state, "", (), protocol_type=group.protocol_type)
    return _group(request, cluster_id, view, group.coordinator)


def _group(request: Request, cluster_id: str, view: GroupView, coordinator: BrokerId) -> ConsumerGroupResource:
    path = _path(cluster_id, view.group_id)
    return ConsumerGroupResource(
        metadata=metadata(request, path, f"kafka={cluster_id}/consumer-group={view.group_id}"),
        cluster_id=cluster_id,
        consumer_group_id=view.group_id,
        is_simple=not view.protocol_type,
        partition_assignor=view.assignor,
        state=state_name(view.state),
        type=view.group_type.upper() or "UNKNOWN",
        is_mixed_consumer_group=view.mixed,
        coordinator=related(request, f"clusters/{cluster_id}/brokers/{coordinator}"),
        consumers=related(request, f"{path}/consumers"),
        lag_summary=related(request, f"{path}/lag-summary"),
    )


def _consumer(request: Request, cluster_id: str, group_id: str, member: GroupMember) -> ConsumerResource:
    path = f"{_path(cluster_id, group_id)}/consumers/{escaped(member.member_id)}"
    return ConsumerResource(
        metadata=metadata(request, path, f"kafka={cluster_id}/consumer-group={group_id}/consumer={member.member_id}"),
        cluster_id=cluster_id,
        consumer_group_id=group_id,
        consumer_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        assignments=related(request, f"{path}/assignments"),
    )


def _assignment(
    request: Request, cluster_id: str, group_id: str, member: GroupMember, partition: TopicPartition
) -> ConsumerAssignment:
    topic, index = partition
    of_group = _path(cluster_id, group_id)
    path = f"{of_group}/consumers/{escaped(member.member_id)}/assignments/{topic}/partitions/{index}"
    resource = (
        f"kafka={cluster_id}/consumer-group={group_id}/consumer={member.member_id}/assignment={topic}/partition={index}"
    )
    return ConsumerAssignment(
        metadata=metadata(request, path, resource),
        cluster_id=cluster_id,
        consumer_group_id=group_id,
        consumer_id=member.member_id,
        topic_name=topic,
        partition_id=index,
        partition=related(request, f"clusters/{cluster_id}/topics/{topic}/partitions/{index}"),
        lag=related(request, f"{of_group}/lags/{topic}/partitions/{index}"),
    )


def _lag(request: Request, cluster_id: str, group_id: str, one: Behind) -> ConsumerLag:
    topic, index = one.partition
    path = f"{_path(cluster_id, group_id)}/lags/{topic}/partitions/{index}"
    resource = f"kafka={cluster_id}/consumer-group={group_id}/lag={topic}/partition={index}"
    return ConsumerLag(
        metadata=metadata(request, path, resource),
        cluster_id=cluster_id,
        consumer_group_id=group_id,
        topic_name=topic,
        partition_id=index,
        current_offset=one.offset,
        log_end_offset=one.end_offset,
        lag=one.lag,
        consumer_id="" if one.member is None else one.member.member_id,
        instance_id=None if one.member is None else one.member.instance_id,
        client_id="" if one.member is None else one.member.client_id,
    )


def _summary(request: Request, cluster_id: str, group_id: str, one: Behind | None, total: int) -> LagSummary:
    path = _path(cluster_id, group_id)
    member = None if one is None else one.member
    topic, index = ("", 0) if one is None else one.partition
    consumers = f"{path}/consumers"
    which = consumers if member is None else f"{consumers}/{escaped(member.member_id)}"
    consumer = None if one is None else related(request, which)
    partition = None if one is None else related(request, f"clusters/{cluster_id}/topics/{topic}/partitions/{index}")
    return LagSummary(
        metadata=metadata(request, f"{path}/lag-summary", f"kafka={cluster_id}/consumer-group={group_id}/lag-summary"),
        cluster_id=cluster_id,
        consumer_group_id=group_id,
        max_lag_consumer_id="" if member is None else member.member_id,
        max_lag_instance_id=None if member is None else member.instance_id,
        max_lag_client_id="" if member is None else member.client_id,
        max_lag_topic_name=topic,
        max_lag_partition_id=index,
        max_lag=0 if one is None else one.lag or 0,
        total_lag=total,
        max_lag_consumer=consumer,
        max_lag_partition=partition,
    )
