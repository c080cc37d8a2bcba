"""Connections of the HTTP process: how many there may be, how long each may be idle, and which requests work above the limit.

uvicorn waits for ever for the head of a request, and for a response to be read. It counts connections only to refuse requests.
A thousand silent connections would therefore stop its health checks. So here:

- A head is limited by ``header_timeout_ms`` and ``HEAD_BYTES_MAX``. So is the rest of a body after its response was sent.
- A response that the client does not read ends its connection after ``transfer_timeout_ms``. ``app/http/bodies.py`` limits request
  bodies.
- Past ``connections_max`` a new connection replaces one without a request under way. Those that never had one go first.
- If there is none, it gets one of ``RESERVED`` places. There, health checks are answered, and all else is 503.
- A request that stores one small record goes a way of its own (``app/http/quick_records.py``).
- A client that is still sending when it gets the last answer of its connection can read that answer (``Lingering``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.core.limits import KIB
from app.core.metrics import Registry
from app.http.access import HEALTH_PATHS
from app.http.bodies import JSON_TYPE
from app.http.errors import RestAnswer

if TYPE_CHECKING:
    from app.client.producer import Acknowledged
    from app.http.quick_records import Accepted, QuickRecords, Target

HEAD_BYTES_MAX: Final = 64 * KIB
"""Limit for a request's line and headers, and for the frame of a chunked body (chunk extensions, trailers)."""
RESERVED: Final = 64
"""Connections past the limit, for health checks."""
SETTLING_S: Final = 1.0
"""A younger connection may have sent a request that was not read yet, so it is closed last."""
WHOLE: Final = "firn.whole"
"""True in the scope of a request whose body has come to its end, so that reading it never waits."""
_UNAWAITED: Final = asyncio.Event()
"""uvicorn sets the event of each cycle. None waits for that of the short way."""
LINGER_S: Final = 2.0
"""More than a round trip on any network, so that a client that reads while it sends has its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    connections_max: int
    header_timeout_ms: int
    transfer_timeout_ms: int


class OpenConnections:
    """All connections of the process."""

    def __init__(self, limits: ConnectionLimits, registry: Registry, *, quick: QuickRecords | None = None) -> None:
        """``quick``: the short way of records, if the process has it."""
        self.limits = limits
        self.quick: Final = quick
        self._registry = registry
        self._open: set[HttpConnection] = set()
        self._fresh: dict[HttpConnection, float] = {}
        """Those that have not sent a whole head yet, oldest first, with the time when they came."""
        self._idle: dict[HttpConnection, None] = {}
        """Those between two requests, longest first."""
        self.quick_under_way = 0
        """Records that went the short way and have no answer yet, also those of clients that have left."""
        registry.gauge("firn_http_connections", "HTTP connections open.", lambda: [((), float(len(self._open)))])

    def enter(self, connection: HttpConnection, now_s: float) -> bool:
        """Take in an accepted connection; True if it has an ordinary place. Another may be closed for it."""
        full = len(self._open) >= self.limits.connections_max
        if full and self._make_room(now_s):
            full = False
        elif full and len(self._open) >= self.limits.connections_max + RESERVED and self._fresh:
            self._evict(next(iter(self._fresh)))
        self._open.add(connection)
        self._fresh[connection] = now_s
        if len(self._open) > self.limits.connections_max + RESERVED:
            self._evict(connection)
        return not full

    def leave(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        self.busy(connection)

    def busy(self, connection: HttpConnection) -> None:
        """A request is under way."""
        self._fresh.pop(connection, None)
        self._idle.pop(connection, None)

    def idle(self, connection: HttpConnection) -> None:
        """The request under way was answered."""
        if connection in self._open:
            self._idle[connection] = None

    def count_closed(self, reason: str) -> None:
        text = "HTTP connections closed by this side before their end, by reason."
        self._registry.counter("firn_http_connections_closed_total", text, reason=reason).value += 1

    def _make_room(self, now_s: float) -> bool:
        for connection, came_s in self._fresh.items():
            if now_s - came_s < SETTLING_S:
                break
            self._evict(connection)
            return True
        for connection in self._idle:
            self._evict(connection)
            return True
        return False

    def _evict(self, connection: HttpConnection) -> None:
        self.leave(connection)
        self.count_closed("evicted")
        connection.transport.abort()


class Lingering(asyncio.Transport):
    """A connection's transport, whose ``close`` loses no answer that was written before (RFC 9112, section 9.6).

    The kernel resets a connection that is closed with bytes unread, or that gets bytes after it was closed. A client that is
    still sending then fails, and may never read the answer. So where more bytes may come, only this side's end is closed. Further
    bytes are thrown away until the client closes its end, for at most ``LINGER_S``.
    """

    def __init__(self, transport: asyncio.Transport, more_may_come: Callable[[], bool]) -> None:
        super().__init__()
        self._transport = transport
        self._more_may_come = more_may_come
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self.is_closing():
            return
        if not self._more_may_come():
            self._transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
        self._transport.resume_reading()
        try:
            self._transport.write_eof()
        except OSError:  # the client has reset the connection, so no answer can reach it
            self._transport.abort()

    def close_at_once(self) -> None:
        """Close where no answer can be lost."""
        self._transport.close()

    def is_closing(self) -> bool:
        return self._timer is not None or self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()

    def closed(self) -> None:
        """The connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
        self._more_may_come = bool  # it referred to the connection, whose memory would wait for the garbage collector

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._timer is None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._timer is None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


class _QuickCycle:
    """Stands in the place of uvicorn's cycle while a record that went the short way is being stored."""

    __slots__ = ("_connection", "accepted", "disconnected", "keep_alive", "message_event", "response_complete")

    def __init__(self, connection: HttpConnection, accepted: Accepted) -> None:
        self._connection: HttpConnection | None = connection
        self.accepted = accepted
        self.message_event = _UNAWAITED
        self.response_complete = self.disconnected = False
        self.keep_alive = True

    def finish(self, _stored: asyncio.Future[Acknowledged]) -> None:
        """The record is stored, or has failed."""
        connection = self._connection
        assert connection is not None
        self._connection = None  # the connection keeps this cycle, so its memory would wait for the garbage collector
        connection.finish_quickly(self)


class HttpConnection(HttpToolsProtocol):
    """One connection. ``door`` is set in the subclass that ``connection_class`` makes."""

    door: OpenConnections
    transport: Lingering

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._spoke = False
        self._message_open = False
        """Between the end of a request's head and the end of its body."""
        self._unparsed_bytes = 0
        """Received since the parser last had a whole head or a part of a body."""
        self._has_place = True
        self._held: Target | None = None
        """Of a request that may go the short way, while its body comes."""
        self._held_body = b""
        self._held_since_s = 0.0

    @property
    def _under_way(self) -> bool:
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    def _more_may_come(self) -> bool:
        """Whether the client may be sending: the message that it began has no end yet, or others were not read."""
        return self._message_open or self._unparsed_bytes > 0 or bool(self.pipeline)

    # --- the transport's callbacks --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Lingering(transport, self._more_may_come))
        self._await_head()
        if not self.door.enter(self, self.loop.time()):
            self._has_place = False
            self.app = _health_only(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.leave(self)
        self._stop_timers()
        self._unset_keepalive_if_required()
        self.transport.closed()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._spoke = True
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._held is not None:
            self._let_go()  # the rest of the body may be long in coming
        if self._unparsed_bytes > HEAD_BYTES_MAX:
            self._end("head_too_large", 431, f"A request's head has at most {HEAD_BYTES_MAX} bytes.")
        elif not self._under_way and self.timeout_keep_alive_task is None:
            self._await_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.door.limits.transfer_timeout_ms / 1000, self._stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    # --- the parser's callbacks -----------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        self._message_open = True
        self._head_came()
        self.door.busy(self)
        self._held = self._quick_target()
        if self._held is None:
            super().on_headers_complete()
        else:
            self._held_since_s = perf_counter()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if self._held is None:
            super().on_body(body)
        else:
            self._held_body += body

    def on_message_complete(self) -> None:
        self._message_open = False
        if self._held is not None:
            if self._begin_quickly(self._held):
                self._held, self._held_body = None, b""
                return
            self._let_go()
        self.scope[WHOLE] = True  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()
        if not self._under_way and not self.transport.is_closing():
            # The rest of a body has come after its response was sent. The connection is between two requests again.
            self._head_came()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._under_way:
            self.door.idle(self)

    # --- the short way of records ---------------------------------------------------------------------------------

    def _quick_target(self) -> Target | None:
        """Cluster and topic of a request, if its head lets it go the short way."""
        quick, parser = self.door.quick, self.parser
        if quick is None or not self._has_place or self._under_way or self.flow.write_paused:
            return None
        if parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or not parser.should_keep_alive():
            return None
        return quick.target_of(self.url, self.headers, self.server, self.scheme or "http")

    def _let_go(self) -> None:
        """The held request goes the usual way."""
        body, self._held, self._held_body = self._held_body, None, b""
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def _begin_quickly(self, target: Target) -> bool:
        """Hand the held record over to the producer. Returns whether that was done."""
        assert self.door.quick is not None
        accepted = self.door.quick.accept(target, self._held_body, self._held_since_s)
        if accepted is None:
            return False
        cycle = _QuickCycle(self, accepted)
        self.cycle = cycle  # type: ignore[assignment]
        self.door.quick_under_way += 1
        accepted.stored.add_done_callback(cycle.finish)
        return True

    def finish_quickly(self, cycle: _QuickCycle) -> None:
        """Send the receipt of a record that went the short way."""
        quick = self.door.quick
        assert quick is not None
        self.door.quick_under_way -= 1
        status, line = quick.answer(cycle.accepted)
        cycle.response_complete = True
        if not cycle.disconnected:
            headers = self.server_state.default_headers
            self.transport.write(quick.response(STATUS_LINE[status], headers, status, line, close=not cycle.keep_alive))
            if not cycle.keep_alive:
                self.transport.close()
            self.on_response_complete()
        quick.count(cycle.accepted, status)

    def send_400_response(self, msg: str) -> None:
        self.door.count_closed("malformed")
        super().send_400_response(msg)

    # --- timers ---------------------------------------------------------------------------------------------------

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.door.limits.header_timeout_ms / 1000, self._head_missing)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_timers(self) -> None:
        self._head_came()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _head_missing(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or self._under_way:
            return
        if self._spoke:
            self._end("header_timeout", 408, "The head of the request did not come in time.")
        else:
            self.door.count_closed("header_timeout")
            self.transport.close()

    def _stalled(self) -> None:
        self._stall_timer = None
        self.door.count_closed("not_read")
        self.transport.abort()

    def _end(self, reason: str, status: int, message: str) -> None:
        """Close the connection. A client that waits for an answer gets one first."""
        self.door.count_closed(reason)
        if not self._under_way and not self._message_open:
            body = RestAnswer(status, status, message).body()
            head = f"HTTP/1.1 {status} \r\ncontent-type: {JSON_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
            self.transport.close()
        else:
            self.transport.close_at_once()


def connection_class(door: OpenConnections) -> type[HttpConnection]:
    """The protocol class for uvicorn, which makes its instances itself."""
    return type("HttpConnection", (HttpConnection,), {"door": door})


def _health_only(app: Any) -> ASGIApp:
    """The application that serves a connection past the limit."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in HEALTH_PATHS:
            await app(scope, receive, send)
            return
        body = RestAnswer(503, 503, "This server has as many connections as it may have. Try again later.").body()
        headers = [
            (b"content-type", JSON_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"retry-after", b"1"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return serve
