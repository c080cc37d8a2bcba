"""Metadata (key 3): brokers, topics and leaders, from the cluster image; unknown topics are made if that is wanted.

Tests: ``tests/handlers/test_metadata_cache.py``, ``tests/handlers/test_admin_cluster.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from app.coordinator.topics import INTERNAL, ensure_topic
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import Portion, slices
from app.core.units import NO_TOPIC_ID
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
from app.handlers.base.mutations import Refusal, each
from app.handlers.base.partitions import check_not_owned, offline_replicas, shown_leader, shown_leader_epoch
from app.handlers.base.request import Request
from app.handlers.base.views import MetadataView
from app.handlers.state.metadata_cache import put_together, with_operations
from app.metadata.changes.topic_changes import check_topic_name
from app.metadata.image.image import ClusterImage, PartitionImage, TopicImage
from app.security.acls import Operation, ResourceType
from app.security.noting import change, note
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
"""Partitions that are encoded before the loop serves other work, a chunk of a topic more or less. Each takes about 5 µs."""
TOPICS_AT_ONCE: Final = 250
"""Topics that are described in one turn: some 2 ms."""
SLICE_TOPICS: Final = 64
"""Topics of a long request that are described before the clock is looked at. Their names may be long."""
TRIES_MAX: Final = 3
"""How often a topic is encoded in turns that changes meanwhile. Then the changed chunks are encoded at once."""

_PERMANENT: Final = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_CONFIG,
    }
)
"""Errors of a topic that could not be made, which the client is told. After any other error the client asks again."""


def handle(context: MetadataView, request: Request, message: MetadataRequest) -> Encoded | Awaitable[Encoded]:
    """Describe the cluster and the topics of a request. Waits for new topics, and rests between portions of many topics.

    Raises: RequestRejected INVALID_REQUEST for a topic id, or no name, in a version that has no topic ids.
    """
    if request.api_version < TOPIC_IDS_FROM and any(
        topic.name is None or topic.topic_id != NO_TOPIC_ID for topic in message.topics or ()
    ):
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST, f"Version {request.api_version} of Metadata asks for topics by name."
        )
    if len(message.topics or ()) > TOPICS_AT_ONCE:
        return _in_portions(context, request, message, message.topics or (), listed=False)
    wanted = _wanted(context, request, message)
    if wanted.topics is None and depends_on_caller(context, message):
        wanted = _Wanted([MetadataRequestTopic(NO_TOPIC_ID, name) for name in context.image.topics_by_name])
    if len(wanted.topics or ()) > TOPICS_AT_ONCE:
        return _in_portions(context, request, message, wanted.topics or (), listed=True)
    failed = _made_ready(context, request, message, wanted)
    if isinstance(failed, Awaitable):
        return _described_then(context, request, message, wanted, failed)
    return _describe(context, request, message, wanted, failed)


async def _in_portions(
    context: MetadataView,
    request: Request,
    message: MetadataRequest,
    asked: Sequence[MetadataRequestTopic],
    *,
    listed: bool,
) -> Encoded:
    """Describe many topics, some at a time (ADR 0039). Rights and topics are looked at anew for each of these.

    ``listed``: this broker has named them, not the caller. Then deleted topics, and topics that the caller may not see any more,
    are left out.
    """
    portion = Portion()
    told: set[tuple[str | None, UUID]] = set()
    topics: list[MetadataRequestTopic] = []
    bodies: list[bytes] = []
    for slice_ in slices(asked, SLICE_TOPICS):
        some: list[MetadataRequestTopic] = []
        for topic in slice_:
            name = (_name_asked(topic), topic.topic_id)
            if name not in told and not (listed and context.image.topic(topic.name or "") is None):
                told.add(name)
                some.append(topic)
        wanted = _wanted(context, request, replace(message, topics=some)) if some else _Wanted(())
        if listed:
            wanted = _Wanted(wanted.topics)
        failed = _made_ready(context, request, message, wanted)
        if isinstance(failed, Awaitable):
            failed = await failed
        topics += wanted.topics or ()
        bodies += _topics_described(context, request, message, wanted, failed)
        if portion.spent():
            await portion.rest()
    return _put_together(context, request, message, _Wanted(topics), bodies)


def _made_ready(
    context: MetadataView, request: Request, message: MetadataRequest, wanted: _Wanted
) -> Mapping[str, ErrorCode] | Awaitable[Mapping[str, ErrorCode]]:
    """Make the topics that are to be made, and encode many partitions. Returns: topics that could not be made, and why."""
    if _creates(context, message):
        image = context.image
        missing = dict.fromkeys(
            name
            for topic in wanted.topics or ()
            if (name := _name_asked(topic)) is not None and image.topic(name) is None
        )
        if missing:
            return _with_new_topics(context, request, list(missing))
    lacking = _lacking(context, request, message, wanted)
    if sum(len(topic.partitions) for topic in lacking) > PARTITIONS_AT_ONCE:
        return _in_turns(context, request, message, lacking)
    return {}


def _creates(context: MetadataView, message: MetadataRequest) -> bool:
    return message.allow_auto_topic_creation and context.config.auto_create_topics_enable


class _Wanted(NamedTuple):
    """The topics that a response describes."""

    topics: Sequence[MetadataRequestTopic] | None
    """None: all topics."""
    denied: Sequence[MetadataResponseTopic] = ()
    """Errors for topics that the caller has named and may not see, or not create."""


def _wanted(context: MetadataView, request: Request, message: MetadataRequest) -> _Wanted:
    asked = None if request.api_version < NULL_TOPICS_FROM and not message.topics else message.topics
    if context.authorizer is None:
        return _Wanted(asked)
    image, caller = context.image, request.caller

    def sees(name: str) -> bool:
        return may(context, caller, Operation.DESCRIBE, ResourceType.TOPIC, name)

    if asked is None:
        seen = list(filter(judge(context, caller, Operation.DESCRIBE, ResourceType.TOPIC), image.topics_by_name))
        everything = len(seen) == len(image.topics_by_name)
        return _Wanted(None if everything else [MetadataRequestTopic(NO_TOPIC_ID, name) for name in seen])
    creates = _creates(context, message)
    creates_any = creates and may(context, caller, Operation.CREATE, ResourceType.CLUSTER)
    topics: list[MetadataRequestTopic] = []
    denied: dict[object, MetadataResponseTopic] = {}
    for topic in asked:
        name = _name_asked(topic)
        known = image.topic(name) if name is not None else image.topic_by_id(topic.topic_id)
        real_name = name if known is None else known.name
        if real_name is not None and not sees(real_name):
            note(request, Operation.DESCRIBE, ResourceType.TOPIC, real_name)
            # The answer does not tell whether the topic exists. An id tells nothing.
            denied[name or topic.topic_id] = MetadataResponseTopic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, topic_id=topic.topic_id
            )
        elif (
            name is not None
            and known is None
            and creates
            and not creates_any
            and not may(context, caller, Operation.CREATE, ResourceType.TOPIC, name)
        ):
            note(request, Operation.CREATE, ResourceType.TOPIC, name)
            denied[name] = MetadataResponseTopic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, is_internal=name in INTERNAL
            )
        else:
            topics.append(topic)
    return _Wanted(topics, list(denied.values()))


def _operations(context: MetadataView, message: MetadataRequest) -> int:
    """The authorized operations that are the same for each topic. Operations that depend on the caller are added later."""
    asked = message.include_topic_authorized_operations and context.authorizer is None
    return TOPIC_OPERATIONS if asked else NOT_ASKED


def _lacking(context: MetadataView, request: Request, message: MetadataRequest, wanted: _Wanted) -> list[TopicImage]:
    """The topics that were asked for and are not encoded yet, since something has changed."""
    image, version, cache = context.image, request.api_version, context.metadata_cache
    cache.follow(image, context.partitions.offline_changes)
    kind = (version, _operations(context, message))
    if wanted.topics is None:
        return cache.lacking(kind, None)
    found = (
        image.topic(name) if (name := _name_asked(topic)) is not None else image.topic_by_id(topic.topic_id)
        for topic in wanted.topics
    )
    return cache.lacking(kind, [topic for topic in found if topic is not None])


async def _in_turns(
    context: MetadataView, request: Request, message: MetadataRequest, lacking: Sequence[TopicImage]
) -> Mapping[str, ErrorCode]:
    """Encode many partitions, and let the loop serve other work meanwhile. A topic that changes meanwhile is encoded again."""
    operations = _operations(context, message)
    cache, encoded = context.metadata_cache, 0
    for before in lacking:
        for _ in range(TRIES_MAX):
            if encoded >= PARTITIONS_AT_ONCE:
                encoded = 0
                await asyncio.sleep(0)
            cache.follow(context.image, context.partitions.offline_changes)
            topic = context.image.topic_by_id(before.topic_id)
            if topic is None:
                break
            making = cache.begin((request.api_version, operations), topic)
            for number, partitions in making.unencoded.items():
                if encoded >= PARTITIONS_AT_ONCE:
                    encoded = 0
                    await asyncio.sleep(0)
                encoded += len(partitions)
                making.add(number, topic_shown(context, topic, partitions, operations).partitions)
            cache.follow(context.image, context.partitions.offline_changes)
            if cache.finish(making, topic_shown(context, topic, (), operations)):
                break
    return {}


async def _with_new_topics(context: MetadataView, request: Request, missing: list[str]) -> Mapping[str, ErrorCode]:
    """Make topics. Returns: those that could not be made, and why."""

    async def make(name: str) -> TopicImage:
        check_not_owned(name)
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
    if context.audit is not None:
        made = [topic for topic in answers if isinstance(topic, TopicImage)]
        context.audit.changed(
            request,
            [change("TOPIC", one.name, "CREATE", partitions=len(one.partitions)) for one in made],
        )
    return failed


def _brokers_shown(context: MetadataView, request: Request, image: ClusterImage) -> list[MetadataResponseBroker]:
    """The brokers that are not fenced. If there are none, this broker: a broker that starts is fenced for a moment, and librdkafka
    forgets its bootstrap servers when a response lists no broker, and never asks again.

    An isolated broker lists itself, as other brokers do that have not fenced it yet (IS9): librdkafka drops a broker that is not in
    the list, and adds it again when another list has it. With different lists it would do so a hundred times a second.
    """
    reached = [
        (broker, endpoint)
        for _, broker in sorted(image.brokers.items())
        if (endpoint := broker.endpoint(request.caller.listener)) is not None
    ]
    shown = [one for one in reached if not one[0].fenced]
    if not shown:
        shown = [one for one in reached if one[0].broker_id == context.config.node_id]
    return [
        MetadataResponseBroker(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
        for broker, endpoint in shown
    ]


def depends_on_caller(context: MetadataView, message: MetadataRequest) -> bool:
    """Whether the description of a topic depends on the caller."""
    return message.include_topic_authorized_operations and context.authorizer is not None


async def _described_then(
    context: MetadataView,
    request: Request,
    message: MetadataRequest,
    wanted: _Wanted,
    ready: Awaitable[Mapping[str, ErrorCode]],
) -> Encoded:
    return _describe(context, request, message, wanted, await ready)


def _describe(
    context: MetadataView, request: Request, message: MetadataRequest, wanted: _Wanted, failed: Mapping[str, ErrorCode]
) -> Encoded:
    """The response, put together from pieces that are encoded already (``metadata_cache.py``)."""
    bodies = None if wanted.topics is None else _topics_described(context, request, message, wanted, failed)
    return _put_together(context, request, message, wanted, bodies)


def _put_together(
    context: MetadataView, request: Request, message: MetadataRequest, wanted: _Wanted, bodies: Sequence[bytes] | None
) -> Encoded:
    """The response. ``bodies``: encoded topics; None for all topics."""
    image, version, cache = context.image, request.api_version, context.metadata_cache
    frame = MetadataResponse(
        throttle_time_ms=request.throttle_time_ms,
        brokers=_brokers_shown(context, request, image),
        cluster_id=image.cluster_id,
        controller_id=image.controller.broker_id,
        cluster_authorized_operations=(
            cluster_operations(context, request.caller, CLUSTER_OPERATIONS)
            if message.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )
    if bodies is not None:
        return Encoded(put_together(version, frame, len(bodies), bodies))
    kind = (version, _operations(context, message))
    cache.follow(image, context.partitions.offline_changes)

    def describe(topic: TopicImage, partitions: Sequence[PartitionImage]) -> MetadataResponseTopic:
        return topic_shown(context, topic, partitions, kind[1])

    body = put_together(version, frame, len(image.topics_by_name), [cache.all_topics(kind, describe)])
    return Encoded(body)


def _topics_described(
    context: MetadataView, request: Request, message: MetadataRequest, wanted: _Wanted, failed: Mapping[str, ErrorCode]
) -> list[bytes]:
    """The encoded descriptions of the named topics, and the errors for topics that the caller may not see."""
    image, version, cache = context.image, request.api_version, context.metadata_cache
    cache.follow(image, context.partitions.offline_changes)
    kind = (version, _operations(context, message))
    differs = depends_on_caller(context, message)

    def describe(topic: TopicImage, partitions: Sequence[PartitionImage]) -> MetadataResponseTopic:
        return topic_shown(context, topic, partitions, kind[1])

    topics = [cache.unknown(kind, one) for one in wanted.denied]
    for name, topic_id in dict.fromkeys((_name_asked(topic), topic.topic_id) for topic in wanted.topics or ()):
        found = image.topic(name) if name is not None else image.topic_by_id(topic_id)
        if found is not None and differs:
            allowed = operations(context, request.caller, ResourceType.TOPIC, found.name, TOPIC_OPERATIONS)
            topics.append(with_operations(version, cache.topic(kind, found, describe), allowed))
        elif found is not None:
            topics.append(cache.topic(kind, found, describe))
        elif name is None:
            missing = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
            topics.append(cache.unknown(kind, missing))
        else:
            missing = MetadataResponseTopic(error_code=failed.get(name, _why_unknown(name)), name=name)
            topics.append(cache.unknown(kind, missing))
    return topics


def _name_asked(topic: MetadataRequestTopic) -> str | None:
    """The name of a topic that is asked for by name. Requests by id leave the name out, or (the Java client) empty."""
    return topic.name if topic.topic_id == NO_TOPIC_ID else None


def _why_unknown(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except RequestRejected as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def topic_shown(
    context: MetadataView, topic: TopicImage, partitions: Sequence[PartitionImage], operations: int
) -> MetadataResponseTopic:
    """The description of a topic and of these of its partitions for clients."""
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=partition.partition_index,
                leader_id=leader,
                leader_epoch=shown_leader_epoch(context, partition),
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=offline_replicas(context, topic, partition),
            )
            for partition in partitions
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
