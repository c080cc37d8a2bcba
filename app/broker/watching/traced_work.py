"""Spans of uploads and of reads of the object store, and the parts of a broker that traces (ADR 0049).

Tests: ``tests/broker/test_tracing.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from app.core.errors import FirnError
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.tracing import CURRENT, Kind, SpanContext, Tracer
from app.machine.span_export import SpanExport, check_installed
from app.objectstore.noting import NOTED, Noted, StoreRequest
from app.tiering.store.store_work import ChunkLocation, FooterBytes, StoreWork, UploadedSegment, UploadJob

if TYPE_CHECKING:
    from random import Random

    from app.configs import BrokerConfig
    from app.core.seams import Clock
    from app.tiering.store.segment_format import ChunkEntry

T = TypeVar("T")

ENDED: Final = "It ended without a result."
OK: Final = "ok"
OBJECT: Final = "firn.object_key"


class TracedWork:
    """``inner``, with spans: reads are children of the sampled Fetch that caused them, and uploads are linked to sampled Produce
    requests whose records they carry."""

    def __init__(self, inner: StoreWork, tracer: Tracer) -> None:
        self._inner, self._tracer = inner, tracer

    async def upload_segment(self, job: UploadJob) -> UploadedSegment:
        tracer = self._tracer
        links = tracer.links(job.topic_id, job.partition, job.end_offset)
        context = tracer.begin() if links or tracer.chance() else None
        work = self._inner.upload_segment(job)
        if context is None:
            uploaded = await work
            tracer.linked(job.topic_id, job.partition, job.end_offset)
            return uploaded
        attributes: dict[str, str | int] = {
            OBJECT: job.key,
            "firn.topic_id": str(UUID(bytes=job.topic_id)),
            "messaging.destination.partition.id": str(job.partition),
            "firn.base_offset": job.base_offset,
            "firn.end_offset": job.end_offset,
            "firn.segment_bytes": job.log_bytes - job.start_position,
        }
        uploaded = await self._timed("segment upload", context, None, attributes, work, links)
        tracer.linked(job.topic_id, job.partition, job.end_offset)  # not if it failed: its next try has the same links
        return uploaded

    async def upload_progress(self) -> dict[bytes, int]:
        return await self._inner.upload_progress()

    async def fetch_chunk(self, key: str, chunk: ChunkEntry, cache_path: str) -> ChunkLocation:
        work = self._inner.fetch_chunk(key, chunk, cache_path)
        parent = CURRENT.get()
        if parent is None:
            return await work
        attributes: dict[str, str | int] = {
            OBJECT: key,
            "firn.chunk_position": chunk.position,
            "firn.chunk_bytes": chunk.raw_bytes,
        }
        return await self._child("chunk read", parent, attributes, work)

    async def read_footer(self, key: str, place: tuple[int, int] | None) -> FooterBytes:
        work = self._inner.read_footer(key, place)
        parent = CURRENT.get()
        if parent is None:
            return await work
        return await self._child("footer read", parent, {OBJECT: key}, work)

    async def _child(self, name: str, parent: SpanContext, attributes: dict[str, str | int], work: Awaitable[T]) -> T:
        try:
            return await self._timed(name, self._tracer.child(parent), parent, attributes, work)
        finally:
            CURRENT.set(None)  # the task that read goes on for other requests, too

    async def _timed(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: dict[str, str | int],
        work: Awaitable[T],
        links: tuple[SpanContext, ...] = (),
    ) -> T:
        tracer = self._tracer
        started_s = tracer.elapsed_s()
        error = ENDED
        noted = Noted(tracer.elapsed_s)
        token = NOTED.set(noted)
        try:
            result = await work
            error = ""
            return result
        except FirnError as failure:
            error = str(failure)
            raise
        finally:
            NOTED.reset(token)
            ended_s = tracer.elapsed_s()
            if noted.count:
                attributes["firn.store_requests"] = noted.count
            for request in noted.requests:
                self._keep_request(context, request, started_s)
            tracer.ended(name, context, parent, started_s, ended_s, attributes, links=links, error=error)

    def _keep_request(self, work: SpanContext, request: StoreRequest, began_s: float) -> None:
        """Keep the span of one request to the store. ``began_s``: when its work began."""
        tracer = self._tracer
        attributes: dict[str, str | int] = {
            "firn.store_kind": request.kind,
            "firn.store_bytes": request.size_bytes,
            "firn.store_outcome": request.outcome,
            "firn.store_retry": request.retry,
        }
        start_s, end_s = began_s + request.start_s, began_s + request.end_s
        error = "" if request.outcome == OK else f"The request ended with: {request.outcome}."
        name = f"store {request.operation}"
        tracer.ended(name, tracer.child(work), work, start_s, end_s, attributes, error=error, kind=Kind.CLIENT)


class Tracing:
    """The tracer of a broker, and the thread that sends its spans."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        rng: Random,
        clock: Clock,
        elapsed_s: Callable[[], float],
        registry: Registry,
        faults: Faults,
    ) -> None:
        """``elapsed_s``: as ``Tracer``. Raises: ConfigError if OpenTelemetry is not installed."""
        check_installed()
        self._config, self._faults = config, faults
        self.tracer = Tracer(
            config.firn_tracing_sample_ratio,
            rng=rng,
            now_ms=clock.now_ms,
            elapsed_s=elapsed_s,
            registry=registry,
        )
        self._export: SpanExport | None = None

    def start(self) -> None:
        """Begin to send spans, from a thread."""
        config = self._config
        resource = {"service.name": "firn", "service.instance.id": str(config.node_id)}
        self._export = SpanExport(self.tracer, config.firn_tracing_endpoint, resource, self._failed)

    async def stop(self) -> None:
        """Send the last spans, if the collector takes them in time."""
        if self._export is not None:
            await self._export.stop()

    def _failed(self, sentence: str) -> None:
        self._faults.met("sending spans to", self._config.firn_tracing_endpoint, sentence)
