"""A worker answers the other workers of its port, by the Unix socket that they find it at.

Only the user of the process can enter the socket's directory. So the client's address, as the other worker says it, is believed.

Tests: ``tests/http/processes_of_a_port/test_siblings.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.types import ASGIApp, Message

from app.core.errors import ProtocolError
from app.core.metrics import Registry
from app.http.errors import RestError
from app.http.processes.frames import (
    SAMPLES_A_FRAME,
    AskReady,
    AskSamples,
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
from app.http.processes.siblings import BUFFER_BYTES
from app.http.processes.worker import PASSED, Worker

BACKLOG: Final = 1024
_LOG: Final = logging.getLogger("uvicorn.error")
"""Where uvicorn logs the bugs that requests meet."""


class Answering:
    """Answers until it is closed. It has the methods of a server that uvicorn uses."""

    def __init__(self, app: ASGIApp, registry: Registry, refusal: Callable[[], Awaitable[str]]) -> None:
        """``refusal``: why this process reaches no broker, as a sentence; empty if it does."""
        self._app = app
        self._registry = registry
        self._refusal = refusal
        self._server: asyncio.Server | None = None
        self._places = Places("Other processes pass too many requests on to this one. Try again in a second.")
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, worker: Worker) -> None:
        """Raises: OSError."""
        path = worker.path_of(worker.index)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a process that was here before
        self._server = await asyncio.start_unix_server(self._connected, path, limit=BUFFER_BYTES, backlog=BACKLOG)

    def close(self) -> None:
        """Answer no more questions. Those under way are answered."""
        if self._server is not None:
            self._server.close()

    async def wait_closed(self) -> None:
        """Return when each question under way has its answer."""
        while self._serving:
            await asyncio.wait(self._serving)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._answer(reader, writer)
            await writer.drain()
        except ConnectionError:
            pass  # the other worker has left, or its client
        except ProtocolError as error:
            _LOG.error("Exception in an answer to another HTTP process", exc_info=error)
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match await read(reader):
            case PassedRequest() as request:
                try:
                    with self._places.place(console=request.console, path=request.path):
                        await _Passed(request, reader, writer).serve(self._app)
                except RestError as error:
                    _refuse(writer, error)
            case AskSamples():
                samples = self._registry.samples()
                for start in range(0, len(samples), SAMPLES_A_FRAME):
                    end = start + SAMPLES_A_FRAME
                    writer.write(encode(SomeSamples(samples[start:end], end < len(samples))))
                    await writer.drain()
            case AskReady():
                writer.write(encode(Readiness(await self._refusal())))


def _refuse(writer: asyncio.StreamWriter, error: RestError) -> None:
    answer = error.answer
    headers = {**answer.headers(), "content-type": "application/json", "content-length": str(len(answer.body()))}
    writer.write(encode(ResponseStart(answer.status, [(k.encode(), v.encode()) for k, v in headers.items()])))
    writer.write(encode(Piece(answer.body(), more=False)))


class _Passed:
    """One request that was passed on."""

    def __init__(self, request: PassedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._request = request
        self._reader = reader
        self._writer = writer
        self._started = False

    async def serve(self, app: ASGIApp) -> None:
        request = self._request
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version,
            "method": request.method,
            "path": request.path,
            "raw_path": request.raw_path,
            "query_string": request.query,
            "headers": request.headers,
            "scheme": request.scheme,
            "client": request.client,
            "server": request.server,
            "root_path": "",
            "state": {},
            PASSED: True,
        }
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - logged as a bug
            # As uvicorn does with an error of the application: it is logged, and the client gets a response if none has begun.
            _LOG.error("Exception in ASGI application\n", exc_info=error)
            if not self._started:
                headers = [(b"content-type", b"text/plain; charset=utf-8")]
                await self._send({"type": "http.response.start", "status": 500, "headers": headers})
                await self._send({"type": "http.response.body", "body": b"Internal Server Error"})

    async def _receive(self) -> Message:
        frame = await read(self._reader)
        if frame is None:
            return {"type": "http.disconnect"}
        if not isinstance(frame, Piece):
            raise ProtocolError("A message between HTTP processes came out of turn.")
        return {"type": "http.request", "body": frame.data, "more_body": frame.more}

    async def _send(self, message: Any) -> None:
        if self._writer.transport.is_closing():
            return  # as with a client that has left
        if message["type"] == "http.response.start":
            self._started = True
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            self._writer.write(encode(ResponseStart(message["status"], headers)))
            return
        for piece in pieces(message.get("body", b""), more=message.get("more_body", False)):
            self._writer.write(encode(piece))
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
