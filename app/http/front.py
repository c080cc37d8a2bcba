"""ASGI middleware in front of all others: one form of each path, leave by ``Guard``, and a measure of every request by its route.

It is one object, because each layer between the server and a frequent route costs that route several microseconds.

Tests: ``tests/http/test_conventions.py``, ``tests/http/test_access.py``, ``tests/http/test_metrics_document.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.core.metrics import Counter, Histogram, Registry
from app.http.conventions import HEAD, in_one_form, without_body
from app.http.guard import Guard, GuardAnswer, Header
from app.http.processes.worker import PASSED
from app.http.registry.paths import ANSWER_TYPE, OWN_TYPE, read_paths

METHODS: Final = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))
"""Methods that have series of their own."""
FAILED: Final = 500
"""The status of a request that raised before its response began."""


class Measures:
    """Counts requests and their times by route."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def note(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request that has ended. ``path``: that of its route."""
        key = (method, path, status)
        counter, histogram = self._series.get(key) or self._new_series(*key)
        counter.value += 1
        histogram.observe(seconds)

    def _new_series(self, method: str, path: str, status: int) -> tuple[Counter, Histogram]:
        registry = self._registry
        text = "HTTP requests by route and status."
        counter = registry.counter("firn_http_requests_total", text, method=method, route=path, status=str(status))
        text = "Time from a request's head to the end of its response."
        histogram = registry.histogram("firn_http_request_seconds", text, method=method, route=path)
        self._series[method, path, status] = counter, histogram
        return counter, histogram


class Front:
    """Runs before everything else."""

    def __init__(self, inner: ASGIApp, *, guard: Guard, measures: Measures) -> None:
        self._inner = inner
        self._guard = guard
        self._measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        scope = read_paths(in_one_form(scope))
        sending = _Sending(without_body(send) if HEAD in scope else send, scope.get(ANSWER_TYPE))
        started_s = perf_counter()
        try:
            # The process that passed a request on has checked it.
            verdict = () if PASSED in scope else self._guard.check(scope)
            if isinstance(verdict, GuardAnswer):
                await verdict.send_by(sending)
            else:
                sending.shared = verdict
                await self._inner(scope, receive, sending)
        finally:
            # Other paths and methods are the client's invention and must not each become a series.
            path = getattr(scope.get("route"), "path", "unmatched")
            method = scope["method"]
            if path == "unmatched":
                method = "ANY"
            elif method not in METHODS:
                method = "OTHER"
            self._measures.note(method, path, sending.status, perf_counter() - started_s)


class _Sending:
    """Sends a response, and knows its status."""

    __slots__ = ("_kind", "_send", "shared", "status")

    def __init__(self, send: Send, kind: bytes | None) -> None:
        """``kind``: the type of the response, in place of the registry's."""
        self._send = send
        self._kind = kind
        self.status = FAILED
        self.shared: Sequence[Header] = ()
        """Headers that the response gets besides its own."""

    def __call__(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.shared:
                message = {**message, "headers": [*message.get("headers", ()), *self.shared]}
            if self._kind is not None:
                message = {**message, "headers": [self._typed(one) for one in message.get("headers", ())]}
        return self._send(message)

    def _typed(self, header: Header) -> Header:
        return (header[0], self._kind) if self._kind is not None and header == (b"content-type", OWN_TYPE) else header
