"""Reading request bodies within bounds, and answering while a body still comes in.

Starlette's streaming response listens for the client's leaving on the same channel on which the body arrives, so the two
cannot be used together; ``Duplex`` is a response that owns the channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.http.errors import RestError

T = TypeVar("T")

JSON_TYPE: Final = "application/json"


class ClientLeft(Exception):
    """The other side closed the connection in the middle of its body."""


class IdleSender(Exception):
    """The other side has not sent anything for too long."""


async def body_chunks(receive: Receive, *, idle_timeout_ms: int) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises: ClientLeft, IdleSender."""
    while True:
        try:
            async with asyncio.timeout(idle_timeout_ms / 1000):
                message = await receive()
        except TimeoutError:
            raise IdleSender from None
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body: bytes = message.get("body", b"")
        if body:
            yield body
        if not message.get("more_body", False):
            return


async def small_body(request: Request, kind: type[T], *, bytes_max: int, idle_timeout_ms: int) -> T:
    """The whole body, decoded as JSON of ``kind``.

    Raises: RestError 400 (not JSON), 408 (too slow), 413 (too large), 422 (JSON of another shape); ClientLeft.
    """
    body = bytearray()
    try:
        async for chunk in body_chunks(request.receive, idle_timeout_ms=idle_timeout_ms):
            body += chunk
            if len(body) > bytes_max:
                raise RestError(413, f"The body is larger than {bytes_max} bytes.")
    except IdleSender:
        raise RestError(408, "The body did not arrive in time.") from None
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RestError(422, f"The body is not of the right form: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RestError(400, f"The body is not valid JSON: {error}.") from None


class Duplex(Response):
    """A response whose status is known only once some of the request was read, and that goes on while more comes in.

    ``talk`` is given the request's channel and two functions: one starts the answer (status, further headers), one sends a
    piece of it and waits while the client is slow to read.
    """

    def __init__(self, talk: Callable[[Receive, DuplexAnswer], Awaitable[None]]) -> None:
        super().__init__(media_type=JSON_TYPE)
        self._talk = talk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._talk(receive, DuplexAnswer(send))


class DuplexAnswer:
    """The answering half."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def start(self, status: int, *, close: bool = False) -> None:
        """Send status and headers. ``close`` says that the connection ends after this answer."""
        assert not self.started
        self.started = True
        headers = [(b"content-type", JSON_TYPE.encode())]
        if close:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, piece: bytes) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def json_response(content: Any, status: int = 200) -> Response:
    """An answer of one JSON value."""
    return Response(msgspec.json.encode(content), status, media_type=JSON_TYPE)
