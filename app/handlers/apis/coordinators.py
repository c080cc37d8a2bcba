"""FindCoordinator (key 10): which broker coordinates a group, a transactional id or a share-partition. It is the leader of its
partition of the internal topic.

The internal topic is made at the first such request, as in Kafka. Unlike in Kafka, the first answer waits until it is there.
"""

from __future__ import annotations

from typing import Final

from app.coordinator.topics import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    InternalTopic,
    ensure_topic,
    partition_for,
)
from app.core.errors import ErrorCode, FirnError, RequestRejected, clause
from app.core.units import BrokerId
from app.groups.share.core.share_state import ShareKey
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.partitions import others_that_may_lead
from app.handlers.base.portions import Split
from app.handlers.base.request import Request
from app.handlers.base.views import GroupsView
from app.metadata.image.image import BrokerImage, TopicImage
from app.metadata.image.records import Endpoint
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
KEYS_IN_A_LIST_FROM: Final = 4
"""First version that asks for many keys at once (KIP-699)."""
SHARE_FROM: Final = 6
"""First version that may ask for share-partitions (KIP-932)."""
_TOPICS: Final[dict[int, InternalTopic]] = {
    GROUP: CONSUMER_OFFSETS,
    TRANSACTION: TRANSACTION_STATE,
    SHARE: SHARE_GROUP_STATE,
}
"""Kinds of key, and the internal topic that stores the state of each."""


async def handle(context: GroupsView, request: Request, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """The leader of the partition that each key belongs to.

    Raises: RequestRejected INVALID_REQUEST for a kind of key that there is not (in this version); COORDINATOR_NOT_AVAILABLE
    while the internal topic cannot be made: clients say it and try again.
    """
    internal = _TOPICS.get(message.key_type)
    if internal is None:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"There is no coordinator of type {message.key_type}.")
    if message.key_type == SHARE and request.api_version < SHARE_FROM:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"Share-partitions are found from version {SHARE_FROM} on.")
    try:
        topic = await ensure_topic(context.cluster, context.controller, internal)
    except RequestRejected:
        raise
    except FirnError as error:
        raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    if request.api_version < KEYS_IN_A_LIST_FROM:
        broker, endpoint = _coordinator(context, request, topic, message.key)
        return FindCoordinatorResponse(
            error_message=None, node_id=broker.broker_id, host=endpoint.host, port=endpoint.port
        )
    response = FindCoordinatorResponse()
    for key in message.coordinator_keys:
        try:
            if message.key_type == SHARE:
                _check_share_key(key)
            broker, endpoint = _coordinator(context, request, topic, key)
        except RequestRejected as error:
            response.coordinators.append(_refused(key, error.code, str(error)))
        else:
            response.coordinators.append(
                Coordinator(key, broker.broker_id, endpoint.host, endpoint.port, ErrorCode.NONE, None)
            )
    return response


def _check_share_key(key: str) -> None:
    """Raises: RequestRejected INVALID_REQUEST."""
    try:
        ShareKey.parse(key)
    except ValueError as error:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"{key!r} is not the group, topic id and number of a share-partition: {clause(error)}.",
        ) from error


def _coordinator(context: GroupsView, request: Request, topic: TopicImage, key: str) -> tuple[BrokerImage, Endpoint]:
    """The coordinator, and its address for the listener that the client came by. Raises: RequestRejected."""
    partition = topic.partitions[partition_for(key, len(topic.partitions))]
    if (topic.topic_id, partition.partition_index) in context.partitions.offline:
        raise RequestRejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic.name}-{partition.partition_index} is offline."
        )
    leader = partition.leader
    if context.partitions.is_shut(partition):
        likely = others_that_may_lead(context, partition)
        leader = context.rng.choice(likely) if likely else BrokerId(-1)
    broker = context.image.brokers.get(leader)
    if broker is None:
        raise RequestRejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic.name}-{partition.partition_index} has no leader."
        )
    endpoint = broker.endpoint(request.caller.listener)
    if endpoint is None:
        raise RequestRejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"Broker {broker.broker_id} has no listener {request.caller.listener}.",
        )
    return broker, endpoint


def _refused(key: str, code: ErrorCode, sentence: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=sentence)


def refuse(
    request: Request, message: FindCoordinatorRequest, code: ErrorCode, sentence: str
) -> FindCoordinatorResponse:
    if request.api_version >= KEYS_IN_A_LIST_FROM:
        return FindCoordinatorResponse(coordinators=[_refused(key, code, sentence) for key in message.coordinator_keys])
    return FindCoordinatorResponse(error_code=code, error_message=sentence, node_id=-1, host="", port=-1)


APIS: Final[ApiTable] = {ApiKey.FIND_COORDINATOR: Api(handle, refuse, split=Split("coordinator_keys", "coordinators"))}
