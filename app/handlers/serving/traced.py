"""Connections of a broker that traces: they take sampled Produce and Fetch requests out of the stream, and time them (ADR 0049).

A broker without ``firn.tracing.endpoint`` never imports this module. Its connections are plain ``Session`` objects.

Tests: ``tests/broker/test_tracing.py``, ``tests/handlers/test_traced.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from app.core.errors import ProtocolError
from app.core.tracing import CURRENT, Kind, SpanContext, Tracer, parse_traceparent
from app.handlers.base.partitions import topic_name
from app.handlers.base.portions import LONG_FRAME_BYTES
from app.handlers.clients.produce_shape import PREFIX_START
from app.handlers.fetch.attempts import FETCH
from app.handlers.produce.produce import PRODUCE, find_partitions
from app.handlers.serving.doors import ListenerAuthentication, LoginSession, ShownSession
from app.handlers.serving.server import KafkaServer
from app.handlers.serving.session import Session
from app.transport.core import FRAME_SIZE, REQUEST_BYTES_MIN, Slot
from app.wire.fetch import decode_fetch
from app.wire.header import FLEXIBLE_FIRST, RequestHeader, parse_request_header, traceparent_of
from app.wire.produce import decode_produce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.handlers.base.api import Api
    from app.handlers.base.context import Context
    from app.handlers.clients.client import Service
    from app.hot.log import PartitionLog
    from app.security.login import Login
    from app.transport.sending import Parts
    from app.wire.produce import TopicRef

HEAD: Final = Struct(">ihhih")
"""Size of a frame, API key, version, correlation id, and length of the client id: no frame is shorter."""
PRODUCE_TAGS: Final = FLEXIBLE_FIRST[PRODUCE]
FETCH_TAGS: Final = FLEXIBLE_FIRST[FETCH]
"""The first versions whose headers have tagged fields."""
DECODED_BYTES_MAX: Final = 64 * 1024
"""A sampled Produce is decoded a second time up to this size, which takes a few milliseconds at most. A longer one names its
partition only if its connection has sent such requests before."""
LOGS_MAX: Final = 8
"""Partitions of one Produce whose uploads may link to it."""
CLIENT_ID_CHARS_MAX: Final = 100
PRODUCE_SPAN: Final = "Produce"
FETCH_SPAN: Final = "Fetch"
LEFT: Final = "The client left before the response."


class Asked(NamedTuple):
    """The facts of a sampled request that its span shows."""

    name: str
    attributes: dict[str, str | int]
    logs: tuple[PartitionLog, ...]
    """The logs of a Produce."""
    follows_reads: bool
    """Whether reads of the object store that it causes become children."""


class Chosen(NamedTuple):
    """A request that is sampled, in the bytes that a client sent."""

    start: int
    """-1 if there is none."""
    end: int
    passed: int
    """Produce and Fetch requests before it that count down to the next sample."""
    caller: SpanContext | None = None
    """The span of the client that sampled it; None if this broker did."""


class Begun(NamedTuple):
    """A sampled request that has a trace."""

    asked: Asked
    context: SpanContext
    caller: SpanContext | None
    started_s: float
    """When it was found. It may have to wait for its turn on its connection."""


class Waiting(NamedTuple):
    """A sampled request that waits for its response."""

    begun: Begun
    served_s: float
    """When its turn came."""
    parked_s: float
    """When its wait began."""


Traced: TypeAlias = "dict[Slot, Waiting]"


class TracedSession(Session):
    """A connection whose requests may be sampled. ``serve`` finds whole frames by their sizes alone.

    A call that goes on behind the frames that it serves first serves them out of a slice of ``view``. So the gathered ones are
    appended at once: the buffer is not set aside, which would give it to another user with the next flush."""

    __slots__ = ()

    server: TracedServer
    _traced: Traced
    _begun: list[Begun]
    """The sampled request at the front, if its turn has not come yet."""

    def serve(self, view: memoryview, position: int, end: int) -> int:
        tracer = self.server.tracer
        if not self._begun and not tracer.has_room():
            return self._serve_untraced(view, position, end)
        while True:
            if not self._begun:
                chosen = _find(view, position, end, tracer.left)
            else:
                frame_end = position + FRAME_SIZE.size + FRAME_SIZE.unpack_from(view, position)[0]
                chosen = Chosen(position, frame_end, 0)
            if chosen.start >= 0 and not self._begun and not tracer.has_room():
                return self._serve_untraced(view, position, end)
            if chosen.start < 0:
                served = super().serve(view, position, end)
                tracer.left -= chosen.passed if served == end else _find(view, position, served, chosen.passed).passed
                return served
            if chosen.start > position:
                served = super().serve(view[:], position, chosen.start)
                whole = served == chosen.start
                tracer.left -= chosen.passed if whole else _find(view, position, served, chosen.passed).passed
                if not whole or self.ending is not None or self.logging_in:
                    return served
            served = self._serve_sampled(tracer, view, chosen)
            if served < chosen.end or chosen.end == end or self.ending is not None or self.logging_in:
                return served
            position = chosen.end

    def _serve_untraced(self, view: memoryview, position: int, end: int) -> int:
        """Serve frames without a look at each, because no trace may begin. Their number is that of the meters. Returns: as
        ``serve``."""
        server = self.server
        produced, fetched = server.produce_meter.requests, server.fetch_meter.requests
        before = produced.value + fetched.value
        served = super().serve(view, position, end)
        server.tracer.pass_over(int(produced.value + fetched.value - before))
        return served

    def _serve_sampled(self, tracer: Tracer, view: memoryview, chosen: Chosen) -> int:
        """Serve one frame, and keep its spans. Returns: as ``serve``."""
        start, end, _, caller = chosen
        if self.gathered:
            self.server.gathering.flush(self)  # so that only this request is timed
        if self._begun:
            begun = self._begun.pop()
        else:
            if caller is None:
                tracer.draw()
            asked = self._describe(view[start + 4 : end])
            context = None if asked is None else tracer.begin(caller)
            if asked is None or context is None:
                return super().serve(view[:], start, end)
            begun = Begun(asked, context, caller, tracer.elapsed_s())
        asked, context = begun.asked, begun.context
        slots, out_bytes = len(self._slots), self._answered_bytes()
        log_ends = [log.log_end_offset for log in asked.logs]
        served_s = tracer.elapsed_s()
        token = CURRENT.set(context) if asked.follows_reads else None
        try:
            served = super().serve(view[:], start, end)
        finally:
            if token is not None:
                CURRENT.reset(token)
        if served < end:
            self._begun.append(begun)  # it is served later, and keeps its trace
            return served
        parked_s = tracer.elapsed_s()
        for log, offset in zip(asked.logs, log_ends, strict=True):
            if log.log_end_offset > offset:
                tracer.produced(log.topic_id.bytes, log.partition, log.log_end_offset - 1, context)
        waiting = Waiting(begun, served_s, parked_s)
        slot = self._slots[-1] if len(self._slots) > slots else None
        if slot is not None and not slot.done:
            self._traced[slot] = waiting
        else:
            asked.attributes["firn.response_bytes"] = self._answered_bytes() - out_bytes
            self._keep_spans(waiting, parked_s)
        return served

    def _describe(self, frame: memoryview) -> Asked | None:
        """None for a request that is not traced: of a broker that follows, or one that is refused as malformed."""
        try:
            header = parse_request_header(frame)
            version = header.api_version
            attributes: dict[str, str | int] = {
                "messaging.system": "kafka",
                "messaging.client.id": (header.client_id or "")[:CLIENT_ID_CHARS_MAX],
                "firn.api_version": version,
                "firn.request_bytes": len(frame),
            }
            if header.api_key == PRODUCE:
                return self._describe_produce(frame, header, attributes)
            if len(frame) > LONG_FRAME_BYTES:
                return Asked(FETCH_SPAN, attributes, (), follows_reads=False)
            request = decode_fetch(version, frame[header.body_start :])
            if request.replica_id >= 0:
                return None
        except ProtocolError:
            return None
        self._name(attributes, [(topic, one[0]) for topic, of_topic in request.topics for one in of_topic])
        return Asked(FETCH_SPAN, attributes, (), follows_reads=True)

    def _describe_produce(self, frame: memoryview, header: RequestHeader, attributes: dict[str, str | int]) -> Asked:
        """Raises: ProtocolError."""
        if len(frame) > DECODED_BYTES_MAX:
            shape = self.produced_shape
            if shape is None or shape.version != header.api_version or not _begins_with(frame, shape.prefix):
                return Asked(PRODUCE_SPAN, attributes, (), follows_reads=False)
            self._name(attributes, [shape.topic_partition])
            return Asked(PRODUCE_SPAN, attributes, (shape.log,), follows_reads=False)
        request = decode_produce(header.api_version, frame[header.body_start :])
        partitions = [(topic, index) for topic, of_topic in request.topics for index, _ in of_topic]
        self._name(attributes, partitions)
        logs: tuple[PartitionLog, ...] = ()
        if len(partitions) <= LOGS_MAX:
            logs = tuple(one.log for of_topic in find_partitions(self.context, request) for one in of_topic if one)
        return Asked(PRODUCE_SPAN, attributes, logs, follows_reads=False)

    def _name(self, attributes: dict[str, str | int], partitions: list[tuple[TopicRef, int]]) -> None:
        attributes["firn.partition_count"] = len(partitions)
        topics = {topic for topic, _ in partitions}
        if len(topics) == 1:
            topic = topics.pop()
            attributes["messaging.destination.name"] = topic_name(self.context, topic) or str(topic)
        if len(partitions) == 1:
            attributes["messaging.destination.partition.id"] = str(partitions[0][1])

    def _answered_bytes(self) -> int:
        pieces = sum(len(one) if isinstance(one, bytes) else one.length for one in self.pieces)
        return sum(map(len, self.out)) + pieces

    def follow(self, wake: Callable[[], None]) -> Callable[[], None]:
        return wake if CURRENT.get() is None else partial(copy_context().run, wake)

    def complete(self, slot: Slot, parts: Parts) -> None:
        super().complete(slot, parts)
        if self._traced:
            self._end_done()

    def hand_over(self) -> None:
        super().hand_over()
        if self._traced:
            self._end_done()

    def _end_done(self) -> None:
        for slot in [one for one in self._traced if one.done]:
            waiting = self._traced.pop(slot)
            parts = slot.parts
            if parts is not None:
                whole = [parts] if isinstance(parts, bytes) else parts
                size = sum(len(one) if isinstance(one, bytes) else one.length for one in whole)
                waiting.begun.asked.attributes["firn.response_bytes"] = size
            self._keep_spans(waiting, self.server.tracer.elapsed_s())

    def _keep_spans(self, waiting: Waiting, now_s: float, error: str = "") -> None:
        """Keep the spans of a request that ends now."""
        tracer, (begun, served_s, parked_s) = self.server.tracer, waiting
        asked, context = begun.asked, begun.context
        if asked.name == PRODUCE_SPAN:
            tracer.ended("append", tracer.child(context), context, served_s, parked_s, {})
        if now_s > parked_s:
            wait = "commit wait" if asked.name == PRODUCE_SPAN else "fetch wait"
            tracer.ended(wait, tracer.child(context), context, parked_s, now_s, {})
        _keep_request(tracer, begun, now_s, error)

    def lost(self) -> None:
        super().lost()
        for waiting in self._traced.values():
            self._keep_spans(waiting, self.server.tracer.elapsed_s(), LEFT)
        self._traced.clear()
        tracer = self.server.tracer
        for begun in self._begun:
            _keep_request(tracer, begun, tracer.elapsed_s(), LEFT)
        self._begun.clear()


def _keep_request(tracer: Tracer, begun: Begun, now_s: float, error: str) -> None:
    asked = begun.asked
    tracer.ended(
        asked.name, begun.context, begun.caller, begun.started_s, now_s, asked.attributes, error=error, kind=Kind.SERVER
    )


def _find(view: memoryview, position: int, end: int, left: int) -> Chosen:
    """Walk over whole frames until ``left`` Produce and Fetch requests have passed, or until one that its client has sampled."""
    passed = 0
    while end - position >= HEAD.size:
        size, api_key, version, _, client_id_bytes = HEAD.unpack_from(view, position)
        frame_end = position + 4 + size
        if size < REQUEST_BYTES_MIN or frame_end > end:
            break
        if api_key in (PRODUCE, FETCH):
            if version >= (FETCH_TAGS if api_key else PRODUCE_TAGS):
                tags = position + HEAD.size + (client_id_bytes if client_id_bytes > 0 else 0)
                if tags < frame_end and view[tags] and (caller := _caller_of(view, position, frame_end)) is not None:
                    return Chosen(position, frame_end, passed, caller)
            if passed == left:
                return Chosen(position, frame_end, passed)
            passed += 1
        position = frame_end
    return Chosen(-1, -1, passed)


def _caller_of(view: memoryview, position: int, end: int) -> SpanContext | None:
    """The span of the client that has sampled the request in a frame with tagged fields."""
    told = traceparent_of(view, position + FRAME_SIZE.size, end)
    caller = None if told is None else parse_traceparent(told)
    return caller.context if caller is not None and caller.sampled else None


def _begins_with(frame: memoryview, prefix: bytes) -> bool:
    """Whether a frame without its size has a shape's prefix."""
    start = PREFIX_START - FRAME_SIZE.size
    return frame[start : start + len(prefix)] == prefix


class TracedPlainSession(TracedSession):
    """A client of a listener without TLS and login."""

    __slots__ = ("_begun", "_traced")

    def __init__(self, server: TracedServer, listener: str) -> None:
        super().__init__(server, listener)
        self._traced: Traced = {}
        self._begun: list[Begun] = []


class TracedShownSession(TracedSession, ShownSession):
    """As ``ShownSession``."""

    __slots__ = ("_begun", "_traced")

    def __init__(self, server: Service, door: ListenerAuthentication) -> None:
        ShownSession.__init__(self, server, door)
        self._traced: Traced = {}
        self._begun: list[Begun] = []


class TracedLoginSession(TracedSession, LoginSession):
    """As ``LoginSession``."""

    __slots__ = ("_begun", "_traced")

    def __init__(self, server: Service, door: ListenerAuthentication, login: Login) -> None:
        LoginSession.__init__(self, server, door, login)
        self._traced: Traced = {}
        self._begun: list[Begun] = []


class TracedServer(KafkaServer):
    """The Kafka listeners of a broker that traces."""

    def __init__(self, context: Context, apis: Mapping[int, Api], *, connections_max: int, tracer: Tracer) -> None:
        super().__init__(context, apis, connections_max=connections_max)
        self.tracer = tracer
        self.fetch_meter = context.metrics.meter(FETCH)

    def new_session(self, listener: str) -> Session:
        return TracedPlainSession(self, listener)

    def secure(self, doors: Mapping[str, ListenerAuthentication]) -> None:
        super().secure(doors)
        for door in doors.values():
            door.new_shown, door.new_login = TracedShownSession, TracedLoginSession
