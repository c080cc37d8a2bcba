"""Spans of sampled HTTP requests, and the parts of an HTTP process that traces (ADR 0049).

A process without ``firn.tracing.endpoint`` never imports this module.

Tests: ``tests/http/test_tracing.py``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.client.traced import SERVING, Serving
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.seams import Clock
from app.core.tracing import Attributes, Caller, Kind, Tracer, parse_traceparent
from app.http.front import FAILED, METHODS
from app.http.processes.worker import PASSED
from app.machine.span_export import SpanExport, check_installed

if TYPE_CHECKING:
    from types import TracebackType

    from app.http.gateway import HttpSettings

TRACEPARENT: Final = b"traceparent"
OTHER_METHOD: Final = "HTTP"
SERVICE: Final = "firn-http"


def caller_in(headers: Iterable[tuple[bytes, bytes]]) -> Caller | None:
    """The span that has caused a request; None without a ``traceparent``, with a malformed one, or with several."""
    found = [value for name, value in headers if name == TRACEPARENT]
    return parse_traceparent(found[0]) if len(found) == 1 else None


class TracedRequests:
    """ASGI middleware outside all others: the span of each sampled request."""

    def __init__(self, inner: ASGIApp, *, tracer: Tracer) -> None:
        self._inner, self._tracer = inner, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The process that has passed a request on traces it.
        found = None if scope["type"] != "http" or PASSED in scope else self._sampled(scope)
        if found is None:
            await self._inner(scope, receive, send)
            return
        serving, caller = found
        status, tracer = FAILED, self._tracer

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started_s = tracer.elapsed_s()
        token = SERVING.set(serving)
        try:
            await self._inner(scope, receive, note_status)
        finally:
            SERVING.reset(token)
            serving.ended = True
            method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
            route = getattr(scope.get("route"), "path", "")
            attributes: Attributes = {"http.request.method": method, "http.response.status_code": status}
            if route:
                attributes = {**attributes, "http.route": route}
            parent = None if caller is None else caller.context
            error = f"HTTP status {status}." if status >= FAILED else ""
            name, ended_s = f"{method} {route}".rstrip(), tracer.elapsed_s()
            tracer.ended(
                name, serving.context, parent, started_s, ended_s, attributes, error=error, kind=Kind.SERVER
            )  # fmt: skip

    def _sampled(self, scope: Scope) -> tuple[Serving, Caller | None] | None:
        """The request with its caller, if it is sampled. A caller with a trace decides that; this process decides otherwise."""
        tracer = self._tracer
        caller = caller_in(scope["headers"])
        if caller is not None:
            if not caller.sampled:
                return None
        elif tracer.left:
            tracer.left -= 1
            return None
        else:
            tracer.draw()
        context = tracer.begin(None if caller is None else caller.context)
        return None if context is None else (Serving(tracer, context), caller)


class HttpTracing:
    """The tracer of an HTTP process, and in its block the thread that sends its spans."""

    def __init__(
        self, settings: HttpSettings, *, clock: Clock, rng: random.Random, registry: Registry, faults: Faults
    ) -> None:
        """Raises: ConfigError if OpenTelemetry is not installed."""
        check_installed()
        self._settings, self._faults = settings, faults
        self.tracer = Tracer(
            settings.tracing_sample_ratio, rng=rng, now_ms=clock.now_ms, elapsed_s=time.perf_counter, registry=registry
        )
        self._export: SpanExport | None = None

    async def __aenter__(self) -> Self:
        settings = self._settings
        instance = f"{settings.tracing_instance}/{settings.process}".lstrip("/")
        resource = {"service.name": SERVICE, "service.instance.id": instance}
        self._export = SpanExport(self.tracer, settings.tracing_endpoint, resource, self._failed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._export is not None
        await self._export.stop()

    def _failed(self, sentence: str) -> None:
        self._faults.met("sending spans to", self._settings.tracing_endpoint, sentence)
