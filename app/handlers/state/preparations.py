"""Limits the memory for produced batches that must be decompressed, checked or recompressed before they are appended.

The decompressed size of a batch is unknown before the batch is decompressed: a few kilobytes may become hundreds of megabytes. So
a batch first gets an allowance that is enough for nearly all batches. Only if it is too little, the batch gets the whole limit. All
connections together may claim a limited amount. A batch that finds no room waits, in order of arrival.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from app.core.limits import MIB
from app.hot.preparation import DecompressesTooFar

if TYPE_CHECKING:
    from app.core.seams import BlockingPool
    from app.hot.log import PartitionLog
    from app.transport.core import ConnectionCore

T = TypeVar("T")

EXPANSION_EXPECTED: Final = 16
"""A batch may decompress to so many times its size before it has to claim the whole limit. JSON reaches 5 to 10."""
ALLOWANCE_BYTES_MIN: Final = 1 * MIB


class Preparations:
    """The batches in preparation, and the batches that wait for memory. Belongs to one event loop."""

    def __init__(self, pool: BlockingPool, *, bytes_max: int, batch_bytes_max: int) -> None:
        """``bytes_max``: over all batches in preparation; one alone may exceed it. ``batch_bytes_max``: most that one batch
        may decompress to."""
        self._pool = pool
        self._bytes_max = bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._claimed_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def claimed_bytes(self) -> int:
        return self._claimed_bytes

    @property
    def waiting(self) -> int:
        """Batches that wait for their turn."""
        return len(self._waiting)

    async def prepare(self, connection: ConnectionCore, log: PartitionLog, records: memoryview) -> bytearray:
        """Return the bytes that ``log`` is to append instead of ``records``.

        Raises: as ``PartitionLog.prepare_append``; CancelledError if the connection ends before the turn of the batch has come.
        """
        return await self.run(
            connection, len(records), lambda allowance: log.prepare_append(records, raw_bytes_max=allowance)
        )

    async def run(self, connection: ConnectionCore, size_bytes: int, work: Callable[[int], T]) -> T:
        """Run work on a batch of ``size_bytes`` in the pool, with memory for its decompressed records. ``work`` is called with
        the limit of decompressed bytes.

        Raises: as ``work``, which raises DecompressesTooFar beyond its allowance; CancelledError as ``prepare``.
        """
        limit = self._batch_bytes_max
        allowance = min(limit, max(ALLOWANCE_BYTES_MIN, EXPANSION_EXPECTED * size_bytes))
        while True:
            # Twice: for the decompressed batch, and for the batch that is compressed or copied from it.
            claim_bytes = 2 * allowance
            await self._claim(connection, claim_bytes)
            try:
                return await self._pool.run(partial(work, allowance))
            except DecompressesTooFar:
                if allowance == limit:
                    raise
            finally:
                self._release(claim_bytes)
            allowance = limit

    async def _claim(self, connection: ConnectionCore, claim_bytes: int) -> None:
        if not self._waiting and self._has_room(claim_bytes):
            self._claimed_bytes += claim_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if connection.closed:
            turn.cancel()
        entry = (turn, claim_bytes)
        self._waiting.append(entry)
        connection.on_close.add(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(entry)
            else:
                self._claimed_bytes -= claim_bytes  # The turn had come in the same moment.
            self._admit_waiting()
            raise
        finally:
            connection.on_close.discard(turn)

    def _has_room(self, claim_bytes: int) -> bool:
        return self._claimed_bytes == 0 or self._claimed_bytes + claim_bytes <= self._bytes_max

    def _release(self, claim_bytes: int) -> None:
        self._claimed_bytes -= claim_bytes
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][1]):
            turn, claim_bytes = self._waiting[0]
            if turn.cancelled():
                return  # It takes itself out, and comes back here.
            self._waiting.popleft()
            self._claimed_bytes += claim_bytes
            turn.set_result(None)
