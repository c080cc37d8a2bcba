"""Connections of a broker that traces: they take sampled Produce and Fetch requests out of the stream, and time them (ADR 0049).

A broker without ``firn.tracing.endpoint`` never imports this module. Its connections are plain ``Session`` objects.

Tests: ``tests/broker/test_tracing.py``, ``tests/handlers/test_traced.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

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
CLIENT_ID_BYTES: Final = Struct(">h")
CLIENT_ID_START: Final = HEAD.size - FRAME_SIZE.size - CLIENT_ID_BYTES.size
"""The place of the client id's length in a frame without its size."""
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


T = TypeVar("T")
Traced: TypeAlias = "dict[Slot, Waiting]"


class TracedSession(Session):
    """A connection whose requests may be sampled, by this broker or by their clients.

    Without a sampled request, a call costs one comparison. The place of the request that this broker samples is found by the sizes
    of whole frames. Requests that their clients have sampled are decoded by ``_serve_decoded`` and ``_serve_one`` anyway.

    A call that goes on behind the frames that it serves first serves them out of a slice of ``view``. So the gathered ones are
    appended at once: the buffer is not set aside, which would give it to another user with the next flush."""

    __slots__ = ()

    server: TracedServer
    _traced: Traced
    _begun: list[Begun]
    """The sampled request at the front, if its turn has not come yet."""

    def serve(self, view: memoryview, position: int, end: int) -> int:
        server = self.server
        if server.produced.value + server.fetched.value < server.due and not self._begun:
            return super().serve(view, position, end)
        return self._serve_due(view, position, end)

    def _serve_due(self, view: memoryview, position: int, end: int) -> int:
        """Serve frames of which one may be sampled. Returns: as ``serve``."""
        server = self.server
        while self._begun or server.requests() >= server.due:
            if self._begun:
                start, frame_end = position, position + FRAME_SIZE.size + FRAME_SIZE.unpack_from(view, position)[0]
            elif not server.tracer.has_room():
                served = super().serve(view, position, end)
                server.pass_over()
                return served
            else:
                start, frame_end = _find(view, position, end, server.passing())
                if start < 0:
                    return super().serve(view, position, end)
            if start > position:
                served = super().serve(view[:], position, start)
                if served < start or self.ending is not None or self.logging_in:
                    return served
            served = self._serve_sampled(view, start, frame_end)
            if served < frame_end or frame_end == end or self.ending is not None or self.logging_in:
                return served
            position = frame_end
        return super().serve(view, position, end)

    def _serve_sampled(self, view: memoryview, start: int, end: int) -> int:
        """Serve one frame that this broker samples, and keep its spans. Returns: as ``serve``."""
        if self.gathered:
            self.server.gathering.flush(self)  # so that only this request is timed
        if self._begun:
            begun: Begun | None = self._begun.pop()
        else:
            self.server.draw()
            _, api_key, version, _, _ = HEAD.unpack_from(view, start)
            frame = view[start + FRAME_SIZE.size : end]
            by_client = self._caller_of(version, FETCH_TAGS if api_key else PRODUCE_TAGS, frame)
            begun = None if by_client is not None else self._begin(frame, None)
        if begun is None:
            return super().serve(view[:], start, end)
        serve = super().serve
        return self._timed(begun, lambda: serve(view[:], start, end), left=lambda served: served < end)

    def _serve_decoded(self, api_version: int, correlation_id: int, frame: memoryview) -> Parts:
        caller = self._caller_of(api_version, PRODUCE_TAGS, frame)
        begun = None if caller is None else self._begin(frame, caller)
        if begun is None:
            return super()._serve_decoded(api_version, correlation_id, frame)
        serve = super()._serve_decoded
        return self._timed(begun, lambda: serve(api_version, correlation_id, frame), size=_size_of)

    def _serve_one(self, api_key: int, api_version: int, correlation_id: int, frame: memoryview) -> None:
        caller = self._caller_of(api_version, FETCH_TAGS, frame) if api_key == FETCH else None
        begun = None if caller is None else self._begin(frame, caller)
        if begun is None:
            super()._serve_one(api_key, api_version, correlation_id, frame)
            return
        serve = super()._serve_one
        self._timed(begun, lambda: serve(api_key, api_version, correlation_id, frame))

    def _caller_of(self, version: int, tags_from: int, frame: memoryview) -> SpanContext | None:
        """The span of the client that has sampled the request in ``frame``, which is without its size. ``tags_from``: the first
        version with tagged fields."""
        if version < tags_from or len(frame) < HEAD.size - FRAME_SIZE.size:
            return None
        tags = HEAD.size - FRAME_SIZE.size + max(CLIENT_ID_BYTES.unpack_from(frame, CLIENT_ID_START)[0], 0)
        if tags >= len(frame) or not frame[tags]:
            return None
        told = traceparent_of(frame, 0, len(frame))
        caller = None if told is None else parse_traceparent(told)
        return caller.context if caller is not None and caller.sampled else None

    def _begin(self, frame: memoryview, caller: SpanContext | None) -> Begun | None:
        """Begin the trace of a request; None if there is no room for it, or if it is not traced."""
        tracer = self.server.tracer
        if not tracer.has_room():
            tracer.skip()
            return None
        asked = self._describe(frame)
        context = None if asked is None else tracer.begin(caller)
        return None if asked is None or context is None else Begun(asked, context, caller, tracer.elapsed_s())

    def _timed(
        self,
        begun: Begun,
        serve: Callable[[], T],
        *,
        left: Callable[[T], bool] = lambda _: False,
        size: Callable[[T], int] = lambda _: 0,
    ) -> T:
        """Serve a request, and keep its spans. ``left``: whether it is served later, by the result of ``serve``. ``size``: bytes of
        a response in the result, which is not given to the connection yet."""
        tracer = self.server.tracer
        asked, context = begun.asked, begun.context
        slots, out_bytes = len(self._slots), self._answered_bytes()
        log_ends = [log.log_end_offset for log in asked.logs]
        served_s = tracer.elapsed_s()
        token = CURRENT.set(context) if asked.follows_reads else None
        try:
            served = serve()
        finally:
            if token is not None:
                CURRENT.reset(token)
        if left(served):
            self._begun.append(begun)  # it keeps its trace
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
            asked.attributes["firn.response_bytes"] = self._answered_bytes() - out_bytes + size(served)
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
            if slot.parts is not None:
                waiting.begun.asked.attributes["firn.response_bytes"] = _size_of(slot.parts)
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


def _find(view: memoryview, position: int, end: int, left: int) -> tuple[int, int]:
    """Walk over whole frames until ``left`` Produce and Fetch requests have passed. Returns: start and end of the next one; -1, -1
    if it is not there."""
    while end - position >= HEAD.size:
        size, api_key, _, _, _ = HEAD.unpack_from(view, position)
        frame_end = position + FRAME_SIZE.size + size
        if size < REQUEST_BYTES_MIN or frame_end > end:
            break
        if api_key in (PRODUCE, FETCH):
            if not left:
                return position, frame_end
            left -= 1
        position = frame_end
    return -1, -1


def _size_of(parts: Parts) -> int:
    """Bytes of a response."""
    whole = [parts] if isinstance(parts, bytes) else parts or ()
    return sum(len(one) if isinstance(one, bytes) else one.length for one in whole)


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
        self.produced = context.metrics.meter(PRODUCE).requests
        self.fetched = context.metrics.meter(FETCH).requests
        self.drawn = int(self.requests()) + tracer.distance()
        """Requests that were served before the one that was drawn."""
        self.due = self.drawn
        """Requests that are served before the one that is sampled."""

    def requests(self) -> float:
        """Produce and Fetch requests that were served."""
        return self.produced.value + self.fetched.value

    def passing(self) -> int:
        """How many requests pass before the sampled one. A call that is served without a look at its requests may have had it. Then
        the request at the same place behind this call is sampled, so that none is more likely for its place."""
        count = int(self.requests())
        if count > self.due:
            self.due = count + (count - self.due)
        return self.due - count

    def draw(self) -> None:
        """The next request is sampled: draw another one behind that."""
        self.drawn += self.tracer.distance() + 1
        self.due = max(self.drawn, int(self.requests()) + 1)

    def pass_over(self) -> None:
        """Count the drawn requests among those that were served without a look at them, because no trace may begin."""
        count = self.requests()
        while self.drawn < count:
            self.tracer.skip()
            self.drawn += self.tracer.distance() + 1
        self.due = self.drawn

    def new_session(self, listener: str) -> Session:
        return TracedPlainSession(self, listener)

    def secure(self, doors: Mapping[str, ListenerAuthentication]) -> None:
        super().secure(doors)
        for door in doors.values():
            door.new_shown, door.new_login = TracedShownSession, TracedLoginSession
