"""Requests and answers between two processes over a Unix stream socket pair, any number under way at once.

A frame is a header and a payload::

    length   u32   bytes after this field
    call id  u64   chosen by the client; the answer repeats it
    kind     u8    REQUEST, ANSWER, ERROR or CANCEL
    payload        REQUEST: u8 length of the method's name, the name, the parameters
                   ANSWER: the result     ERROR: msgpack [class name, message, Kafka code or nil]     CANCEL: nothing

This module moves bytes: the two ends of a method agree on the meaning of parameters and results. An error of ``FirnError``'s
classes arrives as the class that was raised. Both processes are of one installation, so there are no versions.

The end of the stream ends everything at once. The server cancels its work and ``serve`` returns, so that a child never outlives
its parent. The client fails every call with StorageUnavailable. It can be given a new socket, so that a restarted child serves
again. **A call that ends with StorageUnavailable is undecided**: the server may have done it or not. Sent again, it may be done
twice.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from typing import Final, cast

import msgspec

from app.core.errors import ErrorCode, FirnError, LimitExceeded, ProtocolError, StorageUnavailable, clause, copy_of
from app.core.limits import KIB, MIB
from app.core.units import Buffer

Handler = Callable[[Buffer], Awaitable[Buffer]]
"""Gets the parameters: bytes, or a view of a large frame, which it owns."""

FRAME_BYTES_MAX: Final = 256 * MIB
"""Largest frame: a chunk of ``limits.CHUNK_BYTES_MAX`` with room to spare. Bulk data goes through files instead."""

CALLS_IN_FLIGHT_MAX: Final = 1024
"""Calls that a client may have under way. Further ones wait."""

REQUEST_BYTES_IN_FLIGHT_MAX: Final = 64 * MIB
"""Bytes of parameters that all calls under way may have together. A single call may be larger."""

SERVER_CALLS_MAX: Final = 2 * CALLS_IN_FLIGHT_MAX
"""Calls that a server works on before it stops reading. Above the client's limit, so that a CANCEL is always read."""

_HEADER: Final = Struct(">IQB")
_AFTER_LENGTH_BYTES: Final = _HEADER.size - 4
_RECEIVE_BYTES: Final = 256 * KIB
_WRITE_HIGH_BYTES: Final = 1 * MIB

_REQUEST: Final = 1
_ANSWER: Final = 2
_ERROR: Final = 3
_CANCEL: Final = 4


class _ErrorPayload(msgspec.Struct, array_like=True):
    name: str
    message: str
    code: int | None


def encode_error(error: FirnError) -> bytes:
    """The payload that lets the other end raise the same class."""
    code = getattr(error, "code", None)
    return msgspec.msgpack.encode(_ErrorPayload(type(error).__name__, str(error), None if code is None else int(code)))


def decode_error(payload: Buffer) -> FirnError:
    """The error that ``encode_error`` wrote into a payload. An unknown class becomes a StorageUnavailable that names it.

    Raises: ProtocolError.
    """
    try:
        told = msgspec.msgpack.decode(payload, type=_ErrorPayload)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"An error that cannot be read: {clause(error)}.") from error
    kind = _error_classes().get(told.name)
    if kind is None:
        return StorageUnavailable(f"{told.name}: {clause(told.message)}.")
    # Constructors differ; every error of the tree is its message and, for some, a code.
    raised = kind.__new__(kind, told.message)
    Exception.__init__(raised, told.message)
    if told.code is not None:
        raised.code = ErrorCode(told.code)  # type: ignore[attr-defined] # those that send one have one
    return raised


def _error_classes() -> dict[str, type[FirnError]]:
    found: dict[str, type[FirnError]] = {}
    ahead: list[type[FirnError]] = [FirnError]
    while ahead:
        kind = ahead.pop()
        found[kind.__name__] = kind
        ahead.extend(kind.__subclasses__())
    return found


class _FrameProtocol(asyncio.BufferedProtocol):
    """Cuts the stream into frames and writes frames with backpressure. One end of one connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._large: bytearray | None = None
        """A frame larger than the buffer, filled in place."""
        self._large_filled = 0
        self.paused = False
        self._writable: deque[asyncio.Future[None]] = deque()
        self.error: Exception | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- work of both ends --------------------------------------------------------------------------------------------

    def frame_received(self, call_id: int, kind: int, payload: Buffer) -> None:
        """``payload`` belongs to the handler: bytes, or a view of a large frame that was not copied."""
        raise NotImplementedError

    def stream_ended(self) -> None:
        raise NotImplementedError

    # --- writing ------------------------------------------------------------------------------------------------------

    def send(self, call_id: int, kind: int, head: bytes, body: Buffer = b"") -> None:
        """Write a frame whose payload is ``head`` and ``body``. The transport takes over ``body``: it must not change."""
        assert self._transport is not None
        length = _AFTER_LENGTH_BYTES + len(head) + len(body)
        start = _HEADER.pack(length, call_id, kind) + head
        if len(body) > _WRITE_HIGH_BYTES:
            self._transport.writelines((start, body))
        else:
            self._transport.write(b"".join((start, body)))

    async def writable(self) -> None:
        """Wait until the transport takes more. Returns at once when the connection is lost."""
        while self.paused and not self.lost.done():
            waiter = asyncio.get_running_loop().create_future()
            self._writable.append(waiter)
            await waiter

    def stop(self, error: Exception | None = None) -> None:
        """End the connection, without a wait for unsent bytes."""
        if self.error is None:
            self.error = error
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    # --- called by the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._wake_writers()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.error is None:
            self.error = exc
        if not self.lost.done():
            self.lost.set_result(None)
        self._wake_writers()
        self.stream_ended()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._large is not None:
                self._large_filled += nbytes
                if self._large_filled == len(self._large):
                    frame, self._large = memoryview(self._large), None
                    _, call_id, kind = _HEADER.unpack_from(frame)
                    self.frame_received(call_id, kind, frame[_HEADER.size :])
                return
            self._filled += nbytes
            self._cut()
        except ProtocolError as error:
            self.stop(error)

    def _cut(self) -> None:
        """Hand on every whole frame of the buffer and move the rest to its start."""
        start, filled = 0, self._filled
        while filled - start >= 4:
            end = start + 4 + int.from_bytes(self._view[start : start + 4], "big")
            size = end - start
            if not _HEADER.size <= size <= FRAME_BYTES_MAX:
                raise ProtocolError(f"A frame of {size} bytes.")
            if end > filled:
                if size > _RECEIVE_BYTES:
                    self._large = bytearray(size)
                    self._large_filled = filled - start
                    self._large[: filled - start] = self._view[start:filled]
                    start = filled
                break
            self._take(self._view, start, end)
            start = end
        rest = filled - start
        if start and rest:
            self._buffer[:rest] = self._buffer[start:filled]
        self._filled = rest

    def _take(self, view: memoryview, start: int, end: int) -> None:
        _, call_id, kind = _HEADER.unpack_from(view, start)
        self.frame_received(call_id, kind, bytes(view[start + _HEADER.size : end]))

    def _wake_writers(self) -> None:
        while self._writable:
            waiter = self._writable.popleft()
            if not waiter.done():
                waiter.set_result(None)


# --- the client -------------------------------------------------------------------------------------------------------


class _ClientConnection(_FrameProtocol):
    """The calls of one socket."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._next_id = 0
        self._admitted = 0
        self._admitted_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        """Calls that wait for a place, in order of arrival, with their bytes."""

    async def call(self, head: bytes, payload: Buffer) -> bytes:
        size_bytes = len(head) + len(payload)
        if self._waiting or not self._has_room(size_bytes):
            await self._wait_for_room(size_bytes)
        else:
            self._admit(size_bytes)
        try:
            if self.paused:
                await self.writable()
            if self.lost.done():
                raise self._gone()
            self._next_id += 1
            return await self._ask(self._next_id, head, payload)
        finally:
            self._admitted -= 1
            self._admitted_bytes -= size_bytes
            self._admit_waiting()

    async def _ask(self, call_id: int, head: bytes, payload: Buffer) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[call_id] = answer
        try:
            self.send(call_id, _REQUEST, head, payload)
            return await answer
        except asyncio.CancelledError:
            # The caller has gone; let the server stop too. The outcome stays undecided.
            if not answer.cancelled():
                answer.exception()
            elif not self.lost.done():
                self.send(call_id, _CANCEL, b"")
            raise
        finally:
            del self._pending[call_id]
            del answer  # An error holds this frame and the caller's, and the future holds the error.

    def frame_received(self, call_id: int, kind: int, payload: Buffer) -> None:
        if kind not in (_ANSWER, _ERROR):
            raise ProtocolError(f"A frame of kind {kind} for a client.")
        answer = self._pending.get(call_id)
        if answer is None or answer.done():
            return  # its caller has gone
        if kind == _ANSWER:
            answer.set_result(bytes(payload))
        else:
            answer.set_exception(decode_error(payload))

    def stream_ended(self) -> None:
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(self._gone())
        self._admit_waiting()

    def _gone(self) -> StorageUnavailable:
        return StorageUnavailable(f"The {self._name} has gone away; what was asked of it is undecided.")

    def _has_room(self, size_bytes: int) -> bool:
        return (
            self._admitted == 0
            or self.lost.done()  # no caller waits any more: each finds that out by itself
            or (
                self._admitted < CALLS_IN_FLIGHT_MAX
                and self._admitted_bytes + size_bytes <= REQUEST_BYTES_IN_FLIGHT_MAX
            )
        )

    def _admit(self, size_bytes: int) -> None:
        self._admitted += 1
        self._admitted_bytes += size_bytes

    async def _wait_for_room(self, size_bytes: int) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (waiter, size_bytes)
        self._waiting.append(place)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._waiting.remove(place)
            else:  # admitted in the moment of the cancellation
                self._admitted -= 1
                self._admitted_bytes -= size_bytes
            self._admit_waiting()
            raise

    def _admit_waiting(self) -> None:
        while self._waiting:
            waiter, size_bytes = self._waiting[0]
            if waiter.done():
                return  # cancelled, and about to leave the queue by itself
            if not self._has_room(size_bytes):
                return
            self._waiting.popleft()
            self._admit(size_bytes)
            waiter.set_result(None)


class RpcClient:
    """Calls methods of an RpcServer in another process. Belongs to one event loop.

    ``name`` is the name of the other process in messages to people.
    """

    def __init__(self, name: str = "store process") -> None:
        self._name = name
        self._connection: _ClientConnection | None = None
        self._methods: dict[str, bytes] = {}

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.lost.done()

    async def connect(self, sock: socket.socket) -> None:
        """Use ``sock``, which this object owns from here on. Ends an earlier connection and fails its calls."""
        await self.close()
        connection = _ClientConnection(self._name)
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)
        self._connection = connection

    async def call(
        self, method: str, payload: Buffer = b"", timeout_s: float | None = None, *, lead: bytes = b""
    ) -> bytes:
        """The result of the handler of ``method`` for ``lead`` and ``payload`` as one, which must not change meanwhile.

        A call that times out or is cancelled is cancelled on the other side as well.

        Raises: errors of the handler, of Firn's tree; StorageUnavailable (undecided: no answer in ``timeout_s``, or the
        other process is away); LimitExceeded (nothing sent).
        """
        connection = self._connection
        if connection is None:
            raise StorageUnavailable(f"The {self._name} is not running yet.")
        head = self._methods.get(method)
        if head is None:
            name = method.encode("ascii")
            assert len(name) < 256, method
            head = self._methods[method] = bytes((len(name),)) + name
        if lead:
            head += lead
        size_bytes = len(head) + len(payload)
        if size_bytes + _HEADER.size > FRAME_BYTES_MAX:
            raise LimitExceeded(f"{method}: {size_bytes} bytes of parameters; at most {FRAME_BYTES_MAX} are sent.")
        try:
            async with asyncio.timeout(timeout_s):
                return await connection.call(head, payload)
        except TimeoutError:
            raise StorageUnavailable(f"{method}: no answer from the {self._name} in {timeout_s} s.") from None

    async def close(self) -> None:
        """End the connection: every call under way fails with StorageUnavailable, and the server ends."""
        if self._connection is not None:
            self._connection.stop()
            await asyncio.shield(self._connection.lost)


# --- the server -------------------------------------------------------------------------------------------------------


class _ServerConnection(_FrameProtocol):
    def __init__(self, start: Callable[[int, Buffer], None], cancel: Callable[[int], None]) -> None:
        super().__init__()
        self._start = start
        self._cancel = cancel

    def frame_received(self, call_id: int, kind: int, payload: Buffer) -> None:
        if kind == _REQUEST:
            self._start(call_id, payload)
        elif kind == _CANCEL:
            self._cancel(call_id)
        else:
            raise ProtocolError(f"A frame of kind {kind} for a server.")

    def stream_ended(self) -> None:
        """``serve`` waits for ``lost``."""


class RpcServer:
    """Answers calls with ``handlers``: method name to a coroutine function from parameters to result.

    A handler's FirnError or OSError travels to the caller. Any other exception is a bug: it ends ``serve``, hence the
    process, and every call with it.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = {name.encode("ascii"): handler for name, handler in handlers.items()}
        self.closed = asyncio.Event()

    async def serve(self, sock: socket.socket) -> None:
        """Serve requests over ``sock``, which this object owns, until the stream ends; then cancel requests under way.

        Raises: ProtocolError (the peer's bytes), or the error of a buggy handler.
        """
        sock.setblocking(False)
        tasks: dict[int, asyncio.Task[None]] = {}
        connection: _ServerConnection

        def start(call_id: int, payload: Buffer) -> None:
            task = group.create_task(self._answer(connection, call_id, payload))
            tasks[call_id] = task
            if len(tasks) == SERVER_CALLS_MAX:
                connection.pause_reading()
            task.add_done_callback(lambda _: finish(call_id))

        def finish(call_id: int) -> None:
            if len(tasks) == SERVER_CALLS_MAX and not connection.lost.done():
                connection.resume_reading()
            del tasks[call_id]

        def cancel(call_id: int) -> None:
            task = tasks.get(call_id)
            if task is not None:
                task.cancel()

        connection = _ServerConnection(start, cancel)
        try:
            async with asyncio.TaskGroup() as group:
                await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)
                await asyncio.shield(connection.lost)
                for task in list(tasks.values()):
                    task.cancel()
        finally:
            connection.stop()
            self.closed.set()
        if isinstance(connection.error, ProtocolError):
            raise copy_of(connection.error)

    async def _answer(self, connection: _ServerConnection, call_id: int, payload: Buffer) -> None:
        method = bytes(payload[1 : 1 + payload[0]])
        handler = self._handlers.get(method)
        kind, answer = _ERROR, b""
        body: Buffer = b""
        try:
            if handler is None:
                raise StorageUnavailable(
                    f"There is no method {method.decode('ascii', 'replace')}; restart both processes."
                )
            body = await handler(payload[1 + payload[0] :])
            if len(body) + _HEADER.size > FRAME_BYTES_MAX:
                raise LimitExceeded(f"An answer of {len(body)} bytes; at most {FRAME_BYTES_MAX} are sent.")
            kind = _ANSWER
        except FirnError as error:
            body, answer = b"", encode_error(error)
        except OSError as error:
            body, answer = b"", encode_error(StorageUnavailable(str(error)))
        await connection.writable()
        if not connection.lost.done():
            connection.send(call_id, kind, answer, body)
