"""Connections between simulated clients and a broker's ``Connection`` objects: frames and latencies, no sockets.

Bytes arrive in order, in pieces as chance has it. A slow reader keeps what the broker wrote by reference, as a real transport
may, and looks at it only when it drains: a buffer that is used again too early shows.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextvars import Context
from typing import Any

from app.handlers.serving.server import KafkaServer
from app.handlers.serving.session import Session
from app.transport.connection import Connection
from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from tests.sim.loop import Process, SimLoop

LATENCY_S = (0.0002, 0.003)


class NumberedConnection(Connection):
    """A connection that sets keep in order of arrival."""

    __slots__ = ("_number",)

    def __init__(self, server: KafkaServer, number: int) -> None:
        self._number = number
        super().__init__(server, Session(server))

    def __hash__(self) -> int:
        return self._number


class _Transport:
    """The broker's end."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def get_extra_info(self, name: str) -> object:
        return ("client", self._wire.number) if name == "peername" else None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._wire.undrained))

    def write(self, data: bytes | memoryview) -> None:
        self._wire.written(data)

    def pause_reading(self) -> None:
        self._wire.reading = False

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    def close(self) -> None:
        self._wire.closed_by_server()

    def abort(self) -> None:
        self._wire.closed_by_server()


class Wire:
    """One connection, and the client at its other end: ``ask`` sends a request and gives the future of its answer."""

    _count = 0

    def __init__(
        self, loop: SimLoop, rng: random.Random, process: Process, server: KafkaServer, outside: Context, slow: float
    ) -> None:
        Wire._count += 1
        self.number = Wire._count
        self._loop, self._rng, self._outside, self._slow = loop, rng, outside, slow
        self.process = process
        self.open = True
        self.reading = True
        self.undrained: list[bytes | memoryview] = []
        self._server = server
        self._connection: NumberedConnection | None = None
        self._arrived: deque[bytes] = deque()
        self._last_up_s = self._last_down_s = 0.0
        self._received = bytearray()
        self._asked: deque[tuple[int, int, int, asyncio.Future[Any]]] = deque()
        self._correlation_id = 0
        self._up(self._accept)

    # --- the client's end -------------------------------------------------------------------------------------------

    def ask(self, key: int, version: int, message: Any) -> asyncio.Future[Any]:
        self._correlation_id += 1
        return self.send(key, version, request_frame(key, version, self._correlation_id, "sim", message))

    def next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def send(self, key: int, version: int, frame: bytes, *, answered: bool = True) -> asyncio.Future[Any]:
        """Send a frame that was made with the newest correlation id."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.open:
            future.set_exception(ConnectionResetError())
            return future
        if answered:
            self._asked.append((self._correlation_id, key, version, future))
        else:
            future.set_result(None)
        if len(frame) > 8 and self._rng.random() < 0.1:
            cut = self._rng.randrange(1, len(frame))
            self._up(self._deliver, frame[:cut])
            frame = frame[cut:]
        self._up(self._deliver, frame)
        return future

    def close(self) -> None:
        """The client leaves."""
        if self.open:
            self._up(self._lost)
            self._gone()

    def _gone(self) -> None:
        self.open = False
        while self._asked:
            future = self._asked.popleft()[3]
            if not future.done():
                future.set_exception(ConnectionResetError())
                future.exception()

    def _receive(self, data: bytes) -> None:
        if not self.open:
            return
        received = self._received
        received += data
        while len(received) >= 4:
            size = int.from_bytes(received[:4], "big")
            if len(received) < 4 + size:
                return
            frame = memoryview(bytes(received[4 : 4 + size]))
            del received[: 4 + size]
            correlation_id, key, version, future = self._asked.popleft()
            header = parse_response_header(frame, key, version)
            assert header.correlation_id == correlation_id, (header, correlation_id)
            answer = decode_response(key, version, frame[header.body_start :])
            if not future.done():
                future.set_result(answer)

    # --- the broker's end -------------------------------------------------------------------------------------------

    def _up(self, callback: Any, *args: Any) -> None:
        self._last_up_s = max(self._last_up_s + 1e-6, self._loop.time() + self._rng.uniform(*LATENCY_S))
        self.process.call_at(self._last_up_s, callback, *args)

    def _down(self, callback: Any, *args: Any) -> None:
        self._last_down_s = max(self._last_down_s + 1e-6, self._loop.time() + self._rng.uniform(*LATENCY_S))
        self._loop.call_at(self._last_down_s, callback, *args, context=self._outside)

    def _accept(self) -> None:
        self._connection = NumberedConnection(self._server, self.number)
        self._connection.connection_made(_Transport(self))  # type: ignore[arg-type]

    def _lost(self) -> None:
        assert self._connection is not None
        self._connection.connection_lost(None)

    def _deliver(self, data: bytes) -> None:
        self._arrived.append(data)
        self._feed()

    def _feed(self) -> None:
        connection = self._connection
        assert connection is not None
        while self._arrived and self.reading and not connection.closed:
            data = self._arrived.popleft()
            buffer = connection.get_buffer(-1)
            length = min(len(buffer), len(data))
            buffer[:length] = data[:length]
            if length < len(data):
                self._arrived.appendleft(data[length:])
            connection.buffer_updated(length)

    def resume_reading(self) -> None:
        self.reading = True
        if self._arrived:
            self._loop.call_soon(self._feed)

    def written(self, data: bytes | memoryview) -> None:
        if self.undrained or (self._slow and self._rng.random() < self._slow):
            if not self.undrained:
                self._loop.call_later(self._rng.uniform(0.001, 0.05), self._drain)
                assert self._connection is not None
                self.undrained.append(data)
                self._connection.pause_writing()
            else:
                self.undrained.append(data)
            return
        self._down(self._receive, bytes(data))

    def _drain(self) -> None:
        for data in self.undrained:
            self._down(self._receive, bytes(data))
        self.undrained.clear()
        assert self._connection is not None
        if not self._connection.closed:
            self._connection.resume_writing()

    def closed_by_server(self) -> None:
        for data in self.undrained:
            self._down(self._receive, bytes(data))
        self.undrained.clear()
        self._down(self._gone)

    def cut(self) -> None:
        """The broker's process died."""
        self.undrained.clear()
        self._down(self._gone)
