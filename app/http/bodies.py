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
    """The other side is too slow: see ``Pace``."""


BODY_BYTES_PER_S_MIN: Final = 1024
"""A sender that is slower is taken for one that only wants to keep its connection."""


class Pace:
    """How long a sender may take for the next whole thing: a record, or a small body.

    It has ``idle_timeout_ms``, and a second more for each ``BODY_BYTES_PER_S_MIN`` that have come; and never more than
    ``idle_timeout_ms`` from one byte to the next.
    """

    def __init__(self, idle_timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_timeout_ms / 1000
        self.restart()

    def restart(self) -> None:
        """A whole thing has come."""
        self._since_s = self._loop.time()
        self._bytes = 0

    def received(self, count: int) -> None:
        self._bytes += count

    def deadline_s(self) -> float:
        """Until when the next byte must come, by the loop's time."""
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
