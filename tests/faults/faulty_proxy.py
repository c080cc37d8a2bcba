"""An HTTP proxy in front of an S3 server that does to requests and answers what networks and servers do.

One connection to the server for each from the client; one request on it at a time, as in HTTP/1.1 without pipelining.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

BODY_BYTES_MAX = 1 << 28
SLOW_S = 1.0


class Fault(Enum):
    NONE = auto()
    DOWN = auto()
    """Every connection is reset."""
    SLOW = auto()
    """Every answer takes a second more."""
    SLOW_DOWN = auto()
    """503 with S3's code."""
    FORBIDDEN = auto()
    """403."""
    UNKNOWN_KEY = auto()
    """The access key is not known any more."""
    WRONG_SECRET = auto()
    """The secret key is another one now."""
    EXPIRED = auto()
    """The session token counts no longer."""
    TRUNCATED = auto()
    """Of an object's bytes only the first half comes, then the connection ends."""
    FLIPPED = auto()
    """One bit of an object's bytes is another."""
    LOST_ANSWERS = auto()
    """A write is applied; half of the time its answer is lost with the connection."""
    HELD_MANIFESTS = auto()
    """Once a segment's object is uploaded, what is written to manifests stays on the way until ``release`` is set."""


REFUSALS = {
    Fault.SLOW_DOWN: (b"503 Slow Down", b"SlowDown"),
    Fault.FORBIDDEN: (b"403 Forbidden", b"AccessDenied"),
    Fault.UNKNOWN_KEY: (b"403 Forbidden", b"InvalidAccessKeyId"),
    Fault.WRONG_SECRET: (b"403 Forbidden", b"SignatureDoesNotMatch"),
    Fault.EXPIRED: (b"400 Bad Request", b"ExpiredToken"),
}
"""Status and S3's code of the faults that are no more than an answer."""


class _Message(NamedTuple):
    start: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key.lower() == name), b"")

    def encode(self, body: bytes | None = None) -> bytes:
        head = [self.start, *(key + b": " + value for key, value in self.headers), b"", b""]
        return b"\r\n".join(head) + (self.body if body is None else body)


def _error(status: bytes, code: bytes, *, without_body: bool = False) -> bytes:
    body = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>injected</Message></Error>' % code
    head = b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + (b"" if without_body else body)


@dataclass
class FaultyProxy:
    """Listens on ``port`` while it is open; ``fault`` may be changed at any time."""

    target_port: int
    rng: random.Random
    port: int = 0
    fault: Fault = Fault.NONE

    def __post_init__(self) -> None:
        self.done: Counter[Fault] = Counter()
        """How often each fault was done to somebody."""
        self.requests = 0
        self.uploaded = False
        self.release = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            answers, upstream = await asyncio.open_connection("127.0.0.1", self.target_port)
            while await self._exchange(reader, writer, answers, upstream):
                continue
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            self._serving.discard(task)
            writer.transport.abort()
            if upstream is not None:
                upstream.transport.abort()

    async def close(self) -> None:
        for task in tuple(self._serving):
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer. False if the connection is to be cut."""
        request = await _read_message(reader, writer)
        self.requests += 1
        method, _, rest = request.start.partition(b" ")
        is_object = b"/data/" in rest
        fault = self.fault
        match fault:
            case Fault.DOWN:
                self.done[fault] += 1
                return False
            case Fault.SLOW:
                self.done[fault] += 1
                await asyncio.sleep(SLOW_S)
            case _ if fault in REFUSALS:
                self.done[fault] += 1
                writer.write(_error(*REFUSALS[fault], without_body=method == b"HEAD"))
                await writer.drain()
                return True
            case Fault.HELD_MANIFESTS if method == b"PUT" and is_object:
                self.uploaded = True
            case Fault.HELD_MANIFESTS if method == b"PUT" and b"/topics/" in rest and self.uploaded:
                self.done[fault] += 1
                await self.release.wait()
            case _:
                pass
        upstream.write(request.encode())
        answer = await _read_message(answers, None, is_head=method == b"HEAD")
        if fault in (Fault.TRUNCATED, Fault.FLIPPED) and method == b"GET" and is_object and len(answer.body) > 1:
            self.done[fault] += 1
            if fault is Fault.TRUNCATED:
                writer.write(answer.encode(answer.body[: len(answer.body) // 2]))
                await writer.drain()
                return False
            flipped = bytearray(answer.body)
            flipped[self.rng.randrange(len(flipped))] ^= 1 << self.rng.randrange(8)
            writer.write(answer.encode(bytes(flipped)))
        elif fault is Fault.LOST_ANSWERS and method in (b"PUT", b"POST", b"DELETE") and self.rng.random() < 0.5:
            self.done[fault] += 1
            return False
        else:
            writer.write(answer.encode())
        await writer.drain()
        return True


async def _read_message(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, *, is_head: bool = False
) -> _Message:
    """Raises: asyncio.IncompleteReadError, OSError."""
    head = await reader.readuntil(b"\r\n\r\n")
    start, *lines = head[:-4].split(b"\r\n")
    headers = []
    for line in lines:
        key, _, value = line.partition(b":")
        headers.append((key, value.strip()))
    message = _Message(start, headers, b"")
    if writer is not None and message.header(b"expect"):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        headers[:] = [(key, value) for key, value in headers if key.lower() != b"expect"]
    if start.startswith((b"HTTP/1.1 204", b"HTTP/1.1 304")) or is_head:
        return message
    if message.header(b"transfer-encoding") == b"chunked":
        body = bytearray()
        while True:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            body += (await reader.readexactly(size + 2))[:-2]
            if size == 0:
                break
        headers[:] = [(key, value) for key, value in headers if key.lower() != b"transfer-encoding"]
        headers.append((b"Content-Length", b"%d" % len(body)))
        return message._replace(body=bytes(body))
    length = int(message.header(b"content-length") or b"0")
    assert length <= BODY_BYTES_MAX
    return message._replace(body=await reader.readexactly(length))


@asynccontextmanager
async def faulty_proxy(target_port: int, rng: random.Random) -> AsyncIterator[FaultyProxy]:
    proxy = FaultyProxy(target_port, rng)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()
