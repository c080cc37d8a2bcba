"""ElectLeaders (key 43, KIP-183, KIP-460): preferred leaders lead again, or any replica leads a partition without a leader.

Tests: ``tests/handlers/test_admin_placement.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from app.core.errors import ErrorCode, RequestRejected
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import ChangesView
from app.wire.apikeys import ApiKey
from app.wire.apis.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PREFERRED: Final = 0
UNCLEAN: Final = 1


async def elect_leaders(context: ChangesView, request: Request, message: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect leaders now. The request does not wait for an election that is impossible now, as in Kafka.

    Raises: RequestRejected INVALID_REQUEST.
    """
    del request
    if message.election_type not in (PREFERRED, UNCLEAN):
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"There is no election type {message.election_type}.")
    asked = None if message.topic_partitions is None else _named(message)
    elections = await context.controller.elect_leaders(asked, unclean=message.election_type == UNCLEAN)
    return ElectLeadersResponse(
        replica_election_results=_results((one.topic, one.partition, one.error, one.why or None) for one in elections)
    )


def refuse_elect_leaders(
    request: Request, message: ElectLeadersRequest, code: ErrorCode, sentence: str
) -> ElectLeadersResponse:
    del request
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=_results((name, index, code, sentence) for name, index in _named(message)),
    )


def _named(message: ElectLeadersRequest) -> list[tuple[str, int]]:
    return [(topic.topic, index) for topic in message.topic_partitions or () for index in topic.partitions]


def _results(elections: Iterable[tuple[str, int, ErrorCode, str | None]]) -> list[ReplicaElectionResult]:
    """By topic, in the order of the request."""
    topics: dict[str, ReplicaElectionResult] = {}
    for name, index, code, sentence in elections:
        topic = topics.setdefault(name, ReplicaElectionResult(topic=name))
        topic.partition_result.append(PartitionResult(partition_id=index, error_code=code, error_message=sentence))
    return list(topics.values())


APIS: Final[ApiTable] = {ApiKey.ELECT_LEADERS: Api(elect_leaders, refuse_elect_leaders)}
