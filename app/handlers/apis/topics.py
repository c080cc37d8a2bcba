"""CreateTopics (key 19), DeleteTopics (20), CreatePartitions (37): changes of the set of topics, through the controller.

Tests: ``tests/handlers/test_admin_topics.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from app.configs.without_effect import TOPIC_WITHOUT_EFFECT, told
from app.coordinator.topics import INTERNAL, topic_configs
from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import PARTITIONS_MADE_MAX, PARTITIONS_PER_TOPIC_MAX
from app.core.log_events import Event
from app.core.turns import STRIDE, Portion, Steps, run
from app.core.units import NO_TOPIC_ID
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.mutations import Refusal, each, repeated
from app.handlers.base.partitions import check_not_owned
from app.handlers.base.request import Request
from app.handlers.base.topic_settings import described_topic
from app.handlers.base.views import TopicsView
from app.metadata.changes import topic_changes
from app.metadata.image.image import ClusterImage, TopicImage
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


async def create_topics(context: TopicsView, request: Request, message: CreateTopicsRequest) -> CreateTopicsResponse:
    """Make each topic, or with ``validate_only`` see whether it could be made; -1 is a default of the broker."""
    portion = Portion()
    twice = await run(repeated(topic.name for topic in message.topics), portion)
    asked: list[CreatableTopic] = []
    made = 0
    for topic in message.topics:
        if topic.name not in twice:
            asked.append(topic)
            made += _made(len(topic.assignments) or _count(context, topic.num_partitions))
        if portion.spent_by():
            await portion.rest()
    if made > PARTITIONS_MADE_MAX:
        return refuse_create_topics(request, message, ErrorCode.POLICY_VIOLATION, _too_many(made))
    share = _Share(context, request, strict_from=6)

    async def create(topic: CreatableTopic) -> TopicImage:
        check_not_owned(topic.name)
        share.take(len(topic.assignments) or _count(context, topic.num_partitions))
        assignments = {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}
        if len(assignments) != len(topic.assignments):
            raise RequestRejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned by hand more than once."
            )
        configs: dict[str, str | None] = {config.name: config.value for config in topic.configs}
        internal = INTERNAL.get(topic.name)
        if internal is not None:
            # Made by hand, for a partition count of its own perhaps: a coordinator could not read it back from the tier.
            cluster = context.cluster
            configs = {**topic_configs(internal, cluster.effective_broker_config(), cluster.image), **configs}
        made = await context.controller.create_topic(
            topic.name,
            topic.num_partitions,
            configs,
            topic.replication_factor,
            assignments=assignments or None,
            validate_only=message.validate_only,
        )
        useless = told(configs, TOPIC_WITHOUT_EFFECT)
        if useless and not message.validate_only:
            context.client_line(
                Event.SETTINGS_WITHOUT_EFFECT.line(
                    f"settings of topic {topic.name} that mean nothing here: {useless}", topic=topic.name
                )
            )
        return made

    answers = await each(asked, create)
    results = [_refused(name, DUPLICATE.code, DUPLICATE.sentence) for name in sorted(twice)]
    described: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}
    for topic, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Refusal):
            results.append(_refused(topic.name, *answer))
            continue
        overrides = frozenset(answer.configs.items())
        if overrides not in described:
            described[overrides] = _settings(
                context, answer
            )  # takes 0.3 ms, and most topics of a request have the same
        results.append(_created(answer, described[overrides], validate_only=message.validate_only))
        await portion.rest_if_spent()
    return CreateTopicsResponse(topics=results, throttle_time_ms=share.throttle_time_ms)


def _count(context: TopicsView, partitions: int) -> int:
    return partitions if partitions > 0 else context.effective.num_partitions


def _made(partitions: int) -> int:
    """The partitions that a topic counts for. A topic that asks for too many by itself is refused alone, and counts for none."""
    return partitions if 0 < partitions <= PARTITIONS_PER_TOPIC_MAX else 0


def _too_many(partitions: int) -> str:
    return (
        f"The request asks for {partitions} new partitions, and one request may make {PARTITIONS_MADE_MAX}. Send several requests, "
        "each with fewer topics or partitions."
    )


class _Share:
    """The part that a request takes of its client's quota of changes (KIP-599)."""

    def __init__(self, context: TopicsView, request: Request, *, strict_from: int) -> None:
        self._quotas = context.quotas
        self._request = request
        self._strict = request.api_version >= strict_from
        self.throttle_time_ms = 0
        """The throttle time of the response to a client that cannot be refused."""

    def take(self, partitions: int) -> None:
        """Count the partitions that a change makes or takes away. Raises: RequestRejected THROTTLING_QUOTA_EXCEEDED."""
        if self._quotas is None:
            return
        asks = self._request
        throttle_time_ms = self._quotas.mutate(asks.caller, asks.client_id, partitions, strict=self._strict)
        if not self._strict:
            self.throttle_time_ms = max(self.throttle_time_ms, throttle_time_ms)


def _refused(name: str, code: ErrorCode, sentence: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=sentence, configs=None)


def _settings(context: TopicsView, topic: TopicImage) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=config.name,
            value=config.value,
            read_only=config.read_only,
            config_source=config.source,
            is_sensitive=config.definition.sensitive,
        )
        for config in described_topic(context, topic.configs)
    ]


def _created(topic: TopicImage, settings: list[CreatableTopicConfigs], *, validate_only: bool) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=NO_TOPIC_ID if validate_only else topic.topic_id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=settings,
    )


def refuse_create_topics(
    request: Request, message: CreateTopicsRequest, code: ErrorCode, sentence: str
) -> CreateTopicsResponse:
    del request
    return CreateTopicsResponse(topics=[_refused(topic.name, code, sentence) for topic in message.topics])


# --- DeleteTopics ---------------------------------------------------------------------------------------------------


async def delete_topics(context: TopicsView, request: Request, message: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete each topic by name or id; the name is free when this answers, objects and files go in the background.

    A topic that is named more than once is answered once and stays, as in Apache Kafka.
    """
    portion = Portion()
    states = await run(_states(request, message), portion)
    if not context.config.delete_topic_enable:
        return refuse_delete_topics(
            request,
            message,
            ErrorCode.TOPIC_DELETION_DISABLED,
            "Topics cannot be deleted: delete.topic.enable is false.",
        )
    image = context.image
    asked, responses = await run(_told_apart(image, states), portion)
    share = _Share(context, request, strict_from=5)

    async def delete(state: DeleteTopicState) -> TopicImage:
        topic = image.topic_by_id(state.topic_id) if state.name is None else image.topic(state.name)
        check_not_owned(None if topic is None else topic.name)
        share.take(0 if topic is None else len(topic.partitions))
        name = state.name
        topic_id = state.topic_id if name is None else None
        return await context.controller.submit(
            lambda draft, _: topic_changes.delete_topic.steps(draft, name=name, topic_id=topic_id)
        )

    for state, answer in zip(asked, await each(asked, delete), strict=True):
        if isinstance(answer, Refusal):
            responses.append(DeletableTopicResult(state.name, state.topic_id, answer.code, answer.sentence))
        else:
            responses.append(DeletableTopicResult(answer.name, answer.topic_id))
        if portion.spent_by():
            await portion.rest()
    return DeleteTopicsResponse(responses=responses, throttle_time_ms=share.throttle_time_ms)


def _states(request: Request, message: DeleteTopicsRequest) -> Steps[list[DeleteTopicState]]:
    """The topics of a request of any version, in steps."""
    if request.api_version >= TOPIC_STATES_FROM:
        return message.topics
    states: list[DeleteTopicState] = []
    for number, name in enumerate(message.topic_names):
        if number % STRIDE == 0:
            yield
        states.append(DeleteTopicState(name=name))
    return states


def _told_apart(
    image: ClusterImage, states: Sequence[DeleteTopicState]
) -> Steps[tuple[list[DeleteTopicState], list[DeletableTopicResult]]]:
    """The topics that a request names once and in one way, and the refusals of the others, in steps."""
    refused: list[DeletableTopicResult] = []

    def refuse(name: str | None, topic_id: UUID, sentence: str) -> None:
        refused.append(DeletableTopicResult(name, topic_id, ErrorCode.INVALID_REQUEST, sentence))

    by_name: list[DeleteTopicState] = []
    by_id: list[DeleteTopicState] = []
    for number, state in enumerate(states):
        if number % STRIDE == 0:
            yield
        if state.name is not None and state.topic_id != NO_TOPIC_ID:
            refuse(state.name, state.topic_id, "You may not specify both topic name and topic id.")
        elif state.name is not None:
            by_name.append(state)
        elif state.topic_id != NO_TOPIC_ID:
            by_id.append(state)
        else:
            refuse(None, NO_TOPIC_ID, "Neither topic name nor id were specified.")
    names_twice = yield from repeated(state.name for state in by_name)
    ids_twice = yield from repeated(state.topic_id for state in by_id)
    for name in names_twice:
        refuse(name, NO_TOPIC_ID, DUPLICATE.sentence)
    for topic_id in ids_twice:
        refuse(None, topic_id, "Duplicate topic id.")
    ids = {state.topic_id for state in by_id}
    in_both_ways = set()
    asked = []
    for number, state in enumerate(by_name):
        if number % STRIDE == 0:
            yield
        topic = None if state.name is None else image.topic(state.name)
        if state.name in names_twice:
            continue
        if topic is not None and topic.topic_id in ids:
            refuse(state.name, topic.topic_id, "The provided topic name maps to an ID that was already supplied.")
            in_both_ways.add(topic.topic_id)
        else:
            asked.append(state)
    asked += [state for state in by_id if state.topic_id not in ids_twice and state.topic_id not in in_both_ways]
    return asked, refused


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
    context: TopicsView, request: Request, message: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Raise each topic's partition count, or with ``validate_only`` see whether it could be raised."""
    portion = Portion()
    twice = await run(repeated(topic.name for topic in message.topics), portion)
    asked: list[CreatePartitionsTopic] = []
    made = 0
    for topic in message.topics:
        if topic.name not in twice:
            asked.append(topic)
            before = context.image.topic(topic.name)
            if topic.count <= PARTITIONS_PER_TOPIC_MAX and before is not None:
                made += _made(topic.count - len(before.partitions))
        if portion.spent_by():
            await portion.rest()
    if made > PARTITIONS_MADE_MAX:
        return refuse_create_partitions(request, message, ErrorCode.POLICY_VIOLATION, _too_many(made))
    share = _Share(context, request, strict_from=3)

    async def create(topic: CreatePartitionsTopic) -> TopicImage:
        check_not_owned(topic.name)
        before = context.image.topic(topic.name)
        share.take(0 if before is None else max(0, topic.count - len(before.partitions)))
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
        if portion.spent_by():
            await portion.rest()
    return CreatePartitionsResponse(results=results, throttle_time_ms=share.throttle_time_ms)


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
