"""Metadata (key 3): brokers, topics and leaders, from the cluster image; unknown topics are made if that is wanted."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from app.errors import ErrorCode, FirnError, kafka_code
from app.handlers.api import Api, ApiTable
from app.handlers.context import Context, Request
from app.units import NO_TOPIC_ID
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def handle(
    context: Context, request: Request, message: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Describe what was asked for; waits only to make topics."""
    if message.topics and message.allow_auto_topic_creation and context.config.auto_create_topics_enable:
        missing = [t.name for t in message.topics if t.name is not None and context.image.topic(t.name) is None]
        if missing:
            return _with_new_topics(context, request, message, missing)
    return _describe(context, request, message, {})


async def _with_new_topics(
    context: Context, request: Request, message: MetadataRequest, missing: list[str]
) -> MetadataResponse:
    failed: dict[str, ErrorCode] = {}
    for name in missing:
        try:
            await context.controller.create_topic(name, context.config.num_partitions, {})
        except FirnError as error:
            failed[name] = kafka_code(error)
    return _describe(context, request, message, failed)


def _describe(
    context: Context, request: Request, message: MetadataRequest, failed: dict[str, ErrorCode]
) -> MetadataResponse:
    image = context.image
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(broker.broker_id, broker.host, broker.port, broker.rack)
            for broker in image.brokers.values()
        ],
        cluster_id=image.cluster_id,
        controller_id=context.config.node_id,
    )
    everything = message.topics is None or (request.api_version == 0 and not message.topics)
    if everything:
        response.topics = [_topic(topic) for topic in image.topics_by_name.values()]
        return response
    for asked in message.topics or ():
        if asked.name is not None:
            topic = image.topic(asked.name)
            code = failed.get(asked.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            topic = image.topic_by_id(asked.topic_id)
            code = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None:
            response.topics.append(MetadataResponseTopic(error_code=code, name=asked.name, topic_id=asked.topic_id))
        else:
            response.topics.append(_topic(topic))
    return response


def _topic(topic: object) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,  # type: ignore[attr-defined]
        topic_id=topic.topic_id,  # type: ignore[attr-defined]
        partitions=[
            MetadataResponsePartition(
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
            )
            for index, partition in enumerate(topic.partitions)  # type: ignore[attr-defined]
        ],
    )


def refuse(request: Request, message: MetadataRequest, code: ErrorCode, sentence: str) -> MetadataResponse:
    del sentence, request
    return MetadataResponse(
        error_code=code,
        topics=[
            MetadataResponseTopic(error_code=code, name=topic.name, topic_id=topic.topic_id or NO_TOPIC_ID)
            for topic in message.topics or ()
        ],
    )


APIS: Final[ApiTable] = {ApiKey.METADATA: Api(handle, refuse)}
