"""Metadata (key 3): brokers, topics and leaders, from the cluster image; unknown topics are made if that is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final

from app.coordinator.topics import INTERNAL, ensure_topic
from app.errors import ErrorCode, RequestRejected
from app.handlers.api import Api, ApiTable
from app.handlers.context import Context, Request
from app.handlers.metadata_cache import put_together
from app.handlers.mutations import Refusal, each
from app.handlers.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from app.handlers.partitions import offline_replicas, shown_leader
from app.metadata.changes import check_topic_name
from app.metadata.cluster import TopicImage
from app.units import NO_TOPIC_ID
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from app.wire.codec import Encoded

NULL_TOPICS_FROM: Final = 1
"""First version in which null asks for all topics and an empty list for none; in version 0 an empty list asks for all."""
TOPIC_IDS_FROM: Final = 12
"""First version in which a topic may be asked for by id. Versions 10 and 11 have the field but not the meaning."""

PARTITIONS_AT_ONCE: Final = 1_000
"""Partitions that are encoded before the loop serves other work, a topic more or less. Each takes about 5 µs."""

_PERMANENT: Final = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_CONFIG,
    }
)
"""Why a topic could not be made, said as it is; after anything else the client asks again."""


def handle(context: Context, request: Request, message: MetadataRequest) -> Encoded | Awaitable[Encoded]:
    """Describe what was asked for; waits only to make topics.

    Raises: RequestRejected INVALID_REQUEST for a topic id, or no name, in a version that has no topic ids.
    """
    if request.api_version < TOPIC_IDS_FROM and any(
        topic.name is None or topic.topic_id != NO_TOPIC_ID for topic in message.topics or ()
    ):
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST, f"Version {request.api_version} of Metadata asks for topics by name."
        )
    if message.allow_auto_topic_creation and context.config.auto_create_topics_enable:
        image = context.image
        missing = dict.fromkeys(
            name
            for topic in message.topics or ()
            if (name := _name_asked(topic)) is not None and image.topic(name) is None
        )
        if missing:
            return _with_new_topics(context, request, message, list(missing))
    lacking = _lacking(context, request, message)
    if sum(len(topic.partitions) for topic in lacking) > PARTITIONS_AT_ONCE:
        return _in_turns(context, request, message, lacking)
    return _describe(context, request, message, {})


def _lacking(context: Context, request: Request, message: MetadataRequest) -> list[TopicImage]:
    """The topics that were asked for and are not encoded yet, since something has changed."""
    image, version, cache = context.image, request.api_version, context.metadata_cache
    cache.follow(image, context.partitions.offline_changes)
    operations = TOPIC_OPERATIONS if message.include_topic_authorized_operations else NOT_ASKED
    if message.topics is None or (version < NULL_TOPICS_FROM and not message.topics):
        return cache.lacking((version, operations), None)
    found = (
        image.topic(name) if (name := _name_asked(topic)) is not None else image.topic_by_id(topic.topic_id)
        for topic in message.topics
    )
    return cache.lacking((version, operations), [topic for topic in found if topic is not None])


async def _in_turns(
    context: Context, request: Request, message: MetadataRequest, lacking: Sequence[TopicImage]
) -> Encoded:
    """Encode many topics, and let others have the loop meanwhile; then describe. What changes in between is encoded at the end."""
    operations = TOPIC_OPERATIONS if message.include_topic_authorized_operations else NOT_ASKED
    encoded = 0
    for before in lacking:
        if encoded >= PARTITIONS_AT_ONCE:
            encoded = 0
            await asyncio.sleep(0)
        context.metadata_cache.follow(context.image, context.partitions.offline_changes)
        topic = context.image.topic_by_id(before.topic_id)
        if topic is not None:
            encoded += len(topic.partitions)
            context.metadata_cache.topic(
                (request.api_version, operations), topic, lambda topic: _topic(context, topic, operations)
            )
    return _describe(context, request, message, {})


async def _with_new_topics(context: Context, request: Request, message: MetadataRequest, missing: list[str]) -> Encoded:
    async def make(name: str) -> TopicImage:
        internal = INTERNAL.get(name)
        if internal is not None:
            return await ensure_topic(context.cluster, context.controller, internal)
        return await context.controller.create_topic(name)

    answers = await each(missing, make)
    failed = {
        name: answer.code if answer.code in _PERMANENT else ErrorCode.LEADER_NOT_AVAILABLE
        for name, answer in zip(missing, answers, strict=True)
        if isinstance(answer, Refusal)
    }
    return _describe(context, request, message, failed)


def _describe(context: Context, request: Request, message: MetadataRequest, failed: Mapping[str, ErrorCode]) -> Encoded:
    """The response, put together from pieces that are encoded already (``metadata_cache.py``)."""
    image, version, cache = context.image, request.api_version, context.metadata_cache
    cache.follow(image, context.partitions.offline_changes)
    operations = TOPIC_OPERATIONS if message.include_topic_authorized_operations else NOT_ASKED
    kind = (version, operations)
    frame = MetadataResponse(
        throttle_time_ms=request.throttle_time_ms,
        brokers=[
            MetadataResponseBroker(node_id, endpoint.host, endpoint.port, broker.rack)
            for node_id, broker in sorted(image.brokers.items())
            if not broker.fenced and (endpoint := broker.endpoint(request.caller.listener)) is not None
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller.broker_id,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if message.include_cluster_authorized_operations else NOT_ASKED
        ),
    )

    def describe(topic: TopicImage) -> MetadataResponseTopic:
        return _topic(context, topic, operations)

    if message.topics is None or (version < NULL_TOPICS_FROM and not message.topics):
        body = put_together(version, frame, len(image.topics_by_name), [cache.all_topics(kind, describe)])
        return Encoded(body)
    topics: list[bytes] = []
    asked = dict.fromkeys((_name_asked(topic), topic.topic_id) for topic in message.topics)
    for name, topic_id in asked:
        found = image.topic(name) if name is not None else image.topic_by_id(topic_id)
        if found is not None:
            topics.append(cache.topic(kind, found, describe))
        elif name is None:
            missing = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
            topics.append(cache.unknown(kind, missing))
        else:
            missing = MetadataResponseTopic(error_code=failed.get(name, _why_unknown(name)), name=name)
            topics.append(cache.unknown(kind, missing))
    return Encoded(put_together(version, frame, len(topics), topics))


def _name_asked(topic: MetadataRequestTopic) -> str | None:
    """The name of a topic that is asked for by name. Who asks by id leaves the name out, or (the Java client) empty."""
    return topic.name if topic.topic_id == NO_TOPIC_ID else None


def _why_unknown(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except RequestRejected as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topic(context: Context, topic: TopicImage, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=partition.partition_index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=offline_replicas(context, topic, partition),
            )
            for partition in topic.partitions
            for leader in (shown_leader(context, topic, partition),)
        ],
        topic_authorized_operations=operations,
    )


def refuse(request: Request, message: MetadataRequest, code: ErrorCode, sentence: str) -> MetadataResponse:
    del sentence

    def refused(topic: MetadataRequestTopic) -> MetadataResponseTopic:
        name = topic.name if request.api_version >= TOPIC_IDS_FROM else topic.name or ""
        return MetadataResponseTopic(error_code=code, name=name, topic_id=topic.topic_id)

    return MetadataResponse(error_code=code, topics=[refused(topic) for topic in message.topics or ()])


APIS: Final[ApiTable] = {ApiKey.METADATA: Api(handle, refuse)}
