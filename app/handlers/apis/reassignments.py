"""AlterPartitionReassignments (key 45) and ListPartitionReassignments (46): partitions move to other brokers (KIP-455).

Tests: ``tests/handlers/test_admin_placement.py``.
"""

from __future__ import annotations

from typing import Final

from app.core.errors import ErrorCode
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import ChangesView
from app.metadata.changes.reassignments import ReassignmentAsked, list_reassignments
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from app.wire.apis.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

# --- AlterPartitionReassignments ------------------------------------------------------------------------------------


async def alter_reassignments(
    context: ChangesView, request: Request, message: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Begin, replace or (null) cancel reassignments. They go on after the response."""
    del request
    asked = [
        ReassignmentAsked(
            topic.name, partition.partition_index, None if partition.replicas is None else tuple(partition.replicas)
        )
        for topic in message.topics
        for partition in topic.partitions
    ]
    answers = await context.controller.alter_reassignments(
        asked, allow_factor_change=message.allow_replication_factor_change
    )
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=message.allow_replication_factor_change, error_message=None
    )
    answered = iter(answers)
    for topic in message.topics:
        partitions = [
            ReassignablePartitionResponse(one.partition, one.error, one.why or None)
            for one in (next(answered) for _ in topic.partitions)
        ]
        response.responses.append(ReassignableTopicResponse(topic.name, partitions))
    return response


def refuse_alter_reassignments(
    request: Request, message: AlterPartitionReassignmentsRequest, code: ErrorCode, sentence: str
) -> AlterPartitionReassignmentsResponse:
    del request
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=message.allow_replication_factor_change,
        error_code=code,
        error_message=sentence,
        responses=[
            ReassignableTopicResponse(
                topic.name,
                [ReassignablePartitionResponse(one.partition_index, code, sentence) for one in topic.partitions],
            )
            for topic in message.topics
        ],
    )


# --- ListPartitionReassignments -------------------------------------------------------------------------------------


def list_all(
    context: ChangesView, request: Request, message: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The reassignments under way, as this broker knows them; of the partitions that are named, or of all."""
    del request
    asked = None
    if message.topics is not None:
        asked = [(topic.name, topic.partition_indexes) for topic in message.topics]
    topics: dict[str, OngoingTopicReassignment] = {}
    for one in list_reassignments(context.image, asked):
        topic = topics.setdefault(one.topic, OngoingTopicReassignment(name=one.topic))
        topic.partitions.append(
            OngoingPartitionReassignment(
                partition_index=one.partition,
                replicas=list(one.replicas),
                adding_replicas=list(one.adding),
                removing_replicas=list(one.removing),
            )
        )
    return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))


def refuse_list_all(
    request: Request, message: ListPartitionReassignmentsRequest, code: ErrorCode, sentence: str
) -> ListPartitionReassignmentsResponse:
    del request, message
    return ListPartitionReassignmentsResponse(error_code=code, error_message=sentence)


APIS: Final[ApiTable] = {
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(alter_reassignments, refuse_alter_reassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(list_all, refuse_list_all),
}
