"""Reassignments of partitions that are under way (KIP-455).

A partition that does not move has a reassignment that adds and removes nothing. So the link of each partition leads to a resource.

Tests: ``tests/http/rest_v3/test_reassignments.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.turns import Portion, ordered
from app.core.units import TopicPartition
from app.http.bodies import json_response
from app.http.rest_v3.resources import (
    PAGED,
    Related,
    RestResource,
    checked,
    described,
    listed,
    metadata,
    page_list,
    related,
)
from app.http.rest_v3.topics import found_partition

router = APIRouter(prefix="/v3/clusters", default_response_class=Response, tags=["Partition (v3)"])


class ReassignmentResource(RestResource, kw_only=True):
    """The brokers that a partition moves to, and those that it leaves."""

    kind: Literal["KafkaReassignment"] = "KafkaReassignment"
    cluster_id: str
    topic_name: str
    partition_id: int
    adding_replicas: list[int]
    removing_replicas: list[int]
    replicas: Related


BODIES: Final = (ReassignmentResource,)

Moves = Mapping[TopicPartition, tuple[list[int], list[int]]]


@router.get(
    "/{cluster_id}/topics/-/partitions/-/reassignment",
    summary="List the reassignments under way",
    responses=listed(ReassignmentResource, "The partitions that move, by topic and number."),
    openapi_extra=PAGED,
)
async def list_reassignments(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    moves = await gateway.admin.list_reassignments()
    return await _listed(request, cluster_id, f"clusters/{cluster_id}/topics/-/partitions/-/reassignment", moves)


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions/-/reassignment",
    summary="List the reassignments of a topic",
    responses=listed(ReassignmentResource, "The partitions of the topic that move."),
    openapi_extra=PAGED,
)
async def list_reassignments_of_topic(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    topic = await gateway.admin.describe_topic(topic_name)
    moves = await gateway.admin.list_reassignments({topic_name: range(len(topic.partitions))})
    path = f"clusters/{cluster_id}/topics/{topic_name}/partitions/-/reassignment"
    return await _listed(request, cluster_id, path, moves)


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/reassignment",
    summary="Get the reassignment of a partition",
    responses=described(
        ReassignmentResource, "The reassignment. It adds and removes nothing if the partition does not move."
    ),
)
async def get_reassignment(cluster_id: str, topic_name: str, partition_id: int, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    _, found = await found_partition(gateway, topic_name, partition_id)
    partition = TopicPartition(topic_name, found.index)
    moves = await gateway.admin.list_reassignments({topic_name: [partition_id]})
    return json_response(_reassignment(request, cluster_id, partition, moves))


async def _listed(request: Request, cluster_id: str, path: str, moves: Moves) -> Response:
    return await page_list(
        request,
        "KafkaReassignmentList",
        path,
        await ordered(moves.keys(), Portion(), lambda partition: partition),
        place=lambda partition: partition,
        shape=lambda partition: _reassignment(request, cluster_id, partition, moves),
    )


def _reassignment(request: Request, cluster_id: str, partition: TopicPartition, moves: Moves) -> ReassignmentResource:
    topic, index = partition
    adding, removing = moves.get(partition, ([], []))
    path = f"clusters/{cluster_id}/topics/{topic}/partitions/{index}"
    resource = f"kafka={cluster_id}/topic={topic}/partition={index}/reassignment"
    return ReassignmentResource(
        metadata=metadata(request, f"{path}/reassignment", resource),
        cluster_id=cluster_id,
        topic_name=topic,
        partition_id=index,
        adding_replicas=adding,
        removing_replicas=removing,
        replicas=related(request, f"{path}/replicas"),
    )
