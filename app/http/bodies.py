"""Reads request bodies within limits of size and time, and answers while a body still comes in.

Starlette's streaming response watches the channel of the request to learn that the client has left. The body arrives on the
same channel, so the two cannot be used together. ``Duplex`` is a response that has the channel to itself.
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
    """The client closed the connection in the middle of its body."""


class IdleSender(Exception):
    """The client sends too slowly: see ``Pace``."""


BODY_BYTES_PER_S_MIN: Final = 1024
"""A slower sender is treated as one that sends nothing and only holds its connection."""


class Pace:
    """How long a sender may take for the next unit: a record, or a small body.

    A unit may take ``idle_timeout_ms``, and a second more for each ``BODY_BYTES_PER_S_MIN`` bytes that have come. From one
    byte to the next never more than ``idle_timeout_ms`` may pass.
    """

    def __init__(self, idle_timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_timeout_ms / 1000
        self.restart()

    def restart(self) -> None:
        """A unit is complete: the time of the next one starts."""
        self._since_s = self._loop.time()
        self._bytes = 0

    def received(self, count: int) -> None:
        self._bytes += count

    def deadline_s(self) -> float:
        """The time, by the clock of the event loop, at which the next byte must have come."""
        whole_s = self._since_s + self._idle_s + self._bytes / BODY_BYTES_PER_S_MIN
        return min(self._loop.time() + self._idle_s, whole_s)


async def body_chunks(receive: Receive, pace: Pace) -> AsyncIterator[bytes]:
    """The body as it arrives; ``pace`` is told of its bytes. Raises: ClientLeft, IdleSender."""
    while True:
        try:
            async with asyncio.timeout_at(pace.deadline_s()):
                message = await receive()
        except TimeoutError:
            raise IdleSender from None
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body: bytes = message.get("body", b"")
        if body:
            pace.received(len(body))
            yield body
        if not message.get("more_body", False):
            return


async def small_body(request: Request, kind: type[T], *, bytes_max: int, idle_timeout_ms: int) -> T:
    """The whole body, decoded as JSON of ``kind``.

    Raises: RestError 400 (not JSON), 408 (too slow), 413 (too large), 422 (JSON of another shape); ClientLeft.
    """
    body = bytearray()
    try:
        async for chunk in body_chunks(request.receive, Pace(idle_timeout_ms)):
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
    """A response that is sent while the request still comes in. Its status is known once part of the request was read.

    ``talk`` gets the channel of the request and a ``DuplexAnswer``, which starts the answer and sends its pieces. Sending waits
    while the client is slow to read.
    """

    def __init__(self, talk: Callable[[Receive, DuplexAnswer], Awaitable[None]]) -> None:
        super().__init__(media_type=JSON_TYPE)
        self._talk = talk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._talk(receive, DuplexAnswer(send))


class DuplexAnswer:
    """The answer of a ``Duplex``."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def start(self, status: int, *, close: bool = False) -> None:
        """Send status and headers. ``close`` ends the connection after this answer."""
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
