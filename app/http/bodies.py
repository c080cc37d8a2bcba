"""Reads request bodies within limits of size and time, undoes their Content-Encoding, and answers while a body still comes in.

Starlette's streaming response watches the channel of the request to learn that the client has left. The body arrives on the
same channel, so the two cannot be used together. ``Duplex`` is a response that has the channel to itself.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.core.errors import ProtocolError, clause
from app.core.turns import Portion, Steps, run
from app.http.body_budget import bytes_of_body, take_body
from app.http.content_encoding import decoder_for
from app.http.errors import NO_STORE, RETRY_AFTER_S, RETRY_LATER, RestError
from app.http.read_budget import PageBytes

T = TypeVar("T")

JSON_TYPE: Final = "application/json"
HELD_BYTES_MAX: Final = 1024 * 1024
"""Of an answer to HTTP/1.0, which is held until it is whole."""


class ClientLeft(Exception):
    """The client closed the connection in the middle of its body."""


class IdleSender(Exception):
    """The client sends too slowly: see ``Pace``."""


PIECE_BYTES_MAX: Final = 16 * 1024
"""So much of a body is handed out at once: a splitter of JSON may need 0.5 µs a byte."""
BODY_BYTES_PER_S_MIN: Final = 1024
"""A slower sender is treated as one that sends nothing and only holds its connection."""
CONTAINERS_MAX: Final = 32_768
"""Arrays and objects in a small body, which is decoded at once. A million bytes may have 300,000, and 0.3 s go by with them."""
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[{'))
COUNTED_AT_ONCE: Final = 32 * 1024
"""Quotes and brackets: about 2 ms at most."""


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


async def body_chunks(receive: Receive, headers: Headers, pace: Pace) -> AsyncIterator[bytes]:
    """The body as it arrives, without its Content-Encoding, in pieces of at most ``PIECE_BYTES_MAX``; ``pace`` is told of the bytes
    that came. Work on the pieces is done in portions.

    Raises: ClientLeft, IdleSender, RestError 415 for an encoding that is not served, ProtocolError for a body that is not in it.
    """
    decoder = decoder_for(headers.getlist("content-encoding"))
    if decoder is None:
        raise RestError(415, "The Content-Encoding is not served. Send the body in gzip, or as it is.")
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
            portion = Portion()
            for piece in decoder.feed(body):
                for start in range(0, len(piece), PIECE_BYTES_MAX):
                    yield piece[start : start + PIECE_BYTES_MAX]
                    await portion.rest_if_spent()
                if not piece:
                    await portion.rest_if_spent()
        if not message.get("more_body", False):
            decoder.end()
            return


async def small_body(
    request: Request, kind: type[T], *, bytes_max: int, idle_timeout_ms: int, held: PageBytes | None = None
) -> T:
    """The whole body, decoded as JSON of ``kind``. ``held``: as of ``whole_body``.

    Raises: RestError 400 (not JSON), 408 (too slow), 413 (too large), 415 (encoding), 422 (JSON of another shape, or of more than
    ``CONTAINERS_MAX`` arrays and objects), 429 (too many bytes in all bodies); ClientLeft.
    """
    body = await whole_body(request, bytes_max=bytes_max, idle_timeout_ms=idle_timeout_ms, held=held)
    if body.count(b"[") + body.count(b"{") > CONTAINERS_MAX and await run(containers_steps(body)) > CONTAINERS_MAX:
        raise RestError(422, f"The body has more than {CONTAINERS_MAX} arrays and objects. Send a smaller one.")
    return decoded(body, kind)


def containers_steps(body: bytearray) -> Steps[int]:
    """Count the arrays and objects that begin in JSON text. Brackets in strings do not count. The count ends early once it is more
    than ``CONTAINERS_MAX``. Text that is not JSON has at least the count that a decoder makes before it finds the fault."""
    structure = bytes(body).replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_STRUCTURE)
    found, in_string = 0, False
    for start in range(0, len(structure), COUNTED_AT_ONCE):
        yield
        parts = structure[start : start + COUNTED_AT_ONCE].split(b'"')
        outside = b"".join(parts[in_string::2])
        found += outside.count(b"[") + outside.count(b"{")
        if found > CONTAINERS_MAX:
            break
        in_string ^= len(parts) % 2 == 0
    return found


async def whole_body(
    request: Request, *, bytes_max: int, idle_timeout_ms: int, held: PageBytes | None = None
) -> bytearray:
    """The whole body. ``held``: has its bytes afterwards; without it they are given back. Raises: RestError 400, 408, 413, 415,
    429; ClientLeft."""
    if held is None:
        with bytes_of_body(request) as own:
            return await whole_body(request, bytes_max=bytes_max, idle_timeout_ms=idle_timeout_ms, held=own)
    body = bytearray()
    try:
        async for chunk in body_chunks(request.receive, request.headers, Pace(idle_timeout_ms)):
            body += chunk
            if len(body) > bytes_max:
                raise RestError(413, f"The body is larger than {bytes_max} bytes.")
            take_body(held, len(chunk))
    except IdleSender:
        raise RestError(408, "The body did not arrive in time.") from None
    except ProtocolError as error:
        raise RestError(400, str(error)) from None
    return body


def decoded(body: bytearray, kind: type[T]) -> T:
    """A body as JSON of ``kind``. Numbers and booleans may be texts, as in Confluent's products: scripts send them so.

    Raises: RestError 400 (not JSON), 422 (JSON of another shape).
    """
    try:
        return msgspec.json.decode(body.removeprefix(codecs.BOM_UTF8), type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise RestError(422, f"The body is not of the right form: {clause(error)}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RestError(400, f"The body is not valid JSON: {clause(error)}.") from None


class Duplex(Response):
    """A response that is sent while the request still comes in. Its status is known once part of the request was read.

    ``talk`` gets the channel of the request and a ``DuplexAnswer``, which starts the answer and sends its pieces. Sending waits
    while the client is slow to read.
    """

    def __init__(
        self, talk: Callable[[Receive, DuplexAnswer], Awaitable[None]], received: Message | None = None
    ) -> None:
        """``received``: a message that was taken from the channel before."""
        super().__init__(media_type=JSON_TYPE)
        self._talk = talk
        self._received = received

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def again() -> Message:
            message, self._received = self._received, None
            return await receive() if message is None else message

        answer = DuplexAnswer(send, whole=scope["http_version"] == "1.0")
        await self._talk(receive if self._received is None else again, answer)


class DuplexAnswer:
    """The answer of a ``Duplex``. A client of HTTP/1.0 cannot read chunks (RFC 9112, 6.1): it gets the ``whole`` answer at once."""

    def __init__(self, send: Send, *, whole: bool = False) -> None:
        self._send = send
        self._held: list[bytes] | None = [] if whole else None
        self._held_bytes = 0
        self._start: dict[str, Any] = {}
        self.started = False

    @property
    def is_full(self) -> bool:
        """Whether the route should send no more: the bytes held for a client of HTTP/1.0 have reached ``HELD_BYTES_MAX``."""
        return self._held_bytes >= HELD_BYTES_MAX

    async def start(self, status: int, *, close: bool = False) -> None:
        """Send status and headers. ``close`` ends the connection after this answer."""
        assert not self.started
        self.started = True
        headers = [(b"content-type", JSON_TYPE.encode())]
        if status in RETRY_LATER:
            headers.append((b"retry-after", RETRY_AFTER_S.encode()))
        if close:
            headers.append((b"connection", b"close"))
        self._start = {"type": "http.response.start", "status": status, "headers": headers}
        if self._held is None:
            await self._send(self._start)

    async def write(self, piece: bytes) -> None:
        if self._held is None:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        else:
            self._held.append(piece)
            self._held_bytes += len(piece)

    async def finish(self) -> None:
        if self._held is not None:
            self._start["headers"].append((b"content-length", b"%d" % self._held_bytes))
            await self._send(self._start)
        await self._send({"type": "http.response.body", "body": b"".join(self._held or ()), "more_body": False})


class WholeAnswer(Response):
    """A response that is known as a whole: bytes of JSON. It costs less than Starlette's."""

    def __init__(self, status: int, content: bytes, media_type: bytes = JSON_TYPE.encode()) -> None:
        self.status_code = status
        self.body = content
        self.background = None
        self.raw_headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(content))]
        if status in RETRY_LATER:
            self.raw_headers.append((b"retry-after", RETRY_AFTER_S.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


Write = Callable[[bytes], Awaitable[None]]
"""Sends a piece of a response, and waits while the client is slow to read."""


class Streamed(Response):
    """A response that is made while it is sent, and ends early if the client leaves."""

    def __init__(
        self,
        talk: Callable[[Write], Awaitable[None]],
        held: AsyncExitStack,
        *,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        """``talk`` writes the body. ``held`` holds its resources, and is closed when the response has ended in any way."""
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._talk = talk
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await self._send(receive, send)

    async def _send(self, receive: Receive, send: Send) -> None:
        async def write(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        async def left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        talking, leaving = asyncio.ensure_future(self._talk(write)), asyncio.ensure_future(left())
        try:
            await asyncio.wait((talking, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not talking.done():
                talking.cancel()
            await asyncio.gather(talking, leaving, return_exceptions=True)
        if not talking.cancelled():
            talking.result()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def json_response(content: Any, status: int = 200) -> Response:
    """An answer of one JSON value."""
    return Response(msgspec.json.encode(content), status, headers=NO_STORE, media_type=JSON_TYPE)
