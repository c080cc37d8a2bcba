"""Sends spans to an OpenTelemetry collector by OTLP over HTTP, from a thread of its own (ADR 0049).

It is the only module that uses OpenTelemetry, which the extra ``tracing`` installs. A thread imports it, because that takes some
tenths of a second.

Tests: ``tests/broker/test_tracing.py``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import ConfigError
from app.core.extras import install_hint
from app.core.tracing import Span, Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

SPANS_AT_ONCE: Final = 160
"""They take 3.5 ms to encode. The loop waits for the interpreter meanwhile, and gets it when they are sent. A request to the
collector takes 1.1 ms of CPU besides, with few or many spans."""
SEND_EVERY_S: Final = 1.0
TIMEOUT_S: Final = 5.0
"""Of a request to the collector."""
END_S: Final = 2.0
"""How long a stop waits for the last spans. The thread is a daemon, so the interpreter ends without it."""
NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def is_installed() -> bool:
    """Whether the packages of the extra are there."""
    try:
        return all(find_spec(name) is not None for name in NEEDED)
    except ModuleNotFoundError:
        return False


def check_installed() -> None:
    """Raises: ConfigError if the extra is missing."""
    if not is_installed():
        hint = install_hint("tracing")
        raise ConfigError(f"firn.tracing.endpoint needs OpenTelemetry, which is not installed. Run {hint}.")


class SpanExport:
    """Sends the spans of a tracer from its making on, until ``stop``. Belongs to the loop that makes it."""

    def __init__(
        self, tracer: Tracer, endpoint: str, resource: Mapping[str, str], failed: Callable[[str], None]
    ) -> None:
        """``resource``: says whose spans they are. ``failed`` is called in the loop for each batch that was not taken, with a
        sentence."""
        self._tracer, self._endpoint, self._resource, self._failed = tracer, endpoint, dict(resource), failed
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="firn-spans", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._send_until_stopped()
        except Exception as error:  # noqa: BLE001 # the broker serves on without traces
            self._tell(f"The thread that sends spans ended: {error!r}.")
        finally:
            with suppress(RuntimeError):  # the loop is closed: it did not wait
                self._loop.call_soon_threadsafe(self._ended.set)

    def _send_until_stopped(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult

        for name in ("opentelemetry.exporter", "opentelemetry.exporter.otlp.proto.http.trace_exporter"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # the broker tells of failures itself
        exporter: Any = OTLPSpanExporter(endpoint=self._endpoint, timeout=TIMEOUT_S)
        resource = Resource(self._resource)
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(SEND_EVERY_S)
            while spans := self._tracer.take(SPANS_AT_ONCE):
                if exporter.export(_readable(spans, resource)) is SpanExportResult.SUCCESS:
                    self._tracer.sent.value += len(spans)
                    continue
                self._tracer.refused.value += len(spans)
                self._tell(f"The collector at {self._endpoint} did not take spans. See firn.tracing.endpoint.")
                break
        exporter.shutdown()

    def _tell(self, sentence: str) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._failed, sentence)

    async def stop(self) -> None:
        """Send the last spans, and end the thread. Returns after ``END_S`` at the latest."""
        self._stopping.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._ended.wait()


def _readable(spans: Sequence[Span], resource: Any) -> list[ReadableSpan]:
    """The spans as OpenTelemetry has them."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    scope = InstrumentationScope("firn")
    sampled = TraceFlags(TraceFlags.SAMPLED)

    def context(trace_id: int, span_id: int) -> SpanContext:
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=sampled)

    return [
        ReadableSpan(
            name=span.name,
            context=context(*span.context),
            parent=None if span.parent_id is None else context(span.context.trace_id, span.parent_id),
            resource=resource,
            attributes=dict(span.attributes),
            links=[Link(context(*one)) for one in span.links],
            kind=SpanKind[span.kind.name],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
        )
        for span in spans
    ]
