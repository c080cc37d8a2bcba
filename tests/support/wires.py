"""The broker's end of a connection without a socket: bytes are handed to its protocol, and taken from it, by the test."""

from __future__ import annotations

import asyncio
import random
from typing import Any


class Wire:
    """A transport of the loop in all that a connection asks of one. The client's end is the test's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int, rng: random.Random, slow: bool) -> None:
        """``slow``: what the broker writes is taken only by ``drain``."""
        self.received = bytearray()
        """What the broker has sent, and the client has not looked at."""
        self.closed_by_broker = False
        self.gone = False
        """The protocol knows of the end."""
        self._loop = loop
        self._peer = (host, port)
        self._rng = rng
        self._slow = slow
        self._kept: list[bytes | memoryview] = []
        self._unread = b""
        self._reading = True
        self._protocol: Any = None

    def connect(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # --- the client's calls -----------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return not (self.closed_by_broker or self.gone)

    def deliver(self, data: bytes) -> None:
        """The client has sent bytes. They come in pieces as chance has it, while the broker reads."""
        self._unread += data
        self._feed()

    def _feed(self) -> None:
        whole = self._rng.random() < 0.6
        while self._unread and self._reading and self.open:
            data = self._unread
            view = self._protocol.get_buffer(-1)
            count = min(len(view), len(data), len(data) if whole else self._rng.choice((1, 5, 50, 3000)))
            assert count, "no room to read to"
            view[:count] = data[:count]
            self._unread = data[count:]
            self._protocol.buffer_updated(count)

    def drain(self) -> None:
        """The client's side has taken what was written."""
        if not self._kept:
            return
        kept, self._kept = self._kept, []
        for data in kept:
            self.received += data
        if not self.gone:
            self._protocol.resume_writing()

    def leave(self) -> None:
        """The client goes."""
        self.drain()
        self._end()

    # --- the transport ----------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._kept))

    def write(self, data: bytes | memoryview) -> None:
        if self._kept or self._slow:
            # By reference, as a transport may: a buffer that is used again too early shows.
            self._kept.append(data)
            if len(self._kept) == 1:
                self._protocol.pause_writing()
            return
        self.received += data

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._unread:
            self._loop.call_soon(self._feed)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return not self.open

    def close(self) -> None:
        if self.open:
            self.closed_by_broker = True
            self._loop.call_soon(self._end)

    def abort(self) -> None:
        if self.open:
            self.closed_by_broker = True
            self._kept.clear()
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        if not self.gone:
            for data in self._kept:
                self.received += data
            self._kept.clear()
            self.gone = True
            self._protocol.connection_lost(None)
