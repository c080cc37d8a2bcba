"""Clusters, brokers, topics, partitions and settings of REST v3: thin routes over ``AdminClient``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.admin import ConfigEntry
from app.client.cluster import BrokerAddress, PartitionView, TopicView
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import each
from app.http.bodies import JSON_TYPE, json_response, small_body
from app.http.errors import RestError
from app.http.gateway import ADMIN_BODY_BYTES_MAX, Gateway
from app.http.schemas import request_body
from app.http.serving import gateway_of
from app.wire.config_resources import ConfigOperation, ConfigResourceType

router = APIRouter(prefix="/v3/clusters", default_response_class=Response)

_NO_CONTENT: Final = 204
SETTINGS_MAX: Final = 1_000
"""Changes of settings in one request: a topic has fewer than a hundred."""

T = TypeVar("T")


class InitialSetting(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: str | None = None


class SettingChange(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: str | None = None
    operation: str = "SET"


class CreateTopicBody(msgspec.Struct, forbid_unknown_fields=True):
    topic_name: str
    partitions_count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    replication_factor: Annotated[int, msgspec.Meta(ge=1, le=2**15 - 1)] | None = None
    configs: Annotated[list[InitialSetting], msgspec.Meta(max_length=SETTINGS_MAX)] = []
    validate_only: bool = False


class AddPartitionsBody(msgspec.Struct, forbid_unknown_fields=True):
    partitions_count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class SetSettingBody(msgspec.Struct, forbid_unknown_fields=True):
    value: str


class AlterSettingsBody(msgspec.Struct, forbid_unknown_fields=True):
    data: Annotated[list[SettingChange], msgspec.Meta(max_length=SETTINGS_MAX)]
    validate_only: bool = False


BODIES: Final = (CreateTopicBody, AddPartitionsBody, SetSettingBody, AlterSettingsBody)

# --- clusters and brokers -------------------------------------------------------------------------------------------


@router.get("", summary="List clusters", tags=["Cluster (v3)"])
async def list_clusters(request: Request) -> Response:
    gateway = gateway_of(request)
    return json_response(_list(request, "KafkaClusterList", "clusters", [await _cluster(request, gateway)]))


@router.get("/{cluster_id}", summary="Get a cluster", tags=["Cluster (v3)"])
async def get_cluster(cluster_id: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    return json_response(await _cluster(request, gateway))


@router.get("/{cluster_id}/brokers", summary="List brokers", tags=["Broker (v3)"])
async def list_brokers(cluster_id: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    view = await gateway.admin.describe_cluster()
    brokers = [_broker(request, cluster_id, broker) for _, broker in sorted(view.brokers.items())]
    return json_response(_list(request, "KafkaBrokerList", f"clusters/{cluster_id}/brokers", brokers))


@router.get("/{cluster_id}/brokers/{broker_id}", summary="Get a broker", tags=["Broker (v3)"])
async def get_broker(cluster_id: str, broker_id: int, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    view = await gateway.admin.describe_cluster()
    for node_id, broker in view.brokers.items():
        if node_id == broker_id:
            return json_response(_broker(request, cluster_id, broker))
    raise RestError(404, f"There is no broker {broker_id}.")


@router.get("/{cluster_id}/brokers/{broker_id}/configs", summary="List a broker's settings", tags=["Configs (v3)"])
async def list_broker_configs(cluster_id: str, broker_id: int, request: Request) -> Response:
    entries = await _broker_configs(request, cluster_id, broker_id)
    configs = [_broker_config(request, cluster_id, broker_id, entry) for entry in entries]
    path = f"clusters/{cluster_id}/brokers/{broker_id}/configs"
    return json_response(_list(request, "KafkaBrokerConfigList", path, configs))


@router.get("/{cluster_id}/brokers/{broker_id}/configs/{name}", summary="Get a broker's setting", tags=["Configs (v3)"])
async def get_broker_config(cluster_id: str, broker_id: int, name: str, request: Request) -> Response:
    for entry in await _broker_configs(request, cluster_id, broker_id):
        if entry.name == name:
            return json_response(_broker_config(request, cluster_id, broker_id, entry))
    raise RestError(404, f"There is no broker setting {name}.")


async def _broker_configs(request: Request, cluster_id: str, broker_id: int) -> Sequence[ConfigEntry]:
    gateway = await _checked(request, cluster_id)
    view = await gateway.admin.describe_cluster()
    if broker_id not in view.brokers:
        raise RestError(404, f"There is no broker {broker_id}.")
    return await gateway.admin.describe_configs(ConfigResourceType.BROKER, str(broker_id))


# --- topics ---------------------------------------------------------------------------------------------------------


@router.get("/{cluster_id}/topics", summary="List topics", tags=["Topic (v3)"])
async def list_topics(cluster_id: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    view = await gateway.admin.describe_cluster()
    topics = (_topic(request, cluster_id, topic) for _, topic in sorted(view.topics.items()))
    return await _long_list(request, "KafkaTopicList", f"clusters/{cluster_id}/topics", topics)


@router.post(
    "/{cluster_id}/topics",
    summary="Create a topic",
    tags=["Topic (v3)"],
    status_code=201,
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
    gateway = await _checked(request, cluster_id)
    wanted = await _body(request, gateway, CreateTopicBody)
    created = await gateway.admin.create_topic(
        wanted.topic_name,
        partitions_count=wanted.partitions_count or -1,
        replication_factor=wanted.replication_factor or -1,
        configs={config.name: config.value for config in wanted.configs},
        validate_only=wanted.validate_only,
    )
    topic = _topic_fields(
        request,
        cluster_id,
        created.name,
        internal=False,
        partitions_count=0 if wanted.validate_only else created.partitions_count,
        replication_factor=created.replication_factor,
    )
    return json_response(topic, 200 if wanted.validate_only else 201)


@router.get("/{cluster_id}/topics/{topic_name}", summary="Get a topic", tags=["Topic (v3)"])
async def get_topic(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    return json_response(_topic(request, cluster_id, await gateway.admin.describe_topic(topic_name)))


@router.delete("/{cluster_id}/topics/{topic_name}", summary="Delete a topic", tags=["Topic (v3)"], status_code=204)
async def delete_topic(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    await gateway.admin.delete_topic(topic_name)
    return Response(status_code=_NO_CONTENT)


@router.patch(
    "/{cluster_id}/topics/{topic_name}",
    summary="Add partitions to a topic",
    tags=["Topic (v3)"],
    openapi_extra=request_body(AddPartitionsBody, {"partitions_count": 8}),
)
async def add_partitions(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    wanted = await _body(request, gateway, AddPartitionsBody)
    await gateway.admin.create_partitions(topic_name, wanted.partitions_count)
    return json_response(_topic(request, cluster_id, await gateway.admin.describe_topic(topic_name)))


# --- partitions -----------------------------------------------------------------------------------------------------


@router.get("/{cluster_id}/topics/{topic_name}/partitions", summary="List partitions", tags=["Partition (v3)"])
async def list_partitions(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    topic = await gateway.admin.describe_topic(topic_name)
    partitions = (_partition(request, cluster_id, topic_name, partition) for partition in topic.partitions)
    path = f"clusters/{cluster_id}/topics/{topic_name}/partitions"
    return await _long_list(request, "KafkaPartitionList", path, partitions)


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions/{partition_id}", summary="Get a partition", tags=["Partition (v3)"]
)
async def get_partition(cluster_id: str, topic_name: str, partition_id: int, request: Request) -> Response:
    partition = await _found_partition(request, cluster_id, topic_name, partition_id)
    return json_response(_partition(request, cluster_id, topic_name, partition))


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas",
    summary="List a partition's replicas",
    tags=["Replica (v3)"],
)
async def list_replicas(cluster_id: str, topic_name: str, partition_id: int, request: Request) -> Response:
    partition = await _found_partition(request, cluster_id, topic_name, partition_id)
    replicas = [_replica(request, cluster_id, topic_name, partition, broker) for broker in partition.replicas]
    path = f"clusters/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas"
    return json_response(_list(request, "KafkaReplicaList", path, replicas))


@router.get(
    "/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas/{broker_id}",
    summary="Get a replica",
    tags=["Replica (v3)"],
)
async def get_replica(
    cluster_id: str, topic_name: str, partition_id: int, broker_id: int, request: Request
) -> Response:
    partition = await _found_partition(request, cluster_id, topic_name, partition_id)
    if broker_id not in partition.replicas:
        raise RestError(404, f"Partition {partition_id} of topic {topic_name} has no replica on broker {broker_id}.")
    return json_response(_replica(request, cluster_id, topic_name, partition, broker_id))


async def _found_partition(request: Request, cluster_id: str, topic_name: str, partition_id: int) -> PartitionView:
    gateway = await _checked(request, cluster_id)
    topic = await gateway.admin.describe_topic(topic_name)
    for partition in topic.partitions:
        if partition.index == partition_id:
            return partition
    raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic_name} has no partition {partition_id}.")


# --- settings -------------------------------------------------------------------------------------------------------


@router.get("/{cluster_id}/topics/{topic_name}/configs", summary="List a topic's settings", tags=["Configs (v3)"])
async def list_configs(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    entries = await gateway.admin.describe_configs(ConfigResourceType.TOPIC, topic_name)
    configs = [_config(request, cluster_id, topic_name, entry) for entry in entries]
    path = f"clusters/{cluster_id}/topics/{topic_name}/configs"
    return json_response(_list(request, "KafkaTopicConfigList", path, configs))


@router.post(
    "/{cluster_id}/topics/{topic_name}/configs:alter",
    summary="Change several settings of a topic",
    tags=["Configs (v3)"],
    status_code=204,
    openapi_extra=request_body(
        AlterSettingsBody,
        {"data": [{"name": "retention.ms", "value": "-1"}, {"name": "segment.ms", "operation": "DELETE"}]},
    ),
)
async def alter_configs(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    wanted = await _body(request, gateway, AlterSettingsBody)
    changes = [(change.name, _operation(change.operation), change.value) for change in wanted.data]
    await gateway.admin.alter_configs(ConfigResourceType.TOPIC, topic_name, changes, validate_only=wanted.validate_only)
    return Response(status_code=_NO_CONTENT)


@router.get("/{cluster_id}/topics/{topic_name}/configs/{name}", summary="Get a setting", tags=["Configs (v3)"])
async def get_config(cluster_id: str, topic_name: str, name: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    for entry in await gateway.admin.describe_configs(ConfigResourceType.TOPIC, topic_name, names=[name]):
        if entry.name == name:
            return json_response(_config(request, cluster_id, topic_name, entry))
    raise RestError(404, f"There is no topic setting {name}.")


@router.put(
    "/{cluster_id}/topics/{topic_name}/configs/{name}",
    summary="Set a setting",
    tags=["Configs (v3)"],
    status_code=204,
    openapi_extra=request_body(SetSettingBody, {"value": "-1"}),
)
async def put_config(cluster_id: str, topic_name: str, name: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    wanted = await _body(request, gateway, SetSettingBody)
    await gateway.admin.alter_configs(ConfigResourceType.TOPIC, topic_name, [(name, ConfigOperation.SET, wanted.value)])
    return Response(status_code=_NO_CONTENT)


@router.delete(
    "/{cluster_id}/topics/{topic_name}/configs/{name}",
    summary="Set a setting back to its default",
    tags=["Configs (v3)"],
    status_code=204,
)
async def delete_config(cluster_id: str, topic_name: str, name: str, request: Request) -> Response:
    gateway = await _checked(request, cluster_id)
    await gateway.admin.alter_configs(ConfigResourceType.TOPIC, topic_name, [(name, ConfigOperation.DELETE, None)])
    return Response(status_code=_NO_CONTENT)


# --- the shapes -----------------------------------------------------------------------------------------------------


async def _checked(request: Request, cluster_id: str) -> Gateway:
    gateway = gateway_of(request)
    await gateway.check_cluster(cluster_id)
    return gateway


async def _body(request: Request, gateway: Gateway, kind: type[T]) -> T:
    idle_timeout_ms = gateway.settings.body_idle_timeout_ms
    return await small_body(request, kind, bytes_max=ADMIN_BODY_BYTES_MAX, idle_timeout_ms=idle_timeout_ms)


def _operation(name: str) -> ConfigOperation:
    try:
        return ConfigOperation[name.upper()]
    except KeyError:
        raise RestError(422, f"The operation {name!r} is not SET, DELETE, APPEND or SUBTRACT.") from None


def _url(request: Request, path: str) -> str:
    return f"{request.base_url}v3/{path}"


def _related(request: Request, path: str) -> dict[str, str]:
    return {"related": _url(request, path)}


def _metadata(request: Request, path: str, resource: str) -> dict[str, str]:
    return {"self": _url(request, path), "resource_name": f"crn:///{resource}"}


def _list(request: Request, kind: str, path: str, data: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"self": _url(request, path), "next": None}, "data": data}


async def _long_list(request: Request, kind: str, path: str, data: Iterable[dict[str, Any]]) -> Response:
    """The response of a list whose length the cluster decides: it is made in portions."""
    pieces: list[bytes] = []
    await each(lambda one: pieces.append(msgspec.json.encode(one)), data)
    empty = msgspec.json.encode(_list(request, kind, path, []))
    assert empty.endswith(b"[]}")
    return Response(b"".join((empty[:-2], b",".join(pieces), empty[-2:])), media_type=JSON_TYPE)


async def _cluster(request: Request, gateway: Gateway) -> dict[str, Any]:
    view = await gateway.admin.describe_cluster()
    cluster_id = view.cluster_id or ""
    path = f"clusters/{cluster_id}"
    controller = None if view.controller is None else _related(request, f"{path}/brokers/{view.controller}")
    return {
        "kind": "KafkaCluster",
        "metadata": _metadata(request, path, f"kafka={cluster_id}"),
        "cluster_id": cluster_id,
        "controller": controller,
        "brokers": _related(request, f"{path}/brokers"),
        "topics": _related(request, f"{path}/topics"),
    }


def _broker(request: Request, cluster_id: str, broker: BrokerAddress) -> dict[str, Any]:
    path = f"clusters/{cluster_id}/brokers/{broker.node_id}"
    return {
        "kind": "KafkaBroker",
        "metadata": _metadata(request, path, f"kafka={cluster_id}/broker={broker.node_id}"),
        "cluster_id": cluster_id,
        "broker_id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "configs": _related(request, f"{path}/configs"),
    }


def _topic(request: Request, cluster_id: str, topic: TopicView) -> dict[str, Any]:
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
) -> dict[str, Any]:
    path = f"clusters/{cluster_id}/topics/{name}"
    return {
        "kind": "KafkaTopic",
        "metadata": _metadata(request, path, f"kafka={cluster_id}/topic={name}"),
        "cluster_id": cluster_id,
        "topic_name": name,
        "is_internal": internal,
        "replication_factor": replication_factor,
        "partitions_count": partitions_count,
        "partitions": _related(request, f"{path}/partitions"),
        "configs": _related(request, f"{path}/configs"),
    }


def _partition(request: Request, cluster_id: str, topic: str, partition: PartitionView) -> dict[str, Any]:
    path = f"clusters/{cluster_id}/topics/{topic}/partitions/{partition.index}"
    leader = None if partition.leader is None else _related(request, f"{path}/replicas/{partition.leader}")
    return {
        "kind": "KafkaPartition",
        "metadata": _metadata(request, path, f"kafka={cluster_id}/topic={topic}/partition={partition.index}"),
        "cluster_id": cluster_id,
        "topic_name": topic,
        "partition_id": partition.index,
        "leader": leader,
        "replicas": _related(request, f"{path}/replicas"),
    }


def _replica(request: Request, cluster_id: str, topic: str, partition: PartitionView, broker_id: int) -> dict[str, Any]:
    path = f"clusters/{cluster_id}/topics/{topic}/partitions/{partition.index}/replicas/{broker_id}"
    resource = f"kafka={cluster_id}/topic={topic}/partition={partition.index}/replica={broker_id}"
    return {
        "kind": "KafkaReplica",
        "metadata": _metadata(request, path, resource),
        "cluster_id": cluster_id,
        "topic_name": topic,
        "partition_id": partition.index,
        "broker_id": broker_id,
        "is_leader": broker_id == partition.leader,
        "is_in_sync": broker_id in partition.in_sync_replicas,
        "broker": _related(request, f"clusters/{cluster_id}/brokers/{broker_id}"),
    }


def _config(request: Request, cluster_id: str, topic: str, entry: ConfigEntry) -> dict[str, Any]:
    path = f"clusters/{cluster_id}/topics/{topic}/configs/{entry.name}"
    return {
        "kind": "KafkaTopicConfig",
        "metadata": _metadata(request, path, f"kafka={cluster_id}/topic={topic}/config={entry.name}"),
        "cluster_id": cluster_id,
        "topic_name": topic,
        **_setting(entry),
    }


def _broker_config(request: Request, cluster_id: str, broker_id: int, entry: ConfigEntry) -> dict[str, Any]:
    path = f"clusters/{cluster_id}/brokers/{broker_id}/configs/{entry.name}"
    return {
        "kind": "KafkaBrokerConfig",
        "metadata": _metadata(request, path, f"kafka={cluster_id}/broker={broker_id}/config={entry.name}"),
        "cluster_id": cluster_id,
        "broker_id": broker_id,
        **_setting(entry),
    }


def _setting(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "is_default": entry.is_default,
        "is_read_only": entry.read_only,
        "is_sensitive": entry.sensitive,
        "source": entry.source,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source} for synonym in entry.synonyms
        ],
    }
