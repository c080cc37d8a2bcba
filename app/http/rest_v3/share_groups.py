"""Share groups (KIP-932) of REST v3: members and assignments. A partition may be assigned to several members.

Tests: ``tests/http/rest_v3/test_groups.py``.
"""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.groups import SHARE_TYPE, GroupMember, GroupView, ListedGroup
from app.core.turns import Portion, each, ordered
from app.core.units import TopicPartition
from app.http.bodies import json_response
from app.http.gateway import Gateway
from app.http.rest_v3.groups import assignment_list, member_list, member_of, state_name
from app.http.rest_v3.resources import (
    NO_CONTENT,
    PAGED,
    Related,
    RestResource,
    checked,
    described,
    escaped,
    listed,
    metadata,
    page_list,
    related,
    text_of,
    with_elements,
)

router = APIRouter(prefix="/v3/clusters", default_response_class=Response, tags=["Share Group (v3)"])

GROUP: Final = "/{cluster_id}/share-groups/{group_id}"
CONSUMER: Final = GROUP + "/consumers/{consumer_id}"


class SharedPartition(RestResource, kw_only=True):
    """A partition that is assigned to a share group."""

    kind: Literal["KafkaShareGroupTopicPartition"] = "KafkaShareGroupTopicPartition"
    topic_name: str
    partition_id: int
    partition: Related


class ListedShareGroup(RestResource, kw_only=True):
    """A share group in a list."""

    kind: Literal["KafkaShareGroup"] = "KafkaShareGroup"
    cluster_id: str
    share_group_id: str
    state: str
    coordinator: Related
    consumers: Related


class ShareGroupResource(ListedShareGroup, kw_only=True):
    """A share group."""

    consumer_count: int
    partition_count: int
    assigned_topic_partitions: list[SharedPartition]


class ShareConsumer(RestResource, kw_only=True):
    """A member of a share group."""

    kind: Literal["KafkaShareGroupConsumer"] = "KafkaShareGroupConsumer"
    cluster_id: str
    group_id: str
    consumer_id: str
    client_id: str
    assignments: Related


class ShareAssignment(RestResource, kw_only=True):
    """A partition that is assigned to a member of a share group."""

    kind: Literal["KafkaShareGroupConsumerAssignment"] = "KafkaShareGroupConsumerAssignment"
    cluster_id: str
    group_id: str
    consumer_id: str
    topic_name: str
    partition_id: int
    partition: Related


BODIES: Final = (ListedShareGroup, ShareGroupResource, ShareConsumer, ShareAssignment)


@router.get(
    "/{cluster_id}/share-groups",
    summary="List share groups",
    responses=listed(ListedShareGroup, "The groups that the caller may describe, by id."),
    openapi_extra=PAGED,
)
async def list_groups(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    return await page_list(
        request,
        "KafkaShareGroupList",
        f"clusters/{cluster_id}/share-groups",
        await gateway.groups.list_groups((SHARE_TYPE,)),
        place=lambda group: (group.group_id,),
        shape=lambda group: _listed(request, cluster_id, group),
    )


@router.get(GROUP, summary="Get a share group", responses=described(ShareGroupResource, "The group."))
async def get_group(cluster_id: str, group_id: str, request: Request) -> Response:
    gateway, view = await _found(request, cluster_id)
    coordinator = await gateway.groups.coordinator_of(view.group_id)
    assigned: set[TopicPartition] = set()
    portion = Portion()
    for member in view.members:
        await each(assigned.add, member.partitions, portion)
    path = _path(cluster_id, view.group_id)
    empty = ShareGroupResource(
        metadata=metadata(request, path, f"kafka={cluster_id}/share-group={view.group_id}"),
        cluster_id=cluster_id,
        share_group_id=view.group_id,
        state=state_name(view.state),
        coordinator=related(request, f"clusters/{cluster_id}/brokers/{coordinator}"),
        consumers=related(request, f"{path}/consumers"),
        consumer_count=len(view.members),
        partition_count=len(assigned),
        assigned_topic_partitions=[],
    )
    shown = await ordered(assigned, portion, lambda partition: partition)
    return await with_elements(empty, (_shared(request, cluster_id, partition) for partition in shown))


@router.delete(GROUP, summary="Delete a share group without members", status_code=204)
async def delete_group(cluster_id: str, group_id: str, request: Request) -> Response:
    gateway, view = await _found(request, cluster_id)  # a consumer group of that id stays
    await gateway.groups.delete(view.group_id)
    return Response(status_code=NO_CONTENT)


@router.get(
    GROUP + "/consumers",
    summary="List the members of a share group",
    responses=listed(ShareConsumer, "The members, by id."),
    openapi_extra=PAGED,
)
async def list_consumers(cluster_id: str, group_id: str, request: Request) -> Response:
    _, view = await _found(request, cluster_id)
    return await member_list(
        request,
        "KafkaShareGroupConsumerList",
        _path(cluster_id, view.group_id),
        view,
        lambda member: _consumer(request, cluster_id, view.group_id, member),
    )


@router.get(CONSUMER, summary="Get a member of a share group", responses=described(ShareConsumer, "The member."))
async def get_consumer(cluster_id: str, group_id: str, consumer_id: str, request: Request) -> Response:
    _, view = await _found(request, cluster_id)
    return json_response(_consumer(request, cluster_id, view.group_id, member_of(view, request)))


@router.get(
    CONSUMER + "/assignments",
    summary="List the partitions of a member of a share group",
    responses=listed(ShareAssignment, "The partitions that are assigned to the member."),
    openapi_extra=PAGED,
)
async def list_assignments(cluster_id: str, group_id: str, consumer_id: str, request: Request) -> Response:
    _, view = await _found(request, cluster_id)
    member = member_of(view, request)
    return await assignment_list(
        request,
        "KafkaShareGroupConsumerAssignmentList",
        _path(cluster_id, view.group_id),
        member,
        lambda partition: _assignment(request, cluster_id, view.group_id, member, partition),
    )


async def _found(request: Request, cluster_id: str) -> tuple[Gateway, GroupView]:
    """The group that the path names. Raises: RequestRejected GROUP_ID_NOT_FOUND; BrokerUnavailable."""
    gateway = await checked(request, cluster_id)
    return gateway, await gateway.groups.describe_share_group(text_of(request, "group_id"))


# --- shapes ---------------------------------------------------------------------------------------------------------


def _path(cluster_id: str, group_id: str) -> str:
    return f"clusters/{cluster_id}/share-groups/{escaped(group_id)}"


def _listed(request: Request, cluster_id: str, group: ListedGroup) -> ListedShareGroup:
    path = _path(cluster_id, group.group_id)
    return ListedShareGroup(
        metadata=metadata(request, path, f"kafka={cluster_id}/share-group={group.group_id}"),
        cluster_id=cluster_id,
        share_group_id=group.group_id,
        state=state_name(group.state),
        coordinator=related(request, f"clusters/{cluster_id}/brokers/{group.coordinator}"),
        consumers=related(request, f"{path}/consumers"),
    )


def _shared(request: Request, cluster_id: str, partition: TopicPartition) -> SharedPartition:
    path = f"clusters/{cluster_id}/topics/{partition.topic}/partitions/{partition.partition}"
    resource = f"kafka={cluster_id}/topic={partition.topic}/partition={partition.partition}"
    return SharedPartition(
        metadata=metadata(request, path, resource),
        topic_name=partition.topic,
        partition_id=partition.partition,
        partition=related(request, path),
    )


def _consumer(request: Request, cluster_id: str, group_id: str, member: GroupMember) -> ShareConsumer:
    path = f"{_path(cluster_id, group_id)}/consumers/{escaped(member.member_id)}"
    resource = f"kafka={cluster_id}/share-group={group_id}/consumer={member.member_id}"
    return ShareConsumer(
        metadata=metadata(request, path, resource),
        cluster_id=cluster_id,
        group_id=group_id,
        consumer_id=member.member_id,
        client_id=member.client_id,
        assignments=related(request, f"{path}/assignments"),
    )


def _assignment(
    request: Request, cluster_id: str, group_id: str, member: GroupMember, partition: TopicPartition
) -> ShareAssignment:
    topic, index = partition
    path = f"{_path(cluster_id, group_id)}/consumers/{escaped(member.member_id)}/assignments"
    resource = (
        f"kafka={cluster_id}/share-group={group_id}/consumer={member.member_id}/assignment={topic}/partition={index}"
    )
    return ShareAssignment(
        metadata=metadata(request, path, resource),
        cluster_id=cluster_id,
        group_id=group_id,
        consumer_id=member.member_id,
        topic_name=topic,
        partition_id=index,
        partition=related(request, f"clusters/{cluster_id}/topics/{topic}/partitions/{index}"),
    )
