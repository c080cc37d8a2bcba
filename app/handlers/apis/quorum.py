"""DescribeQuorum (key 55, KIP-595, KIP-836) and UnregisterBroker (64): the brokers as the controller sees them.

There is no quorum (ADR 0023). The controller is told as the leader and only voter of the cluster's metadata, and every other
registered broker as an observer. Offsets are numbers of entries of the cluster log.

Tests: ``tests/handlers/test_admin_placement.py``.
"""

from __future__ import annotations

from typing import Final

from app.core.errors import ErrorCode
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import QuorumView
from app.metadata.image.image import BrokerImage
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from app.wire.apis.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

METADATA: Final = ("__cluster_metadata", 0)
"""The partition that stands for the cluster log."""
UNKNOWN: Final = -1


# --- DescribeQuorum -------------------------------------------------------------------------------------------------


def describe_quorum(context: QuorumView, request: Request, message: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Describe the controller, and how far the other brokers have applied its entries."""
    del request
    controller = context.image.brokers.get(context.image.controller.broker_id)
    named = [(topic.topic_name, one.partition_index) for topic in message.topics for one in topic.partitions]
    describe = _described if named == [METADATA] else _unknown
    return DescribeQuorumResponse(
        error_message=None,
        topics=[
            DescribeQuorumResponseTopicData(
                topic.topic_name, [describe(context, one.partition_index) for one in topic.partitions]
            )
            for topic in message.topics
        ],
        nodes=[] if controller is None else [_node(controller)],
    )


def _unknown(context: QuorumView, index: int) -> DescribeQuorumResponsePartitionData:
    del context
    return DescribeQuorumResponsePartitionData(
        partition_index=index,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=f"Only partition {METADATA[1]} of {METADATA[0]} is described.",
    )


def _described(context: QuorumView, index: int) -> DescribeQuorumResponsePartitionData:
    image = context.image
    controller = image.controller
    states = {broker_id: _state(context, broker) for broker_id, broker in sorted(image.brokers.items())}
    leader = states.pop(controller.broker_id, None)
    return DescribeQuorumResponsePartitionData(
        partition_index=index,
        error_message=None,
        leader_id=controller.broker_id,
        leader_epoch=controller.epoch,
        high_watermark=image.sequence + 1,
        current_voters=[] if leader is None else [leader],
        observers=list(states.values()),
    )


def _state(context: QuorumView, broker: BrokerImage) -> ReplicaState:
    image = context.image
    state = ReplicaState(replica_id=broker.broker_id, replica_directory_id=broker.directory_id)
    if broker.broker_id == image.controller.broker_id:
        now_ms = context.clock.now_ms()
        state.log_end_offset = image.sequence + 1
        state.last_fetch_timestamp = state.last_caught_up_timestamp = now_ms
        return state
    applied = UNKNOWN if context.desk is None else context.desk.applied(broker.broker_id)
    state.log_end_offset = UNKNOWN if applied == UNKNOWN else applied + 1
    return state


def _node(broker: BrokerImage) -> Node:
    return Node(
        broker.broker_id, [Listener(endpoint.listener, endpoint.host, endpoint.port) for endpoint in broker.endpoints]
    )


def refuse_describe_quorum(
    request: Request, message: DescribeQuorumRequest, code: ErrorCode, sentence: str
) -> DescribeQuorumResponse:
    del request, message
    return DescribeQuorumResponse(error_code=code, error_message=sentence)


# --- UnregisterBroker -----------------------------------------------------------------------------------------------


async def unregister_broker(
    context: QuorumView, request: Request, message: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Take a broker out of the cluster, alive or not. Raises: RequestRejected."""
    del request
    await context.controller.unregister_broker(message.broker_id)
    return UnregisterBrokerResponse(error_message=None)


def refuse_unregister_broker(
    request: Request, message: UnregisterBrokerRequest, code: ErrorCode, sentence: str
) -> UnregisterBrokerResponse:
    del request, message
    return UnregisterBrokerResponse(error_code=code, error_message=sentence)


APIS: Final[ApiTable] = {
    ApiKey.DESCRIBE_QUORUM: Api(describe_quorum, refuse_describe_quorum),
    ApiKey.UNREGISTER_BROKER: Api(unregister_broker, refuse_unregister_broker),
}
