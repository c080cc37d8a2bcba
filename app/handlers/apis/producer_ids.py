"""InitProducerId (key 22, KIP-98): identities for idempotent and transactional producers.

Ids are handed out from a block that the controller granted to this broker. A block that was begun is never returned, so no id is
given twice, also after a crash. The coordinator of a transactional id decides its identity.

Tests: ``tests/handlers/test_producer_id_block.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from app.core.errors import ErrorCode, FirnError, RequestRejected, clause
from app.core.units import ProducerEpoch, ProducerId
from app.exactly_once.coordinator import OBJECT_TIMEOUT_MS
from app.exactly_once.transactional_ids import is_of_requests
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import TransactionsView
from app.transactions.state import ProducerIdentity
from app.wire.apikeys import ApiKey
from app.wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

KNOWS_FENCED: Final = 4
"""First version whose clients know PRODUCER_FENCED (KIP-588)."""


def handle(
    context: TransactionsView, request: Request, message: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Return a producer id with its epoch. Without a transactional id it is a new one: the producer's former id is forgotten.

    Raises: RequestRejected.
    """
    if (message.producer_id < 0) != (message.producer_epoch < 0):
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST, "A producer id without an epoch, or an epoch without a producer id."
        )
    if message.transactional_id is not None:
        if not message.transactional_id:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "An empty transactional id.")
        return _handle_transactional(context, message.transactional_id, message)
    del request
    taken = context.producer_ids.take_now()
    if taken is not None:
        return InitProducerIdResponse(producer_id=taken, producer_epoch=0)
    return _handle_with_new_block(context)


async def _handle_with_new_block(context: TransactionsView) -> InitProducerIdResponse:
    try:
        taken = await context.producer_ids.take()
    except FirnError as error:
        # The code is Kafka's. Clients give up on a code that they do not expect here.
        raise RequestRejected(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"No producer id to give: {clause(error)}."
        ) from error
    return InitProducerIdResponse(producer_id=taken, producer_epoch=0)


async def _handle_transactional(
    context: TransactionsView, transactional_id: str, message: InitProducerIdRequest
) -> InitProducerIdResponse:
    if is_of_requests(transactional_id) and message.transaction_timeout_ms > OBJECT_TIMEOUT_MS:
        raise RequestRejected(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"A transaction of a keyed request over HTTP is open for {OBJECT_TIMEOUT_MS} ms at most.",
        )
    expected = None
    if message.producer_id >= 0:
        expected = ProducerIdentity(ProducerId(message.producer_id), ProducerEpoch(message.producer_epoch))
    identity = await context.transactions.initialize(transactional_id, message.transaction_timeout_ms, expected)
    return InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)


def refuse(request: Request, message: InitProducerIdRequest, code: ErrorCode, sentence: str) -> InitProducerIdResponse:
    del message, sentence
    if code is ErrorCode.PRODUCER_FENCED and request.api_version < KNOWS_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


APIS: Final[ApiTable] = {ApiKey.INIT_PRODUCER_ID: Api(handle, refuse)}
