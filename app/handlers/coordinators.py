"""FindCoordinator (key 10): which broker coordinates a group or a transactional id: the one that leads its partition.

The internal topic is made when somebody first asks, as Kafka does; unlike there, the first answer waits until it is there.
"""

from __future__ import annotations

from typing import Final

from app.coordinator.topics import CONSUMER_OFFSETS, TRANSACTION_STATE, InternalTopic, ensure_topic, partition_for
from app.errors import ErrorCode, FirnError, RequestRejected
from app.handlers.api import Api, ApiTable
from app.handlers.context import Context, Request
from app.metadata.cluster import BrokerImage, TopicImage
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
KEYS_IN_A_LIST_FROM: Final = 4
"""First version that asks for many keys at once (KIP-699)."""
_KINDS: Final = {GROUP: "consumer groups", TRANSACTION: "transactions", SHARE: "share groups"}
_TOPICS: Final[dict[int, InternalTopic]] = {GROUP: CONSUMER_OFFSETS, TRANSACTION: TRANSACTION_STATE}
"""Kinds of key that are served, and where what is coordinated is kept."""


async def handle(context: Context, request: Request, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """The leader of the partition that each key belongs to.

    Raises: RequestRejected INVALID_REQUEST for a kind of key that there is not; COORDINATOR_NOT_AVAILABLE for one that this
    broker does not serve, or while the internal topic cannot be made: clients say it and try again.
    """
    kind = _KINDS.get(message.key_type)
    if kind is None:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {message.key_type}")
    internal = _TOPICS.get(message.key_type)
    if internal is None:
        raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"this broker does not serve {kind}")
    try:
        topic = await ensure_topic(context.controller, internal)
    except RequestRejected:
        raise
    except FirnError as error:
        raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    if request.api_version < KEYS_IN_A_LIST_FROM:
        broker = _coordinator(context, topic, message.key)
        return FindCoordinatorResponse(error_message=None, node_id=broker.broker_id, host=broker.host, port=broker.port)
    response = FindCoordinatorResponse()
    for key in message.coordinator_keys:
        try:
            broker = _coordinator(context, topic, key)
        except RequestRejected as error:
            response.coordinators.append(_refused(key, error.code, str(error)))
        else:
            response.coordinators.append(
                Coordinator(key, broker.broker_id, broker.host, broker.port, ErrorCode.NONE, None)
            )
    return response


def _coordinator(context: Context, topic: TopicImage, key: str) -> BrokerImage:
    partition = topic.partitions[partition_for(key, len(topic.partitions))]
    broker = context.image.brokers.get(partition.leader)
    if broker is None:
        raise RequestRejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic.name}-{partition.partition_index} has no leader"
        )
    return broker


def _refused(key: str, code: ErrorCode, sentence: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=sentence)


def refuse(
    request: Request, message: FindCoordinatorRequest, code: ErrorCode, sentence: str
) -> FindCoordinatorResponse:
    if request.api_version >= KEYS_IN_A_LIST_FROM:
        return FindCoordinatorResponse(coordinators=[_refused(key, code, sentence) for key in message.coordinator_keys])
    return FindCoordinatorResponse(error_code=code, error_message=sentence, node_id=-1, host="", port=-1)


APIS: Final[ApiTable] = {ApiKey.FIND_COORDINATOR: Api(handle, refuse)}
