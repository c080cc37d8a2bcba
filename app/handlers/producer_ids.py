"""InitProducerId (key 22, KIP-98): identities for idempotent producers.

Ids are handed out from a block that the controller granted to this broker; a block that was begun is never returned, so no
id is given twice, whatever crashes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from app.errors import ErrorCode, RequestRejected
from app.handlers.api import Api, ApiTable
from app.handlers.context import Context, Request
from app.units import ProducerId
from app.wire.apikeys import ApiKey
from app.wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from app.metadata.controller import Controller


class ProducerIds:
    """This broker's block of producer ids."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._next = 0
        self._end = 0
        self._asking = asyncio.Lock()

    def take_now(self) -> ProducerId | None:
        """The next id, or None if the block is used up."""
        if self._next == self._end:
            return None
        self._next += 1
        return ProducerId(self._next - 1)

    async def take(self) -> ProducerId:
        """The next id, of a new block if need be. Raises: what the controller raises; no id is lost then."""
        async with self._asking:
            if self._next == self._end:
                block = await self._controller.allocate_producer_ids()
                self._next, self._end = block.start, block.stop
            taken = self.take_now()
            assert taken is not None
            return taken


def handle(
    context: Context, request: Request, message: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """A new producer id with epoch 0. An id that the producer had before is forgotten, as in Kafka."""
    del request
    if message.transactional_id is not None:
        if not message.transactional_id:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker does not serve transactions")
    taken = context.producer_ids.take_now()
    if taken is not None:
        return InitProducerIdResponse(producer_id=taken, producer_epoch=0)
    return _handle_with_new_block(context)


async def _handle_with_new_block(context: Context) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=await context.producer_ids.take(), producer_epoch=0)


def refuse(request: Request, message: InitProducerIdRequest, code: ErrorCode, sentence: str) -> InitProducerIdResponse:
    del request, message, sentence
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


APIS: Final[ApiTable] = {ApiKey.INIT_PRODUCER_ID: Api(handle, refuse)}
