"""A web server that answers as a test says, on this machine."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

Answer = bytes | Callable[[asyncio.StreamWriter], Coroutine[None, None, None]]
"""What is sent, or who sends it: until the client goes."""


def http_answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def json_answer(document: Any) -> bytes:
    return http_answer(json.dumps(document).encode())


class WebServer:
    """``answer`` may be set at any time; ``asked`` has the request lines."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.partition(b"\r\n")[0].decode())
            if callable(self.answer):
                sending = asyncio.create_task(self.answer(writer))
                try:
                    await reader.read()
                finally:
                    sending.cancel()
                    with suppress(asyncio.CancelledError, ConnectionError):
                        await sending
            else:
                writer.write(self.answer)
                await writer.drain()
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def web_server(answer: Answer, certificate: Path | None = None, port: int = 0) -> AsyncIterator[WebServer]:
    """``certificate``: a PEM file with the key of https."""
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    made = WebServer(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", port, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()
