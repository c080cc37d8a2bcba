"""Topics, partitions, offsets and brokers of REST v2.

Tests: ``tests/http/rest_v2/test_topics.py``.
"""

from __future__ import annotations

from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import EARLIEST, LATEST, PartitionView
from app.core.turns import Portion, ordered
from app.core.units import PartitionIndex, TopicPartition
from app.http.gateway import Gateway
from app.http.rest_v2.answers import V2Route, answered, found_topic, listed, partition_not_found, responses_of
from app.http.serving import gateway_of
from app.wire.config_resources import ConfigResourceType

router = APIRouter(tags=["Topics (v2)"], default_response_class=Response, route_class=V2Route)


class ReplicaV2(msgspec.Struct):
    """A replica of a partition."""

    broker: int
    leader: bool
    in_sync: bool


class PartitionV2(msgspec.Struct):
    """A partition of a topic."""

    partition: int
    leader: int
    """-1 while it has none."""
    replicas: list[ReplicaV2]


class TopicV2(msgspec.Struct):
    """A topic with its settings and partitions."""

    name: str
    configs: dict[str, str | None]
    partitions: list[PartitionV2]


class EndsV2(msgspec.Struct):
    """The ends of a partition."""

    beginning_offset: int
    end_offset: int


class BrokersV2(msgspec.Struct):
    """The ids of all brokers."""

    brokers: list[int]


BODIES: Final = (TopicV2, PartitionV2, EndsV2, BrokersV2)


@router.get(
    "/topics",
    summary="List topics",
    responses={200: {"description": "The names of the topics that the caller may describe."}},
)
async def list_topics(request: Request) -> Response:
    view = await gateway_of(request).admin.describe_cluster()
    return await listed(request, await ordered(view.topics, Portion(), key=str))


@router.get("/topics/{topic_name}", summary="Get a topic", responses=responses_of(TopicV2, "The topic."))
async def get_topic(topic_name: str, request: Request) -> Response:
    gateway = gateway_of(request)
    topic = await found_topic(gateway, topic_name)
    entries = await gateway.admin.describe_configs(ConfigResourceType.TOPIC, topic_name)
    configs = {entry.name: entry.value for entry in entries}
    head = msgspec.json.encode({"name": topic.name, "configs": configs})[:-1] + b',"partitions":'
    return await listed(request, map(_partition, topic.partitions), head, b"}")


@router.get(
    "/topics/{topic_name}/partitions",
    summary="List partitions",
    responses=responses_of(PartitionV2, "The partitions of the topic.", many=True),
)
async def list_partitions(topic_name: str, request: Request) -> Response:
    topic = await found_topic(gateway_of(request), topic_name)
    return await listed(request, map(_partition, topic.partitions))


@router.get(
    "/topics/{topic_name}/partitions/{partition_id}",
    summary="Get a partition",
    responses=responses_of(PartitionV2, "The partition."),
)
async def get_partition(topic_name: str, partition_id: int, request: Request) -> Response:
    return answered(request, _partition(await found_partition(gateway_of(request), topic_name, partition_id)))


@router.get(
    "/topics/{topic_name}/partitions/{partition_id}/offsets",
    summary="Get the ends of a partition",
    responses=responses_of(EndsV2, "The offset of the first record, and the one of the next record to come."),
)
async def get_offsets(topic_name: str, partition_id: int, request: Request) -> Response:
    gateway = gateway_of(request)
    found = await found_partition(gateway, topic_name, partition_id)
    partition = TopicPartition(topic_name, PartitionIndex(found.index))
    earliest = await gateway.cluster.list_offsets({partition: EARLIEST})
    latest = await gateway.cluster.list_offsets({partition: LATEST})
    return answered(request, EndsV2(earliest[partition].offset, latest[partition].offset))


@router.get("/brokers", summary="List brokers", responses=responses_of(BrokersV2, "The ids of the brokers."))
async def list_brokers(request: Request) -> Response:
    view = await gateway_of(request).admin.describe_brokers()
    return answered(request, BrokersV2(sorted(view.brokers)))


async def found_partition(gateway: Gateway, topic_name: str, partition_id: int) -> PartitionView:
    """A partition as of now. Raises: RestError 404 with 40402; RequestRejected, BrokerUnavailable."""
    topic = await found_topic(gateway, topic_name)
    if 0 <= partition_id < len(topic.partitions) and topic.partitions[partition_id].index == partition_id:
        return topic.partitions[partition_id]
    raise partition_not_found(topic_name, partition_id)


def _partition(partition: PartitionView) -> PartitionV2:
    leader = -1 if partition.leader is None else partition.leader
    replicas = [
        ReplicaV2(broker, broker == partition.leader, broker in partition.in_sync_replicas)
        for broker in partition.replicas
    ]
    return PartitionV2(partition.index, leader, replicas)
