"""A generator of HTTP/1.1 requests: connections that send one prepared request again and again, each after its response.

A paced load keeps a rate. Each request has its time, and its wait counts from there, also when its connection was not free yet.
"""

from __future__ import annotations

import heapq
import secrets
import selectors
import socket
import time
from dataclasses import dataclass, field

MARK = b"<each-its-own>"
"""Stands in a request for text that no other request has."""
RECEIVE_BYTES = 1 << 20
SEND_BYTES = 1 << 18
_CHUNKED_END = b"0\r\n\r\n"


class RequestFailed(Exception):
    """A response without the wanted status."""


@dataclass(slots=True)
class Outcome:
    """What the responses of one run held."""

    requests: int = 0
    body_bytes: int = 0
    found: int = 0
    """How often they held the pattern that was looked for."""
    waits_s: list[float] = field(default_factory=list)
    """From each request to the end of its response. In a paced load from the time that the request was due."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Of the generator."""


class _Connection:
    """One connection. It keeps a response's head, and looks at its body once."""

    def __init__(self, port: int, request: bytes, pattern: bytes, outcome: Outcome) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._prepared = request
        self._pattern = pattern
        self._outcome = outcome
        self.due_s = 0.0
        self._sent = 0
        self._request = memoryview(b"")
        self._begin()

    def _begin(self) -> None:
        self._head: bytes | None = None
        self._length = -1
        self._received = 0
        self._pieces: list[bytes] = []
        self._tail = b""

    def restart(self, due_s: float) -> None:
        """Take the next request, which is due at this time of ``time.perf_counter``."""
        self._sent = 0
        self.due_s = due_s
        own = b"%0*x" % (len(MARK), secrets.randbits(4 * len(MARK)))
        self._request = memoryview(
            self._prepared.replace(MARK, own) if MARK in self._prepared[:1_000] else self._prepared
        )

    @property
    def wants_to_send(self) -> bool:
        return self._sent < len(self._request)

    def send(self) -> None:
        try:
            self._sent += self.socket.send(self._request[self._sent : self._sent + SEND_BYTES])
        except BlockingIOError:
            return

    def receive(self) -> bool:
        """Whether a response is whole. Raises: RequestFailed."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise RequestFailed("The server closed the connection.")
        if self._head is None:
            data = self._tail + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._tail = data
                return False
            self._head, data = data[:end].lower(), data[end + 4 :]
            if b" 200 " not in self._head[:15]:
                raise RequestFailed((self._head + b" " + data)[:600].decode(errors="replace"))
            at = self._head.find(b"content-length:")
            self._length = int(self._head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else -1
            self._tail = b""
        self._received += len(data)
        if self._pattern:
            self._pieces.append(data)
        if self._length >= 0:
            whole = self._received >= self._length
        else:
            self._tail = (self._tail + data)[-5:]
            whole = self._tail == _CHUNKED_END
        if whole:
            self._outcome.requests += 1
            self._outcome.waits_s.append(time.perf_counter() - self.due_s)
            self._outcome.body_bytes += self._received
            if self._pattern:
                self._outcome.found += b"".join(self._pieces).count(self._pattern)
            self._begin()
        return whole


@dataclass(slots=True, kw_only=True)
class Load:
    """Requests to one port."""

    port: int
    request: bytes
    connections: int
    pattern: bytes = b""
    requests_a_second: float = 0.0
    """Of all connections together. 0: each sends its next request at once."""

    def run(self, seconds: float) -> Outcome:
        """Send for so long. Raises: RequestFailed."""
        outcome = Outcome()
        all_open = [_Connection(self.port, self.request, self.pattern, outcome) for _ in range(self.connections)]
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        _Run(all_open, self.connections / self.requests_a_second if self.requests_a_second else 0.0).until(
            began_s + seconds
        )
        outcome.seconds = time.perf_counter() - began_s
        outcome.cpu_s = time.process_time() - began_cpu_s
        return outcome


class _Run:
    """Connections that send until a time, and are closed after their last response."""

    def __init__(self, connections: list[_Connection], interval_s: float) -> None:
        self._selector = selectors.DefaultSelector()
        self._interval_s = interval_s
        self._busy = len(connections)
        self._parked: list[tuple[float, int, _Connection]] = []
        """A heap of connections whose next request is due later, with the time."""
        began_s = time.perf_counter()
        for number, one in enumerate(connections):
            self._selector.register(one.socket, selectors.EVENT_READ, one)
            self._next(one, began_s + number * interval_s / len(connections))

    def until(self, deadline_s: float) -> None:
        """Raises: RequestFailed."""
        while self._busy:
            self._send_due()
            for key, events in self._selector.select(self._timeout_s()):
                one: _Connection = key.data
                if events & selectors.EVENT_WRITE:
                    self._send(one)
                if events & selectors.EVENT_READ and one.receive():
                    due_s = one.due_s + self._interval_s if self._interval_s else time.perf_counter()
                    if max(due_s, time.perf_counter()) < deadline_s:
                        self._next(one, due_s)
                    else:
                        self._selector.unregister(one.socket)
                        one.socket.close()
                        self._busy -= 1
        self._selector.close()

    def _next(self, one: _Connection, due_s: float) -> None:
        if self._interval_s and due_s > time.perf_counter():
            heapq.heappush(self._parked, (due_s, one.socket.fileno(), one))
            return
        one.restart(due_s)
        self._send(one)

    def _send(self, one: _Connection) -> None:
        one.send()
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        wanted = both if one.wants_to_send else selectors.EVENT_READ
        if self._selector.get_key(one.socket).events != wanted:
            self._selector.modify(one.socket, wanted, one)

    def _send_due(self) -> None:
        while self._parked and self._parked[0][0] <= time.perf_counter():
            due_s, _, one = heapq.heappop(self._parked)
            one.restart(due_s)
            self._send(one)

    def _timeout_s(self) -> float:
        return min(5.0, max(0.0, self._parked[0][0] - time.perf_counter())) if self._parked else 5.0


def request_of(method: str, path: str, port: int, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request; ``_`` in names of headers stands for ``-``. ``MARK`` in a header is another text in each request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines += [] if "Content_Type" in headers else ["Content-Type: application/json"]
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
