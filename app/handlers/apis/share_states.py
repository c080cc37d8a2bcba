"""States of share-partitions, which brokers ask a share coordinator for (KIP-932): InitializeShareGroupState (key 83),
ReadShareGroupState (84), WriteShareGroupState (85), DeleteShareGroupState (86), ReadShareGroupStateSummary (87).

Each share-partition of a request is answered by itself.

Tests: ``tests/broker/test_shares_of_several.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from app.core.errors import ErrorCode, FirnError, kafka_code
from app.groups.share.core.share_state_wire import Asked, Initialize, StateAnswer, from_request, to_response
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.portions import Split
from app.handlers.base.request import Request
from app.handlers.base.views import SharesView
from app.wire.apikeys import ApiKey


async def handle(context: SharesView, request: Request, message: Any) -> Any:
    """Serve one of the five requests. Raises: RequestRejected INVALID_REQUEST for one that makes no sense."""
    asked = from_request(message)
    found = [_ask(context, one) for one in asked]  # all of them are appended before the first is waited for
    answers = [one if isinstance(one, StateAnswer) else await _answer_of(one) for one in found]
    return to_response(asked, answers, ApiKey(request.api_key))


def _ask(context: SharesView, asked: Asked) -> StateAnswer | Awaitable[StateAnswer]:
    if isinstance(asked, Initialize):
        topic = context.image.topic_by_id(asked.key.topic_id)
        if topic is None or not 0 <= asked.key.partition < len(topic.partitions):
            return StateAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition of {asked.key.name}.")
    try:
        return context.shares.answer(asked)
    except FirnError as error:
        return StateAnswer(kafka_code(error), str(error))


async def _answer_of(later: Awaitable[StateAnswer]) -> StateAnswer:
    try:
        return await later
    except FirnError as error:
        return StateAnswer(kafka_code(error), str(error))


def refuse(request: Request, message: Any, code: ErrorCode, sentence: str) -> Any:
    asked = from_request(message, checks=False)
    return to_response(asked, [StateAnswer(code, sentence)] * len(asked), ApiKey(request.api_key))


KEYS: Final = (
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
)

READS: Final = frozenset({ApiKey.READ_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY})


def _split(key: ApiKey) -> Split:
    return Split(
        "topics", "results", "partitions", "partitions",
        names=("topic_id",), inner_name="partition", writes=key not in READS,
    )  # fmt: skip


APIS: Final[ApiTable] = {key: Api(handle, refuse, split=_split(key)) for key in KEYS}
