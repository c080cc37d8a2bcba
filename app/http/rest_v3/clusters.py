"""Clusters and brokers of REST v3.

Tests: ``tests/http/test_application.py``, ``tests/http/rest_v3/test_clusters.py``.
"""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import BrokerAddress
from app.core.turns import Portion, ordered
from app.core.units import BrokerId
from app.http.bodies import json_response
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.rest_v3.resources import (
    PAGED,
    Related,
    RestResource,
    checked,
    described,
    listed,
    listing,
    metadata,
    page_list,
    related,
)
from app.http.rest_v3.topics import ReplicaResource, replica_of
from app.http.serving import gateway_of

router = APIRouter(prefix="/v3/clusters", default_response_class=Response)


class ClusterResource(RestResource, kw_only=True):
    """A cluster, with links to its contents."""

    kind: Literal["KafkaCluster"] = "KafkaCluster"
    cluster_id: str
    controller: Related | None
    acls: Related
    brokers: Related
    broker_configs: Related
    consumer_groups: Related
    share_groups: Related
    topics: Related
    partition_reassignments: Related


class BrokerResource(RestResource, kw_only=True):
    """A broker."""

    kind: Literal["KafkaBroker"] = "KafkaBroker"
    cluster_id: str
    broker_id: int
    host: str
    port: int
    rack: str | None
    configs: Related
    partition_replicas: Related


BODIES: Final = (ClusterResource, BrokerResource)


@router.get("", summary="List clusters", tags=["Cluster (v3)"], responses=listed(ClusterResource, "The one cluster."))
async def list_clusters(request: Request) -> Response:
    gateway = gateway_of(request)
    return json_response(listing(request, "KafkaClusterList", "clusters", [await _cluster(request, gateway)]))


@router.get(
    "/{cluster_id}",
    summary="Get a cluster",
    tags=["Cluster (v3)"],
    responses=described(ClusterResource, "The cluster."),
)
async def get_cluster(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    return json_response(await _cluster(request, gateway))


@router.get(
    "/{cluster_id}/brokers",
    summary="List brokers",
    tags=["Broker (v3)"],
    responses=listed(BrokerResource, "The brokers, by id."),
    openapi_extra=PAGED,
)
async def list_brokers(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    view = await gateway.admin.describe_brokers()
    return await page_list(
        request,
        "KafkaBrokerList",
        f"clusters/{cluster_id}/brokers",
        sorted(view.brokers.values()),
        place=lambda broker: (broker.node_id,),
        shape=lambda broker: _broker(request, cluster_id, broker),
    )


@router.get(
    "/{cluster_id}/brokers/{broker_id}",
    summary="Get a broker",
    tags=["Broker (v3)"],
    responses=described(BrokerResource, "The broker."),
)
async def get_broker(cluster_id: str, broker_id: int, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    return json_response(_broker(request, cluster_id, await found_broker(gateway, broker_id)))


@router.get(
    "/{cluster_id}/brokers/{broker_id}/partition-replicas",
    summary="List the replicas on a broker",
    tags=["Replica (v3)"],
    responses=listed(ReplicaResource, "The replicas on the broker, by topic and partition."),
    openapi_extra=PAGED,
)
async def list_replicas_of_broker(cluster_id: str, broker_id: int, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    await found_broker(gateway, broker_id)
    view = await gateway.admin.describe_cluster()
    found = []
    portion = Portion()
    for topic in await ordered(view.topics.values(), portion, lambda topic: topic.name):
        for partition in topic.partitions:
            if broker_id in partition.replicas:
                found.append((topic.name, partition))
            if portion.spent_by():
                await portion.rest()
    return await page_list(
        request,
        "KafkaReplicaList",
        f"clusters/{cluster_id}/brokers/{broker_id}/partition-replicas",
        found,
        place=lambda one: (one[0], one[1].index),
        shape=lambda one: replica_of(request, cluster_id, one[0], one[1], broker_id),
    )


async def found_broker(gateway: Gateway, broker_id: int) -> BrokerAddress:
    """A broker of the cluster. Raises: RestError 404, BrokerUnavailable."""
    view = await gateway.admin.describe_brokers()
    broker = view.brokers.get(BrokerId(broker_id))
    if broker is None:
        raise RestError(404, f"There is no broker {broker_id}.")
    return broker


async def _cluster(request: Request, gateway: Gateway) -> ClusterResource:
    view = await gateway.admin.describe_brokers()
    cluster_id = view.cluster_id or ""
    path = f"clusters/{cluster_id}"
    return ClusterResource(
        metadata=metadata(request, path, f"kafka={cluster_id}"),
        cluster_id=cluster_id,
        controller=None if view.controller is None else related(request, f"{path}/brokers/{view.controller}"),
        acls=related(request, f"{path}/acls"),
        brokers=related(request, f"{path}/brokers"),
        broker_configs=related(request, f"{path}/broker-configs"),
        consumer_groups=related(request, f"{path}/consumer-groups"),
        share_groups=related(request, f"{path}/share-groups"),
        topics=related(request, f"{path}/topics"),
        partition_reassignments=related(request, f"{path}/topics/-/partitions/-/reassignment"),
    )


def _broker(request: Request, cluster_id: str, broker: BrokerAddress) -> BrokerResource:
    path = f"clusters/{cluster_id}/brokers/{broker.node_id}"
    return BrokerResource(
        metadata=metadata(request, path, f"kafka={cluster_id}/broker={broker.node_id}"),
        cluster_id=cluster_id,
        broker_id=broker.node_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack,
        configs=related(request, f"{path}/configs"),
        partition_replicas=related(request, f"{path}/partition-replicas"),
    )
