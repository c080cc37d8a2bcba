"""Spans of requests to brokers that an HTTP request causes, and its trace for the broker (ADR 0049).

A process without ``firn.tracing.endpoint`` never imports this module. Its connections are plain ``KafkaConnection`` objects.

Tests: ``tests/http/test_tracing.py``.
"""

from __future__ import annotations

from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Final

from app.client.connection import KafkaConnection, api_name
from app.client.producer import Producer
from app.core.errors import FirnError
from app.core.tracing import Attributes, Kind, SpanContext, Tracer, traceparent
from app.wire.apikeys import ApiKey
from app.wire.header import encode_traced_header

if TYPE_CHECKING:
    from app.client.cluster import TopicView
    from app.client.producer import _Batch, _PartitionQueue
    from app.core.units import BrokerId, TopicPartition
    from app.wire.apis.produce import PartitionProduceResponse

SPANS_MAX: Final = 64
"""Requests to brokers that one HTTP request has spans of. A stream of records may cause any number."""
JOINED_MAX: Final = 8
"""HTTP requests whose traces one Produce request belongs to. It may carry records of many."""
TRACED_BY_BROKERS: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
LEFT: Final = "The caller left before the response."


class Serving:
    """A sampled HTTP request. Tasks that it starts know it, and may outlive it."""

    __slots__ = ("context", "ended", "left", "links", "tracer")

    def __init__(self, tracer: Tracer, context: SpanContext, links: tuple[SpanContext, ...] = ()) -> None:
        """``links``: other HTTP requests whose records are in the same requests to brokers."""
        self.tracer, self.context, self.links = tracer, context, links
        self.ended = False
        self.left = SPANS_MAX


SERVING: Final[ContextVar[Serving | None]] = ContextVar("firn_serving", default=None)
"""The sampled HTTP request that this task works for."""
SENDING: Final[ContextVar[SpanContext | None]] = ContextVar("firn_sending", default=None)
"""The span of the request to a broker that this task sends."""


def serving() -> Serving | None:
    """The request of this task, if further spans belong to it."""
    found = SERVING.get()
    return None if found is None or found.ended or not found.left else found


class TracedConnection(KafkaConnection):
    """A connection whose requests get spans if a sampled HTTP request causes them."""

    async def _answer_to(self, key: int, version: int, body: bytes, timeout_ms: int) -> memoryview:
        cause = serving()
        if cause is None:
            return await super()._answer_to(key, version, body, timeout_ms)
        cause.left -= 1
        tracer = cause.tracer
        context, started_s, error = tracer.child(cause.context), tracer.elapsed_s(), LEFT
        token = SENDING.set(context)
        try:
            answer = await super()._answer_to(key, version, body, timeout_ms)
            error = ""
            return answer
        except FirnError as failure:
            error = str(failure)
            raise
        finally:
            SENDING.reset(token)
            attributes: Attributes = {
                "messaging.system": "kafka",
                "server.address": self.host,
                "server.port": self.port,
                "firn.api_version": version,
                "firn.request_bytes": len(body),
            }
            ended_s, name = tracer.elapsed_s(), api_name(key)
            tracer.ended(
                name, context, cause.context, started_s, ended_s, attributes,
                links=cause.links, error=error, kind=Kind.CLIENT,
            )  # fmt: skip

    def _header(self, key: int, version: int, correlation_id: int) -> bytes:
        context = SENDING.get()
        if context is None or key not in TRACED_BY_BROKERS:
            return super()._header(key, version, correlation_id)
        return encode_traced_header(key, version, correlation_id, self._client_id, traceparent(context))


class TracedProducer(Producer):
    """A producer whose Produce requests belong to the traces of the HTTP requests whose records they carry."""

    _causes: dict[_Batch, list[Serving]]
    """Of batches that are not acknowledged."""

    def start(self) -> None:
        self._causes = {}
        Context().run(super().start)  # it outlives the request that starts it

    def _open_batch(self, view: TopicView, key: bytes | None, partition: int | None, size: int) -> _Batch:
        batch = super()._open_batch(view, key, partition, size)
        cause = serving()
        if cause is not None:
            causes = self._causes.setdefault(batch, [])
            if cause not in causes and len(causes) < JOINED_MAX:
                causes.append(cause)
        return batch

    async def _produce(
        self, node_id: BrokerId, batches: list[_Batch]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        causes = [one for batch in batches for one in self._causes.get(batch, ()) if not one.ended and one.left]
        if not causes:
            return await super()._produce(node_id, batches)
        first = causes[0]
        first.left -= 1
        links = dict.fromkeys(one.context for one in causes if one is not first)
        shared = Serving(first.tracer, first.context, tuple(links)[:JOINED_MAX])
        token = SERVING.set(shared)
        try:
            return await super()._produce(node_id, batches)
        finally:
            SERVING.reset(token)

    def _succeed(self, queue: _PartitionQueue, batch: _Batch, part: PartitionProduceResponse) -> None:
        self._causes.pop(batch, None)
        super()._succeed(queue, batch, part)

    def _fail(self, queue: _PartitionQueue, batch: _Batch, error: FirnError) -> None:
        self._causes.pop(batch, None)
        super()._fail(queue, batch, error)

    def _remove(self, queue: _PartitionQueue, batch: _Batch, index: int) -> None:
        super()._remove(queue, batch, index)
        if not batch.records:
            self._causes.pop(batch, None)

    def _halves(self, batch: _Batch) -> tuple[_Batch, _Batch]:
        causes = self._causes.pop(batch, None)
        first, second = super()._halves(batch)
        if causes is not None:
            self._causes[first] = self._causes[second] = causes
        return first, second
