"""Topics, partitions and replicas of REST v3.

Tests: ``tests/http/test_application.py``, ``tests/http/rest_v3/test_clusters.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import EARLIEST, LATEST, PartitionView, TopicView
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import Portion, ordered
from app.core.units import PartitionIndex, TopicPartition
from app.http.bodies import json_response
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.keyed.if_match import etag_now
from app.http.rest_v3.resources import (
    NO_CONTENT,
    PAGED,
    Related,
    RestResource,
    SettingValue,
    body_of,
    checked,
    described,
    listed,
    long_list,
    metadata,
    page_list,
    related,
    setting_text,
)
from app.http.schemas import request_body
from app.security.acls import Operation

router = APIRouter(prefix="/v3/clusters", default_response_class=Response)

OFFSET_TYPE: Final = "earliest_and_latest"
SETTINGS_MAX: Final = 1_000
"""Settings in one request: a topic has fewer than a hundred."""
ASSIGNMENTS_MAX: Final = 10_000
REPLICAS_MAX: Final = 100
REPLICAS_OF_ALL_MAX: Final = 30_000
"""A broker reads no CreateTopics of more than 50,000 elements."""


class InitialSetting(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: SettingValue | None = None


_Brokers = Annotated[list[int], msgspec.Meta(min_length=1, max_length=REPLICAS_MAX)]


class CreateTopicBody(msgspec.Struct, forbid_unknown_fields=True):
    topic_name: str
    partitions_count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    replication_factor: Annotated[int, msgspec.Meta(ge=1, le=2**15 - 1)] | None = None
    replicas_assignments: (
        Annotated[dict[str, _Brokers], msgspec.Meta(max_length=ASSIGNMENTS_MAX)]
        | Annotated[list[dict[str, int | _Brokers]], msgspec.Meta(max_length=ASSIGNMENTS_MAX)]
        | None
    ) = None
    """The brokers of each partition, the preferred leader first. Then counts are left out. Several forms are in use:
    `{"0": [1, 2]}`, `[{"0": [1, 2]}]` and `[{"partition_id": 0, "broker_ids": [1, 2]}]`."""
    configs: Annotated[list[InitialSetting], msgspec.Meta(max_length=SETTINGS_MAX)] | None = None
    validate_only: bool | None = None


class AddPartitionsBody(msgspec.Struct, forbid_unknown_fields=True):
    partitions_count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class TopicResource(RestResource, kw_only=True):
    """A topic."""

    kind: Literal["KafkaTopic"] = "KafkaTopic"
    cluster_id: str
    topic_name: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Related
    configs: Related
    partition_reassignments: Related
    authorized_operations: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The operations that the caller may do, if the request asks for them."""


class PartitionResource(RestResource, kw_only=True):
    """A partition."""

    kind: Literal["KafkaPartition"] = "KafkaPartition"
    cluster_id: str
    topic_name: str
    partition_id: int
    leader: Related | None
    replicas: Related
    reassignment: Related
    offset: Related
    records: Related


class PartitionOffsets(RestResource, kw_only=True):
    """The ends of a partition."""

    kind: Literal["KafkaPartitionWithOffsets"] = "KafkaPartitionWithOffsets"
    cluster_id: str
    topic_name: str
    partition_id: int
    earliest_offset: int
    latest_offset: int


class ReplicaResource(RestResource, kw_only=True):
    """A replica of a partition."""

    kind: Literal["KafkaReplica"] = "KafkaReplica"
    cluster_id: str
    topic_name: str
    partition_id: int
    broker_id: int
    is_leader: bool
    is_in_sync: bool
    broker: Related


BODIES: Final = (
    CreateTopicBody,
    AddPartitionsBody,
    TopicResource,
    PartitionResource,
    PartitionOffsets,
    ReplicaResource,
)

_OPERATIONS_ASKED: Final = {
    "parameters": [
        {
            "name": "include_authorized_operations",
            "in": "query",
            "required": False,
            "description": "Whether to say which operations the caller may do.",
            "schema": {"type": "boolean", "default": False},
        }
    ]
}

# --- topics ---------------------------------------------------------------------------------------------------------


@router.get(
    "/{cluster_id}/topics",
    summary="List topics",
    tags=["Topic (v3)"],
    responses=listed(TopicResource, "The topics that the caller may describe, by name."),
    openapi_extra=PAGED,
)
async def list_topics(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    view = await gateway.admin.describe_cluster()
    return await page_list(
        request,
        "KafkaTopicList",
        f"clusters/{cluster_id}/topics",
        await ordered(view.topics.values(), Portion(), lambda topic: topic.name),
        place=lambda topic: (topic.name,),
        shape=lambda topic: _topic(request, cluster_id, topic),
    )


@router.post(
    "/{cluster_id}/topics",
    summary="Create a topic",
    tags=["Topic (v3)"],
    status_code=201,
    responses=described(TopicResource, "The new topic.", 201),
    openapi_extra=request_body(
        CreateTopicBody,
        {
            "topic_name": "flights",
            "partitions_count": 4,
            "configs": [{"name": "retention.ms", "value": "-1"}],
        },
    ),
)
async def create_topic(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, CreateTopicBody)
    created = await gateway.admin.create_topic(
        wanted.topic_name,
        partitions_count=wanted.partitions_count or -1,
        replication_factor=wanted.replication_factor or -1,
        assignments=await _assignments(wanted),
        configs={
            config.name: None if config.value is None else setting_text(config.value) for config in wanted.configs or ()
        },
        validate_only=bool(wanted.validate_only),
    )
    topic = _topic_fields(
        request,
        cluster_id,
        created.name,
        internal=False,
        partitions_count=0 if wanted.validate_only else created.partitions_count,
        replication_factor=created.replication_factor,
    )
    if wanted.validate_only:
        return json_response(topic)
    response = json_response(topic, 201)
    response.headers["location"] = topic.metadata.self_url
    return response


async def _assignments(wanted: CreateTopicBody) -> Mapping[int, list[int]] | None:
    if wanted.replicas_assignments is None:
        return None
    if wanted.partitions_count is not None or wanted.replication_factor is not None:
        raise RestError(
            422,
            "The field replicas_assignments says the partitions. Leave out partitions_count and replication_factor.",
        )
    found: dict[int, list[int]] = {}
    replicas = 0
    portion = Portion()
    await portion.rest()  # the body was decoded at once
    for text, brokers in _assigned(wanted.replicas_assignments):
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise RestError(422, f"In replicas_assignments, {text[:20]!r} is not the number of a partition.")
        if not all(0 <= broker < 2**31 for broker in brokers):
            raise RestError(422, f"In replicas_assignments, the brokers of partition {text} must be broker ids.")
        if int(text) in found:
            raise RestError(422, f"In replicas_assignments, partition {text} comes twice.")
        found[int(text)] = brokers
        replicas += len(brokers)
        if replicas > REPLICAS_OF_ALL_MAX:
            raise RestError(422, f"The field replicas_assignments has more than {REPLICAS_OF_ALL_MAX} replicas.")
        if portion.spent_by(len(brokers)):
            await portion.rest()
    return found


def _assigned(
    assignments: Mapping[str, list[int]] | Sequence[Mapping[str, int | list[int]]],
) -> Iterator[tuple[str, list[int]]]:
    """The partitions and brokers of assignments in any of their forms. Raises: RestError 422."""
    if isinstance(assignments, Mapping):
        yield from assignments.items()
        return
    for one in assignments:
        match one:
            case {"partition_id": int(partition), "broker_ids": list(brokers), **others} if not others:
                yield str(partition), brokers
            case _:
                for text, brokers_of_one in one.items():
                    if not isinstance(brokers_of_one, list):
                        raise RestError(
                            422, "An element of replicas_assignments must have a partition_id and broker_ids."
                        )
                    yield text, brokers_of_one


@router.get(
    "/{cluster_id}/topics/{topic_name}",
    summary="Get a topic",
    tags=["Topic (v3)"],
    responses=described(TopicResource, "The topic."),
    openapi_extra=_OPERATIONS_ASKED,
)
async def get_topic(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    topic = _topic(request, cluster_id, await gateway.admin.describe_topic(topic_name))
    if request.query_params.get("include_authorized_operations", "").lower() == "true":
        allowed = await gateway.admin.topic_operations(topic_name)
        topic.authorized_operations = [Operation(one).name for one in sorted(allowed)]
    return json_response(topic)


@router.delete("/{cluster_id}/topics/{topic_name}", summary="Delete a topic", tags=["Topic (v3)"], status_code=204)
async def delete_topic(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    await gateway.admin.delete_topic(topic_name)
    return Response(status_code=NO_CONTENT)


@router.patch(
    "/{cluster_id}/topics/{topic_name}",
    summary="Add partitions to a topic",
    tags=["Topic (v3)"],
    responses=described(TopicResource, "The topic."),
    openapi_extra=request_body(AddPartitionsBody, {"partitions_count": 8}),
)
async def add_partitions(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, AddPartitionsBody)
    await gateway.admin.create_partitions(topic_name, wanted.partitions_count)
    return json_response(_topic(request, cluster_id, await gateway.admin.describe_topic(topic_name)))


# --- partitions -----------------------------------------------------------------------------------------------------


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions",
    summary="List partitions",
    tags=["Partition (v3)"],
    responses=listed(PartitionResource, "The partitions of the topic."),
    openapi_extra=PAGED,
)
async def list_partitions(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    topic = await gateway.admin.describe_topic(topic_name)
    return await page_list(
        request,
        "KafkaPartitionList",
        f"clusters/{cluster_id}/topics/{topic_name}/partitions",
        topic.partitions,
        place=lambda partition: (partition.index,),
        shape=lambda partition: _partition(request, cluster_id, topic_name, partition),
    )


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions/{partition_id}",
    summary="Get a partition",
    tags=["Partition (v3)"],
    responses=described(PartitionResource, "The partition."),
)
async def get_partition(cluster_id: str, topic_name: str, partition_id: int, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    _, partition = await found_partition(gateway, topic_name, partition_id)
    response = json_response(_partition(request, cluster_id, topic_name, partition))
    etag = await etag_now(gateway.cluster, TopicPartition(topic_name, PartitionIndex(partition.index)))
    if etag is not None:
        response.headers["etag"] = etag
    return response


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/offset",
    summary="Get the first and the last offset of a partition",
    tags=["Partition (v3)"],
    responses=described(PartitionOffsets, "The offset of the first record, and the one of the next record to come."),
    openapi_extra={
        "parameters": [
            {
                "name": "offset_type",
                "in": "query",
                "required": False,
                "description": "Both offsets are the only type.",
                "schema": {"type": "string", "enum": [OFFSET_TYPE]},
            }
        ]
    },
)
async def get_offsets(cluster_id: str, topic_name: str, partition_id: int, request: Request) -> Response:
    kind = request.query_params.get("offset_type", OFFSET_TYPE)
    if kind != OFFSET_TYPE:
        raise RestError(400, f"The parameter offset_type is {kind[:100]!r}. Send {OFFSET_TYPE}, or leave it out.")
    gateway = await checked(request, cluster_id)
    _, found = await found_partition(gateway, topic_name, partition_id)
    partition = TopicPartition(topic_name, PartitionIndex(found.index))
    earliest = await gateway.cluster.list_offsets({partition: EARLIEST})
    latest = await gateway.cluster.list_offsets({partition: LATEST})
    path = f"clusters/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/offset"
    resource = f"kafka={cluster_id}/topic={topic_name}/partition={partition_id}/offset"
    return json_response(
        PartitionOffsets(
            metadata=metadata(request, path, resource),
            cluster_id=cluster_id,
            topic_name=topic_name,
            partition_id=partition_id,
            earliest_offset=earliest[partition].offset,
            latest_offset=latest[partition].offset,
        )
    )


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas",
    summary="List a partition's replicas",
    tags=["Replica (v3)"],
    responses=listed(ReplicaResource, "The replicas, the preferred leader first."),
)
async def list_replicas(cluster_id: str, topic_name: str, partition_id: int, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    _, partition = await found_partition(gateway, topic_name, partition_id)
    return await long_list(
        request,
        "KafkaReplicaList",
        f"clusters/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas",
        (replica_of(request, cluster_id, topic_name, partition, broker) for broker in partition.replicas),
    )


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas/{broker_id}",
    summary="Get a replica",
    tags=["Replica (v3)"],
    responses=described(ReplicaResource, "The replica."),
)
async def get_replica(
    cluster_id: str, topic_name: str, partition_id: int, broker_id: int, request: Request
) -> Response:
    gateway = await checked(request, cluster_id)
    _, partition = await found_partition(gateway, topic_name, partition_id)
    if broker_id not in partition.replicas:
        raise RestError(404, f"Partition {partition_id} of topic {topic_name} has no replica on broker {broker_id}.")
    return json_response(replica_of(request, cluster_id, topic_name, partition, broker_id))


async def found_partition(gateway: Gateway, topic_name: str, partition_id: int) -> tuple[TopicView, PartitionView]:
    """A partition as of now. Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION, BrokerUnavailable."""
    topic = await gateway.admin.describe_topic(topic_name)
    if 0 <= partition_id < len(topic.partitions) and topic.partitions[partition_id].index == partition_id:
        return topic, topic.partitions[partition_id]
    raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic_name} has no partition {partition_id}.")


# --- shapes ---------------------------------------------------------------------------------------------------------


def _topic(request: Request, cluster_id: str, topic: TopicView) -> TopicResource:
    return _topic_fields(
        request,
        cluster_id,
        topic.name,
        internal=topic.internal,
        partitions_count=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas) if topic.partitions else 0,
    )


def _topic_fields(
    request: Request, cluster_id: str, name: str, *, internal: bool, partitions_count: int, replication_factor: int
) -> TopicResource:
    path = f"clusters/{cluster_id}/topics/{name}"
    return TopicResource(
        metadata=metadata(request, path, f"kafka={cluster_id}/topic={name}"),
        cluster_id=cluster_id,
        topic_name=name,
        is_internal=internal,
        replication_factor=replication_factor,
        partitions_count=partitions_count,
        partitions=related(request, f"{path}/partitions"),
        configs=related(request, f"{path}/configs"),
        partition_reassignments=related(request, f"{path}/partitions/-/reassignment"),
    )


def _partition(request: Request, cluster_id: str, topic: str, partition: PartitionView) -> PartitionResource:
    path = f"clusters/{cluster_id}/topics/{topic}/partitions/{partition.index}"
    leader = None if partition.leader is None else related(request, f"{path}/replicas/{partition.leader}")
    return PartitionResource(
        metadata=metadata(request, path, f"kafka={cluster_id}/topic={topic}/partition={partition.index}"),
        cluster_id=cluster_id,
        topic_name=topic,
        partition_id=partition.index,
        leader=leader,
        replicas=related(request, f"{path}/replicas"),
        reassignment=related(request, f"{path}/reassignment"),
        offset=related(request, f"{path}/offset"),
        records=related(request, f"{path}/records"),
    )


def replica_of(
    request: Request, cluster_id: str, topic: str, partition: PartitionView, broker_id: int
) -> ReplicaResource:
    """The resource of a replica."""
    path = f"clusters/{cluster_id}/topics/{topic}/partitions/{partition.index}/replicas/{broker_id}"
    resource = f"kafka={cluster_id}/topic={topic}/partition={partition.index}/replica={broker_id}"
    return ReplicaResource(
        metadata=metadata(request, path, resource),
        cluster_id=cluster_id,
        topic_name=topic,
        partition_id=partition.index,
        broker_id=broker_id,
        is_leader=broker_id == partition.leader,
        is_in_sync=broker_id in partition.in_sync_replicas,
        broker=related(request, f"clusters/{cluster_id}/brokers/{broker_id}"),
    )
