"""Traces of sampled requests: which requests are sampled, and the spans that wait to be sent (ADR 0049).

Pure: the owner gives times and randomness. This module needs no OpenTelemetry. ``app/machine/span_export.py`` sends the spans.

Tests: ``tests/core/test_tracing.py``.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import Enum, auto
from random import Random
from typing import Final, NamedTuple, TypeAlias

from app.core.metrics import Registry

QUEUE_MAX: Final = 4096
"""Spans that wait to be sent. Further ones are dropped. A span takes about 1 KiB."""
TRACES_PER_S: Final = 50
"""Traces that begin in a second, at most. So the cost is bounded at every rate of requests, also with a ratio of 1. OpenTelemetry
takes 0.1 ms of CPU to encode a span."""
LINKS_MAX: Final = 32
"""Sampled Produce requests of a partition that the upload of its next segment may link to."""
PARTITIONS_MAX: Final = 1024
"""Partitions whose Produce requests are kept for links."""
NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
DRIFT_NS_MAX: Final = NS_PER_S
"""A step of the wall clock beyond this moves the times of later spans."""

Attributes: TypeAlias = Mapping[str, str | int]


class SpanContext(NamedTuple):
    """The ids of a span, as W3C Trace Context has them."""

    trace_id: int
    span_id: int


class Kind(Enum):
    """The place of a span among processes, as OpenTelemetry has it."""

    INTERNAL = auto()
    SERVER = auto()
    """A request of another process, as the process that serves it sees it."""
    CLIENT = auto()
    """A request to another process, as the process that sends it sees it."""


class Caller(NamedTuple):
    """A span of another process that has caused a request."""

    context: SpanContext
    sampled: bool
    """Whether that process keeps its span."""


TRACEPARENT_BYTES: Final = 55
"""Of version 00. Later versions may append more."""
TRACEPARENT_BYTES_MAX: Final = 512
"""A longer value is ignored."""
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def parse_traceparent(text: bytes) -> Caller | None:
    """The content of W3C Trace Context's ``traceparent``; None for a malformed value. Takes the same small time for each value."""
    if not TRACEPARENT_BYTES <= len(text) <= TRACEPARENT_BYTES_MAX:
        return None
    found = _TRACEPARENT.match(text)
    if found is None:
        return None
    version, trace_id, span_id, flags = (int(one, 16) for one in found.groups())
    more = text[TRACEPARENT_BYTES : TRACEPARENT_BYTES + 1]
    if version == 0xFF or (more and (version == 0 or more != b"-")) or not trace_id or not span_id:
        return None
    return Caller(SpanContext(trace_id, span_id), bool(flags & 1))


def traceparent(context: SpanContext) -> bytes:
    """The ``traceparent`` of a span that is kept."""
    return b"00-%032x-%016x-01" % context


class Span(NamedTuple):
    """One finished piece of work."""

    name: str
    context: SpanContext
    parent_id: int | None
    """The span of the same trace that caused this one."""
    start_ns: int
    """Since the Unix epoch."""
    end_ns: int
    attributes: Attributes
    links: tuple[SpanContext, ...] = ()
    """Spans of other traces that this work belongs to."""
    error: str = ""
    """A sentence that says why the work failed; empty if it did not."""
    kind: Kind = Kind.INTERNAL


PASSING_MAX: Final = 1 << 62
"""Requests that pass before the next sample, at most. So many never come."""
CURRENT: Final[ContextVar[SpanContext | None]] = ContextVar("firn_span", default=None)
"""The sampled Fetch request that is being looked at. Reads of the object store that begin meanwhile are its children."""


class Tracer:
    """Decides which requests are sampled, and keeps finished spans. Belongs to one loop; one other thread may ``take``."""

    def __init__(
        self,
        ratio: float,
        *,
        rng: Random,
        now_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
        registry: Registry,
    ) -> None:
        """``ratio``: the share of requests that are sampled, from 0 to 1. ``elapsed_s``: a monotonic clock, precise enough to time
        a callback."""
        self._ratio, self._rng, self._now_ms, self.elapsed_s = ratio, rng, now_ms, elapsed_s
        self._log_missed = math.log1p(-ratio) if 0 < ratio < 1 else 0.0
        """Of the chance that a request is not sampled."""
        self._offset_ns = 0
        """Wall-clock time less ``elapsed_s``."""
        self._queue: deque[Span] = deque()
        self._second = -1
        self._begun = 0
        """Traces of this second."""
        self._produced: OrderedDict[tuple[bytes, int], list[tuple[int, SpanContext]]] = OrderedDict()
        count = registry.counter
        text = "Spans that were not sent, by the reason."
        self._full = count("firn_trace_spans_dropped_total", text, reason="queue")
        self.refused = count("firn_trace_spans_dropped_total", text, reason="collector")
        """Spans that the collector did not take. The thread that sends adds to it."""
        self.sent = count("firn_trace_spans_sent_total", "Spans that the collector has taken.")
        """The thread that sends adds to it."""
        self._skipped = count(
            "firn_trace_requests_skipped_total",
            f"Sampled requests without a trace, because {TRACES_PER_S} traces had begun within the same second.",
        )
        self.left = 0
        """Requests that pass before the next one is sampled, in a process that counts them down."""
        self.draw()

    def distance(self) -> int:
        """Draw how many requests pass between two that are sampled, if each were drawn by itself."""
        if self._ratio >= 1:
            return 0
        if self._ratio <= 0:
            return PASSING_MAX
        return int(min(math.log(1 - self._rng.random()) / self._log_missed, PASSING_MAX))

    def draw(self) -> None:
        """Decide anew how many requests pass before the next one is sampled."""
        self.left = self.distance()

    def chance(self) -> bool:
        """Whether work that is rarer than requests is sampled."""
        return self._rng.random() < self._ratio

    def has_room(self) -> bool:
        """Whether fewer than ``TRACES_PER_S`` traces have begun within this second."""
        second = int(self.elapsed_s())
        if second != self._second:
            self._second, self._begun = second, 0
            offset_ns = self._now_ms() * NS_PER_MS - int(self.elapsed_s() * NS_PER_S)
            if abs(offset_ns - self._offset_ns) > DRIFT_NS_MAX:
                self._offset_ns = offset_ns
        return self._begun < TRACES_PER_S

    def skip(self) -> None:
        """Count a sampled request that gets no trace, because there is no room."""
        self._skipped.value += 1

    def begin(self, caller: SpanContext | None = None) -> SpanContext | None:
        """The root of a new trace, or the first span of this process in the trace of ``caller``; None if ``TRACES_PER_S`` have
        begun within this second."""
        if not self.has_room():
            self.skip()
            return None
        self._begun += 1
        if caller is not None:
            return self.child(caller)
        return SpanContext(self._rng.getrandbits(128) or 1, self._rng.getrandbits(64) or 1)

    def child(self, parent: SpanContext) -> SpanContext:
        """The ids of a further span of a trace."""
        return SpanContext(parent.trace_id, self._rng.getrandbits(64) or 1)

    def ended(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        started_s: float,
        ended_s: float,
        attributes: Attributes,
        *,
        links: tuple[SpanContext, ...] = (),
        error: str = "",
        kind: Kind = Kind.INTERNAL,
    ) -> None:
        """Keep a finished span until it is sent, or drop and count it if there is no room. Times: of ``elapsed_s``."""
        if len(self._queue) >= QUEUE_MAX:
            self._full.value += 1
            return
        start_ns = int(started_s * NS_PER_S) + self._offset_ns
        end_ns = int(ended_s * NS_PER_S) + self._offset_ns
        parent_id = None if parent is None else parent.span_id
        self._queue.append(Span(name, context, parent_id, start_ns, end_ns, attributes, links, error, kind))

    def take(self, count_max: int) -> list[Span]:
        """The oldest spans that wait. May be called by another thread."""
        taken: list[Span] = []
        while self._queue and len(taken) < count_max:
            taken.append(self._queue.popleft())
        return taken

    def produced(self, topic_id: bytes, partition: int, offset: int, context: SpanContext) -> None:
        """A sampled request has appended records up to ``offset``. Keeps ``LINKS_MAX`` requests of a partition, drawn from all."""
        key = topic_id, partition
        kept = self._produced.setdefault(key, [])
        self._produced.move_to_end(key)
        if len(kept) < LINKS_MAX:
            kept.append((offset, context))
        else:
            kept[self._rng.randrange(LINKS_MAX)] = offset, context
        if len(self._produced) > PARTITIONS_MAX:
            self._produced.popitem(last=False)

    def links(self, topic_id: bytes, partition: int, offset_end: int) -> tuple[SpanContext, ...]:
        """The kept requests that appended below ``offset_end``, for an upload of a segment that ends there."""
        kept = self._produced.get((topic_id, partition), [])
        return tuple(context for offset, context in kept if offset < offset_end)

    def linked(self, topic_id: bytes, partition: int, offset_end: int) -> None:
        """A segment that ends there was uploaded: forget the requests that its upload was linked to."""
        kept = self._produced.pop((topic_id, partition), [])
        later = [one for one in kept if one[0] >= offset_end]
        if later:
            self._produced[topic_id, partition] = later
