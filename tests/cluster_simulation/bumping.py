"""An idempotent producer as librdkafka's: five requests in flight, and a new epoch when one of them is out of order.

librdkafka (2.16) takes OUT_OF_ORDER_SEQUENCE_NUMBER of a request behind its oldest one for lost records: when all are answered it
raises its epoch and sends everything that is not acknowledged again, from sequence 0 on. What the log has of it is there twice then
(Java's producer only repeats such a request). Every batch keeps its number in the new epoch, so that the history of the partition
finds it at two offsets.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.client.connection import KafkaConnection
from app.core.errors import ErrorCode
from app.core.units import ProducerEpoch
from app.records.batch import rewrite_header
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from tests.cluster_simulation.clients import Producer, _Sent, _Stream
from tests.cluster_simulation.truth import ReplicatedHistory
from tests.sim.machine import Unreachable
from tests.simulation.checkers import CRC_POSITION

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World

IN_FLIGHT = 5
APART_S = 0.002
"""At most so long after each other requests leave."""


class BumpingProducer(Producer):
    """See the module."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, idempotent=True, acks=-1)
        self.pause_s = 0.05
        self._epochs: dict[int, int] = {}
        """Of each stream: a real producer has one for all, which makes no difference to a partition."""
        self._skipped = self._failed = False
        self._connection: KafkaConnection | None = None
        self._order = asyncio.Lock()

    def _wanted(self) -> int:
        return IN_FLIGHT

    def _epoch(self, stream: _Stream) -> int:
        return self._epochs.get(stream.number, 0)

    async def _send(self, leader: int, history: ReplicatedHistory, one: _Sent) -> Any:
        try:
            async with self._order:  # requests leave one after the other, on one connection
                await asyncio.sleep(self.rng.uniform(0.0, APART_S))
                connection = self._connections.get(leader)
                if self._failed or (self._connection is not None and connection is not self._connection):
                    raise Unreachable("a request before this one has failed, so this one stays in the queue")
                if connection is None or not connection.usable:
                    if self._connection is not None:
                        raise Unreachable("the connection has ended, so this one stays in the queue")
                    await self.ask(leader, ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
                self._connection = self._connections.get(leader)
                sending = asyncio.ensure_future(super()._send(leader, history, one))
                await asyncio.sleep(0)
            result = await sending
        except Unreachable:
            self._failed = True
            raise
        self._failed = self._failed or result.error_code != 0
        return result

    async def _push(self, stream: _Stream) -> bool:
        self._skipped = self._failed = False
        self._connection = None
        done = await super()._push(stream)
        if self._skipped and stream.queue:
            self._bump(stream)
        return done

    def _answered(self, stream: _Stream, one: _Sent, leader: int, result: Any, *, first: bool) -> None:
        if result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not first:
            self._skipped = True
            return
        super()._answered(stream, one, leader, result, first=first)

    def _bump(self, stream: _Stream) -> None:
        epoch = self._epochs[stream.number] = self._epoch(stream) + 1
        self.world.trace("bumped", self.name, stream.history.name, epoch, *(one.batch.number for one in stream.queue))
        stream.sequence = 0
        for place, one in enumerate(stream.queue):
            data = bytearray(one.data)
            rewrite_header(data, 0, producer_epoch=ProducerEpoch(epoch), base_sequence=stream.sequence)
            stream.sequence += one.batch.count
            batch = replace(one.batch, tail=bytes(data[CRC_POSITION:]))
            stream.history.sent[batch.tail] = batch
            stream.queue[place] = _Sent(batch, bytes(data), one.losses)
