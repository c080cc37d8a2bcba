"""A worker asks the other workers of its port: it passes requests on, and collects metrics and readiness.

A worker that refuses the connection does not run. Its supervisor starts it again, with an empty state.

Tests: ``tests/http/processes_of_a_port/test_siblings.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from app.core.errors import ProtocolError, clause
from app.core.limits import MIB
from app.core.metrics import Sample
from app.http.asked_once import AskedOnce
from app.http.conventions import HEAD
from app.http.errors import ProcessEnded, RestError
from app.http.processes.frames import (
    AskReady,
    AskSamples,
    Frame,
    PassedRequest,
    Piece,
    Readiness,
    ResponseStart,
    SomeSamples,
    encode,
    pieces,
    read,
)
from app.http.processes.places import Places
from app.http.processes.worker import Worker, name_of

BUFFER_BYTES: Final = 1 * MIB
SAMPLES_TIMEOUT_S: Final = 5.0
READY_TIMEOUT_S: Final = 4.0
"""More than a worker needs to say that no broker answers it."""

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class SiblingAway(Exception):
    """The other worker does not run, or it ended before its response began. Its consumer instances are gone."""

    def __init__(self, *, untouched: bool) -> None:
        """``untouched``: nothing of the request's body was read."""
        super().__init__()
        self.untouched = untouched


class Siblings:
    """The other workers of the port of this one."""

    def __init__(self, worker: Worker) -> None:
        self.worker: Final = worker
        self._places = Places("The server passes too many requests on. Try again in a second.")
        # Samples are large, so they are not kept.
        self._samples = AskedOnce(self._ask_samples, keeps=False)
        self._refusal = AskedOnce(self._ask_refusal, keeps=True)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def pass_on(self, index: int, scope: Scope, receive: Receive, send: Send, *, console: bool = False) -> None:
        """Let another worker respond to a request. ``console``: it is for a page of the console.

        Raises: SiblingAway if it does not run, or ended before its response began: then nothing was sent. ProcessEnded if it
        ended later. RestError 503 if this worker passes too many requests on, 429 if too many of them are streams of records.
        """
        with self._places.place(console=console, path=scope["path"]):
            async with self._connected(index) as (reader, writer):
                writer.write(encode(_head_of(scope, console=console)))
                telling = asyncio.ensure_future(_tell(receive, writer))
                try:
                    await _respond(reader, telling, send)
                finally:
                    telling.cancel()
                    await asyncio.gather(telling, return_exceptions=True)

    @asynccontextmanager
    async def _connected(self, index: int) -> AsyncIterator[_Streams]:
        """Raises: SiblingAway, RestError 503."""
        try:
            streams = await asyncio.open_unix_connection(self.worker.path_of(index), limit=BUFFER_BYTES)
        except (ConnectionRefusedError, FileNotFoundError):
            raise SiblingAway(untouched=True) from None
        except OSError as error:
            raise RestError(
                503, f"Process {name_of(index)} of the server takes no request: {clause(error)}.", error_code=50302
            ) from None
        try:
            yield streams
        finally:
            streams[1].transport.abort()

    # --- metrics and readiness ----------------------------------------------------------------------------------------

    async def samples(self) -> list[Sample]:
        """The samples of all other workers, and for each whether it answered. Callers at the same time share one question."""
        return await self._samples.answer()

    async def _ask_samples(self) -> list[Sample]:
        found: list[Sample] = []
        text = "Whether the HTTP process responds to the one that was asked for metrics."
        for index, some in zip(
            self.worker.others, await asyncio.gather(*map(self._samples_of, self.worker.others)), strict=True
        ):
            label = (("process", name_of(index)),)
            found += some
            found.append(
                Sample("firn_http_process_up", "gauge", text, "firn_http_process_up", label, float(bool(some)))
            )
        return found

    async def _samples_of(self, index: int) -> list[Sample]:
        """Without any if it does not answer."""
        label = (("process", name_of(index)),)
        found: list[Sample] = []
        try:
            async with asyncio.timeout(SAMPLES_TIMEOUT_S), self._connected(index) as (reader, writer):
                writer.write(encode(AskSamples()))
                while isinstance(some := await read(reader), SomeSamples):
                    found += (one._replace(labels=(*label, *one.labels)) for one in some.samples)
                    if not some.more:
                        return found
        except (SiblingAway, RestError, TimeoutError):
            pass  # ``firn_http_process_up`` says it
        return []

    async def refusal(self) -> str:
        """Why a running worker is not ready, as a sentence; empty if all are. Workers that do not run take no requests.

        The answer may be a second old.
        """
        return await self._refusal.answer()

    async def _ask_refusal(self) -> str:
        refusals = await asyncio.gather(*map(self._refusal_of, self.worker.others))
        return next(filter(None, refusals), "")

    async def _refusal_of(self, index: int) -> str:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S), self._connected(index) as (reader, writer):
                writer.write(encode(AskReady()))
                answer = await read(reader)
        except RestError as error:
            return error.answer.message
        except TimeoutError:
            return f"Process {name_of(index)} of the server does not respond."
        except SiblingAway:
            return ""
        return answer.refusal if isinstance(answer, Readiness) else ""


# --- one request ------------------------------------------------------------------------------------------------------


def _head_of(scope: Scope, *, console: bool) -> PassedRequest:
    return PassedRequest(
        method="HEAD" if scope.get(HEAD) else scope["method"],
        path=scope["path"],
        raw_path=scope.get("raw_path") or b"",
        query=scope.get("query_string") or b"",
        http_version=scope["http_version"],
        scheme=scope.get("scheme", "http"),
        headers=[(bytes(name), bytes(value)) for name, value in scope["headers"]],
        client=scope.get("client"),
        server=scope.get("server"),
        console=console,
    )


async def _tell(receive: Receive, writer: asyncio.StreamWriter) -> bool:
    """Send the body on, until the client has left: then the connection ends. Returns: whether it has left."""
    try:
        while (message := await receive())["type"] != "http.disconnect":
            for piece in pieces(message.get("body", b""), more=message.get("more_body", False)):
                writer.write(encode(piece))
                await writer.drain()
    except ConnectionError:
        return False  # the other worker has closed its end: ``_respond`` sees it
    writer.transport.abort()
    return True


async def _respond(reader: asyncio.StreamReader, telling: asyncio.Future[bool], send: Send) -> None:
    """Send the response of the other worker to the client. Raises: SiblingAway, ProcessEnded."""
    started = False
    while True:
        frame: Frame | None = await read(reader)
        message: Message
        match frame:
            case ResponseStart(status, headers) if not started:
                started = True
                message = {"type": "http.response.start", "status": status, "headers": headers}
            case Piece(data, more) if started:
                message = {"type": "http.response.body", "body": data, "more_body": more}
            case None:
                if telling.done() and telling.result():
                    return  # the client has left
                raise ProcessEnded if started else SiblingAway(untouched=False)
            case _:
                raise ProtocolError("A message between HTTP processes came out of turn.")
        await send(message)
        if isinstance(frame, Piece) and not frame.more:
            return


def with_body(scope: Scope, body: bytes, receive: Receive) -> tuple[Scope, Receive]:
    """A request whose body was read, as it can be passed on. ``receive`` tells when its client leaves."""
    dropped = (b"content-length", b"content-encoding", b"transfer-encoding")
    kept = [(name, value) for name, value in scope["headers"] if name not in dropped]
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Any:
        return first.pop() if first else await receive()

    return {**scope, "headers": [*kept, (b"content-length", b"%d" % len(body))]}, receiving
