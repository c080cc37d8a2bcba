"""A generator of HTTP/1.1 requests: connections that send one prepared request again and again, each after its response."""

from __future__ import annotations

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
    """From each request to the end of its response."""
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
        self.restart()
        self._begin()

    def _begin(self) -> None:
        self._head: bytes | None = None
        self._length = -1
        self._received = 0
        self._pieces: list[bytes] = []
        self._tail = b""

    def restart(self) -> None:
        self._sent = 0
        self._since_s = time.perf_counter()
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
            self._outcome.waits_s.append(time.perf_counter() - self._since_s)
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

    def run(self, seconds: float) -> Outcome:
        """Send for so long. Raises: RequestFailed."""
        outcome = Outcome()
        selector = selectors.DefaultSelector()
        all_open = [_Connection(self.port, self.request, self.pattern, outcome) for _ in range(self.connections)]
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        for opened in all_open:
            selector.register(opened.socket, both, opened)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        deadline_s = began_s + seconds
        busy = len(all_open)
        while busy:
            for key, events in selector.select(5):
                one: _Connection = key.data
                if events & selectors.EVENT_WRITE:
                    one.send()
                    if not one.wants_to_send:
                        selector.modify(one.socket, selectors.EVENT_READ, one)
                if events & selectors.EVENT_READ and one.receive():
                    if time.perf_counter() >= deadline_s:
                        selector.unregister(one.socket)
                        one.socket.close()
                        busy -= 1
                        continue
                    one.restart()
                    one.send()
                    if one.wants_to_send:
                        selector.modify(one.socket, both, one)
        selector.close()
        outcome.seconds = time.perf_counter() - began_s
        outcome.cpu_s = time.process_time() - began_cpu_s
        return outcome


def request_of(method: str, path: str, port: int, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request; ``_`` in names of headers stands for ``-``. ``MARK`` in a header is another text in each request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines += [] if "Content_Type" in headers else ["Content-Type: application/json"]
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
