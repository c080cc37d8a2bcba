"""This broker's block of producer ids, granted by the controller."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import ProducerId

if TYPE_CHECKING:
    from app.metadata.controller.controller import Controller

TAKEN_WITHIN_S: Final = 15.0
"""How long a client waits for a new block, with all who wait before it: less than its own patience, 30 s in Kafka."""
AGAIN_S: Final = 0.1


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
        """The next id, of a new block if need be.

        Raises: RequestRejected COORDINATOR_LOAD_IN_PROGRESS if there is none in time; errors of the controller. A block that comes
        too late is forgotten: no id is given twice.
        """
        try:
            async with asyncio.timeout(TAKEN_WITHIN_S), self._asking:
                if self._next == self._end:
                    block = await self._new_block()
                    self._next, self._end = block.start, block.stop
                taken = self.take_now()
                assert taken is not None
                return taken
        except TimeoutError:
            raise RequestRejected(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"No producer ids came within {TAKEN_WITHIN_S:g} s."
            ) from None

    async def _new_block(self) -> range:
        while True:
            try:
                return await self._controller.allocate_producer_ids()
            except RequestRejected as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
            await asyncio.sleep(AGAIN_S)  # the controller changes to this broker or from it; nothing was made
