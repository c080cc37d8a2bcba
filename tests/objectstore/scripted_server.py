"""An HTTP server that answers what a test says, byte for byte, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from types import TracebackType

HANG = b"(no answer)"
CUT = b"(connection closed)"


@dataclass(slots=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes


@dataclass
class ScriptedServer:
    """Answers requests with ``answers`` in order, the last one for ever; to be used as an asynchronous context."""

    answers: list[bytes]
    requests: list[Request] = field(default_factory=list)
    busy: int = 0
    busy_max: int = 0
    gate: asyncio.Event | None = None
    """If set, answers wait for it."""
    tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> ScriptedServer:
        self._connections: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26, ssl=self.tls)
        scheme = "http" if self.tls is None else "https"
        self.endpoint = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while await self._answer(reader, writer):
                pass
            writer.close()
            await writer.wait_closed()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            # With TLS, close() waits for the client's goodbye, and a client that is slow to say it comes after the end of the
            # test and its loop. The transport was then found unclosed, during whichever test ran at that moment.
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(Request(method, target, headers, body))
        self.busy += 1
        self.busy_max = max(self.busy_max, self.busy)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if answer == HANG:
                await reader.read()  # until the client gives up
                return False
            if answer == CUT:
                return False
            writer.write(answer)
            await writer.drain()
            return b"Connection: close" not in answer
        finally:
            self.busy -= 1


def answer(status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> bytes:
    """An HTTP answer; ``length`` claims another Content-Length, and then the connection is closed after the body."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if length is not None:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


def refusal(status: int, code: str, message: str = "told by the server") -> bytes:
    """S3's error document."""
    return answer(
        status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    )
