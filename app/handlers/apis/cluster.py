"""DescribeCluster (key 60, KIP-700), DescribeTopicPartitions (key 75, KIP-966), FirnTopics and FirnCluster.

All of them read the cluster image.

Tests: ``tests/handlers/test_admin_cluster.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import Portion, ordered, run
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    cluster_operations,
    judge,
    may,
    operations,
)
from app.handlers.base.partitions import offline_replicas, shown_leader, shown_leader_epoch
from app.handlers.base.request import Request
from app.handlers.base.views import MetadataView
from app.metadata.changes.features import OF_PROTOCOL
from app.metadata.image.image import PartitionImage, TopicImage
from app.metadata.image.records import LEVEL_MAX
from app.metadata.view.standing import standing
from app.security.acls import Operation, ResourceType
from app.security.noting import note
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from app.wire.apis.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from app.wire.private import (
    ClusterBroker,
    ClusterMove,
    ClusterRequest,
    ClusterResponse,
    TopicsRequest,
    pack,
    topics_page_steps,
    unpack,
)

BROKERS: Final = 1
CONTROLLERS: Final = 2


def describe_cluster(
    context: MetadataView, request: Request, message: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The cluster's id and brokers; those that are fenced only if they are asked for (KIP-1073).

    Raises: RequestRejected MISMATCHED_ENDPOINT_TYPE for the endpoints of controllers, which clients do not connect to here.
    """
    if message.endpoint_type == CONTROLLERS:
        raise RequestRejected(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE, "The request was sent to an endpoint of type BROKER, not CONTROLLER."
        )
    if message.endpoint_type != BROKERS:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"There is no endpoint type {message.endpoint_type}."
        )
    image = context.image
    return DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=image.cluster_id,
        controller_id=image.controller.broker_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack, is_fenced=broker.fenced
            )
            for node_id, broker in sorted(image.brokers.items())
            if (message.include_fenced_brokers or not broker.fenced)
            and (endpoint := broker.endpoint(request.caller.listener)) is not None
        ],
        cluster_authorized_operations=(
            cluster_operations(context, request.caller, CLUSTER_OPERATIONS)
            if message.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


def refuse_describe_cluster(
    request: Request, message: DescribeClusterRequest, code: ErrorCode, sentence: str
) -> DescribeClusterResponse:
    del request
    return DescribeClusterResponse(error_code=code, error_message=sentence, endpoint_type=message.endpoint_type)


async def describe_topic_partitions(
    context: MetadataView, request: Request, message: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Topics by name, page by page: at most as many partitions as the client and the broker allow, from the cursor on.

    Raises: RequestRejected INVALID_REQUEST for a cursor at a negative partition.
    """
    image = context.image
    cursor = message.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "The cursor's partition must not be negative.")
    portion = Portion()
    asked = {topic.name for topic in message.topics} if message.topics else image.topics_by_name
    names = await ordered(asked, portion, key=str)
    if cursor is not None:
        names = names[bisect_left(names, cursor.topic_name) :]
    denied: list[str] = []
    if context.authorizer is not None:
        seen: list[str] = []
        for name in names:
            if may(context, request.caller, Operation.DESCRIBE, ResourceType.TOPIC, name):
                seen.append(name)
            elif message.topics:
                denied.append(name)
                note(request, Operation.DESCRIBE, ResourceType.TOPIC, name)
            if portion.spent_by():
                await portion.rest()
        names = seen
    room = max(1, min(message.response_partition_limit, context.config.max_request_partition_size_limit))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        await portion.rest_if_spent()
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=start)
            break
        topic = image.topic(name)
        allowed = operations(context, request.caller, ResourceType.TOPIC, name, TOPIC_OPERATIONS)
        if topic is None:
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_authorized_operations=allowed
                )
            )
            continue
        partitions = topic.partitions[start : start + room]
        room -= len(partitions)
        response.topics.append(_described(context, topic, partitions, allowed))
        if start + len(partitions) < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=start + len(partitions))
            break
    response.topics += [
        DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
        for name in denied
    ]
    return response


def _described(
    context: MetadataView, topic: TopicImage, partitions: tuple[PartitionImage, ...], allowed: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        topic_authorized_operations=allowed,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=partition.partition_index,
                leader_id=leader,
                leader_epoch=shown_leader_epoch(context, partition),
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.eligible),
                last_known_elr=list(partition.last_known_eligible),
                offline_replicas=offline_replicas(context, topic, partition),
            )
            for partition in partitions
            for leader in (shown_leader(context, topic, partition),)
        ],
    )


def refuse_describe_topic_partitions(
    request: Request, message: DescribeTopicPartitionsRequest, code: ErrorCode, sentence: str
) -> DescribeTopicPartitionsResponse:
    del request, sentence
    return DescribeTopicPartitionsResponse(
        topics=[DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name) for topic in message.topics]
    )


async def list_topic_names(context: MetadataView, request: Request, message: bytes) -> bytes:
    """FirnTopics: a page of the names that the caller may see, and how many there are. The work does not grow with the partitions.

    Raises: ProtocolError.
    """
    asked = unpack(TopicsRequest, message)

    def sees(name: str) -> bool:
        # The authorizer keeps its judge until the rules change. Decisions of single names look at each rule that fits.
        return judge(context, request.caller, Operation.DESCRIBE, ResourceType.TOPIC)(name)

    topics = ((name, topic.is_internal) for name, topic in context.image.topics_by_name.items())
    return pack(await run(topics_page_steps(asked, topics, sees)))


async def describe_standing(context: MetadataView, request: Request, message: bytes) -> bytes:
    """FirnCluster: how the cluster stands. Only the controller knows how far others are. Raises: ProtocolError."""
    del request
    asked = unpack(ClusterRequest, message)
    found = await run(standing.steps(context.image, context.config, asked.leaving))
    desk = context.desk
    return pack(
        ClusterResponse(
            node_id=context.config.node_id,
            cluster_id=found.cluster_id,
            sequence=found.sequence,
            level=found.level,
            controller_id=found.controller_id,
            controller_epoch=found.controller_epoch,
            brokers=[
                ClusterBroker(
                    *one,
                    applied=-1 if desk is None else desk.applied(one.node_id),
                    clock_ms=None if desk is None else desk.clock_ms(one.node_id),
                )
                for one in found.brokers
            ],
            topics=found.topics,
            partitions=found.partitions,
            under_replicated=found.under_replicated,
            under_min_isr=found.under_min_isr,
            offline=found.offline,
            under_replicated_count=found.under_replicated_count,
            under_min_isr_count=found.under_min_isr_count,
            offline_count=found.offline_count,
            moves=[
                ClusterMove(one.topic, one.partition, list(one.replicas), list(one.adding), list(one.removing))
                for one in found.reassignments
            ],
            moves_count=found.reassignment_count,
            level_max=LEVEL_MAX,
            protocol_features=dict(OF_PROTOCOL),
            store="" if context.store_trouble is None else context.store_trouble(),
        )
    )


def _refuse(request: Request, message: object, code: ErrorCode, why: str) -> None:
    return None


APIS: Final[ApiTable] = {
    ApiKey.FIRN_CLUSTER: Api(describe_standing, _refuse),
    ApiKey.FIRN_TOPICS: Api(list_topic_names, _refuse),
    ApiKey.DESCRIBE_CLUSTER: Api(describe_cluster, refuse_describe_cluster),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(describe_topic_partitions, refuse_describe_topic_partitions),
}
