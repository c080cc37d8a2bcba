"""This broker's block of producer ids, granted by the controller."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from app.units import ProducerId

if TYPE_CHECKING:
    from app.metadata.cluster_changes import ClusterChanges


class ProducerIds:
    """This broker's block of producer ids."""

    def __init__(self, controller: ClusterChanges) -> None:
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
