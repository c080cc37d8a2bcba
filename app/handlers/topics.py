"""CreateTopics (key 19), DeleteTopics (20), CreatePartitions (37): changes of the set of topics, through the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.errors import ErrorCode, RequestRejected
from app.handlers.api import Api, ApiTable
from app.handlers.configs import described_topic
from app.handlers.context import Context, Request
from app.handlers.mutations import Refusal, each, repeated
from app.metadata.cluster import TopicImage
from app.units import NO_TOPIC_ID
from app.wire.apikeys import ApiKey
from app.wire.apis.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from app.wire.apis.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from app.wire.apis.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

TOPIC_STATES_FROM: Final = 6
"""First version of DeleteTopics that speaks of topics by name or by id (KIP-516)."""
DUPLICATE: Final = Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


# --- CreateTopics ---------------------------------------------------------------------------------------------------


async def create_topics(context: Context, request: Request, message: CreateTopicsRequest) -> CreateTopicsResponse:
    """Make each topic, or with ``validate_only`` see whether it could be made; -1 is a default of the broker."""
    del request
    twice = repeated(topic.name for topic in message.topics)
    asked = [topic for topic in message.topics if topic.name not in twice]

    async def create(topic: CreatableTopic) -> TopicImage:
        assignments = {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}
        if len(assignments) != len(topic.assignments):
            raise RequestRejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned by hand more than once."
            )
        return await context.controller.create_topic(
            topic.name,
            topic.num_partitions,
            {config.name: config.value for config in topic.configs},
            topic.replication_factor,
            assignments=assignments or None,
            validate_only=message.validate_only,
        )

    answers = await each(asked, create)
    results = [_refused(name, DUPLICATE.code, DUPLICATE.sentence) for name in sorted(twice)]
    for topic, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Refusal):
            results.append(_refused(topic.name, *answer))
        else:
            results.append(_created(context, answer, validate_only=message.validate_only))
    return CreateTopicsResponse(topics=results)


def _refused(name: str, code: ErrorCode, sentence: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=sentence, configs=None)


def _created(context: Context, topic: TopicImage, *, validate_only: bool) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=NO_TOPIC_ID if validate_only else topic.topic_id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=[
            CreatableTopicConfigs(
                name=config.name,
                value=config.value,
                read_only=config.read_only,
                config_source=config.source,
                is_sensitive=config.definition.sensitive,
            )
            for config in described_topic(context, topic.configs)
        ],
    )


def refuse_create_topics(
    request: Request, message: CreateTopicsRequest, code: ErrorCode, sentence: str
) -> CreateTopicsResponse:
    del request
    return CreateTopicsResponse(topics=[_refused(topic.name, code, sentence) for topic in message.topics])


# --- DeleteTopics ---------------------------------------------------------------------------------------------------


async def delete_topics(context: Context, request: Request, message: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete each topic by name or id; the name is free when this answers, objects and files go in the background."""
    states = (
        message.topics
        if request.api_version >= TOPIC_STATES_FROM
        else [DeleteTopicState(name=name) for name in message.topic_names]
    )
    image = context.image
    # A topic that is named in two ways is named twice. What is not known keeps its name or id as its identity.
    identities = []
    for state in states:
        topic = image.topic(state.name) if state.name is not None else image.topic_by_id(state.topic_id)
        identities.append(topic.topic_id if topic is not None else state.name or state.topic_id)
    twice = repeated(identities)

    async def delete(item: tuple[DeleteTopicState, object]) -> TopicImage:
        state, identity = item
        if state.name is not None and state.topic_id != NO_TOPIC_ID:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        if state.name is None and state.topic_id == NO_TOPIC_ID:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        if identity in twice:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "The topic is named more than once.")
        if state.name is not None:
            return await context.controller.delete_topic(state.name)
        return await context.controller.delete_topic(topic_id=state.topic_id)

    answers = await each(list(zip(states, identities, strict=True)), delete)
    responses = []
    for state, answer in zip(states, answers, strict=True):
        if isinstance(answer, Refusal):
            responses.append(
                DeletableTopicResult(
                    name=state.name,
                    topic_id=state.topic_id,
                    error_code=answer.code,
                    error_message=answer.sentence,
                )
            )
        else:
            responses.append(DeletableTopicResult(name=answer.name, topic_id=answer.topic_id))
    return DeleteTopicsResponse(responses=responses)


def refuse_delete_topics(
    request: Request, message: DeleteTopicsRequest, code: ErrorCode, sentence: str
) -> DeleteTopicsResponse:
    if request.api_version >= TOPIC_STATES_FROM:
        named = [(state.name, state.topic_id) for state in message.topics]
    else:
        named = [(name, NO_TOPIC_ID) for name in message.topic_names]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=sentence)
            for name, topic_id in named
        ]
    )


# --- CreatePartitions -----------------------------------------------------------------------------------------------


async def create_partitions(
    context: Context, request: Request, message: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Raise each topic's partition count, or with ``validate_only`` see whether it could be raised."""
    del request
    twice = repeated(topic.name for topic in message.topics)
    asked = [topic for topic in message.topics if topic.name not in twice]

    async def create(topic: CreatePartitionsTopic) -> TopicImage:
        assignments: Sequence[Sequence[int]] | None = None
        if topic.assignments is not None:
            assignments = [assignment.broker_ids for assignment in topic.assignments]
        return await context.controller.create_partitions(
            topic.name, topic.count, assignments=assignments, validate_only=message.validate_only
        )

    answers = await each(asked, create)
    results = [
        CreatePartitionsTopicResult(name=name, error_code=DUPLICATE.code, error_message=DUPLICATE.sentence)
        for name in sorted(twice)
    ]
    for topic, answer in zip(asked, answers, strict=True):
        result = CreatePartitionsTopicResult(name=topic.name)
        if isinstance(answer, Refusal):
            result.error_code, result.error_message = answer.code, answer.sentence
        results.append(result)
    return CreatePartitionsResponse(results=results)


def refuse_create_partitions(
    request: Request, message: CreatePartitionsRequest, code: ErrorCode, sentence: str
) -> CreatePartitionsResponse:
    del request
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=sentence)
            for topic in message.topics
        ]
    )


APIS: Final[ApiTable] = {
    ApiKey.CREATE_TOPICS: Api(create_topics, refuse_create_topics),
    ApiKey.DELETE_TOPICS: Api(delete_topics, refuse_delete_topics),
    ApiKey.CREATE_PARTITIONS: Api(create_partitions, refuse_create_partitions),
}
