"""A response in pieces on its way to the client: bytes, and ranges of files, in order.

A range that is in the page cache goes from there into the socket by ``sendfile``. Parts that are short, or must not be sent by
reference, are copied into one pooled buffer with their neighbours, and leave in one write. The buffer is given back at once. Bytes
for which the socket has no room are read again later. The thread pool reads bytes that the page cache does not have. So a client
that does not read its responses costs its place in the queue, and no buffer.

At most ``SEND_BURST_BYTES`` are sent to one connection before the others have their turn.

Tests: ``tests/transport/test_core.py``, ``tests/handlers/test_sending.py``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from app.core.errors import FirnError
from app.core.limits import KIB, MIB
from app.transport.outlet import NO_SENDFILE, PIECE_BYTES, Outlet

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from app.core.seams import BlockingPool
    from app.transport.buffers import BufferPool

SEND_BYTES: Final = PIECE_BYTES
"""Given to a socket at a time."""
SEND_BURST_BYTES: Final = 4 * MIB
"""Sent to one connection before the loop turns to the others."""
CACHED_FOR_S: Final = 0.1
"""For so long a range that was found in the page cache counts as cached, while it is sent."""
SENDFILE_BYTES_MIN: Final = 32 * KIB
"""Below this, copying a range behind its header is cheaper than a system call of its own."""


class SendableRange(Protocol):
    """Bytes of a file that a response promises: ``length`` of them, from ``position`` on."""

    position: int
    length: int

    def reference(self, start: int, length: int) -> int:
        """The file's descriptor, if these bytes of the range are in the page cache and never change; -1 if not."""
        ...

    def read_nowait(self, start: int, into: memoryview) -> int:
        """Read the cached bytes at ``start`` of the range. Returns the bytes read, or -1 if only the disk has them."""
        ...

    def read(self, start: int, into: memoryview) -> int:
        """The same, but wait for the disk. For a pool thread. 0 means that the file ends early."""
        ...

    def release(self) -> None:
        """The range is not needed any more. Called exactly once."""
        ...


Part: TypeAlias = "bytes | SendableRange"
Parts: TypeAlias = "bytes | list[Part] | None"
"""A response frame: whole, in pieces around file ranges, or ``None`` for a request that gets no response."""


class SenderParts(Protocol):
    """The shared parts of a server's connections that sending needs."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def buffers(self) -> BufferPool: ...

    @property
    def pool(self) -> BlockingPool: ...

    def spawn(self, work: Coroutine[Any, Any, None], connection: Any, *inner: Closes) -> None: ...


class Closes(Protocol):
    """Resources that a task keeps until its end."""

    def close(self) -> None: ...


class Sender(Protocol):
    """The connection whose pieces are sent."""

    @property
    def server(self) -> SenderParts: ...

    @property
    def peer(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def send_on(self) -> None: ...

    def fail(self, line: str) -> None: ...

    def abort(self) -> None: ...


class Sending:
    """The pieces that one connection still has to send. Everything but reading from the disk is synchronous."""

    __slots__ = ("_connection", "_looked_at", "_outlet", "_start", "full", "parts", "reading")

    def __init__(self, connection: Sender, outlet: Outlet, parts: deque[Part]) -> None:
        """``parts`` are to be sent in order; the connection adds to them, this takes from them.

        ``outlet`` calls the connection's ``room_made`` when a way that was full takes bytes again.
        """
        self._connection = connection
        self._outlet = outlet
        self.parts = parts
        self._start = 0
        """Bytes of the first part that are sent already."""
        self._looked_at: tuple[SendableRange, int, int, float] | None = None
        """The last ``reference``: its range, the descriptor, up to where in the range it holds, and until when."""
        self.full = False
        """The client has to read before anything goes on."""
        self.reading = False
        """A pool thread reads the next bytes."""

    def close(self) -> None:
        """Nothing more is sent, and the ranges are given back."""
        for part in self.parts:
            if not isinstance(part, bytes):
                part.release()
        self.parts.clear()
        self._outlet.close()

    def push(self) -> None:
        """Send as much as possible now. The rest follows by itself, through the connection's ``room_made`` or ``send_on``."""
        if self.reading:
            return
        connection = self._connection
        try:
            self.send_burst()
        except (ConnectionError, TimeoutError):
            connection.abort()
        except OSError as error:
            connection.fail(
                f"closing the connection of {connection.peer}: cannot send what a response promised: {error.strerror}"
            )

    def send_burst(self) -> None:
        """Send one burst of the parts, at most ``SEND_BURST_BYTES``. Raises: OSError."""
        connection, parts = self._connection, self.parts
        sent = 0
        self.full = False
        while parts:
            if sent >= SEND_BURST_BYTES:
                connection.server.loop.call_soon(connection.send_on)
                return
            first = parts[0]
            taken = self._send_piece(first) if isinstance(first, bytes) else self._send_by_reference(first)
            if taken is None:
                taken = self._send_copy()
            if taken is None:
                assert not isinstance(first, bytes)
                self.reading = True
                connection.server.spawn(self._send_from_disk(first, self._start), connection)
                return
            if taken < 0:
                self.full = True
                return
            if taken == 0:
                self._ended_early()
                return
            self._took(taken)
            sent += taken

    def _send_piece(self, piece: bytes) -> int | None:
        """As ``Outlet.send``, together with the range behind it. None if that range must be copied; then so must this piece."""
        more = len(self.parts) > 1
        if more:
            following = self.parts[1]
            if isinstance(following, bytes) or self._reference(following, 0) < 0:
                return None
        return self._outlet.send(piece[self._start :], more)

    def _reference(self, part: SendableRange, start: int) -> int:
        """As ``SendableRange.reference``, for as much as is sent at a time. Also -1 if a copy is cheaper."""
        length = min(part.length - start, SEND_BYTES)
        if not self._outlet.takes_files:
            return -1
        looked_at = self._looked_at
        now_s = self._connection.server.loop.time()
        if looked_at is not None and looked_at[0] is part and start < looked_at[2] and now_s < looked_at[3]:
            return looked_at[1]
        if length < SENDFILE_BYTES_MIN:
            return -1
        descriptor = part.reference(start, length)
        # Missing bytes are looked for again when some of it was copied, since the disk has been asked for it.
        self._looked_at = (part, descriptor, start + (length if descriptor >= 0 else 1), now_s + CACHED_FOR_S)
        return descriptor

    def _send_by_reference(self, part: SendableRange) -> int | None:
        """As ``Outlet.send_file``; None if the next bytes of this range are to be copied."""
        start = self._start
        descriptor = self._reference(part, start)
        if descriptor < 0:
            return None
        outlet = self._outlet
        length = min(part.length - start, SEND_BYTES)
        try:
            return outlet.send_file(descriptor, part.position + start, length)
        except OSError as error:
            if error.errno not in NO_SENDFILE:
                raise
            outlet.takes_files = False
            return None

    def _send_copy(self) -> int | None:
        """As ``Outlet.send``, with the cached bytes. 0 if a file ends early; None if only the disk has the bytes."""
        buffers = self._connection.server.buffers
        buffer = buffers.take(SEND_BYTES)
        filled, piece_bytes = 0, self._outlet.piece_bytes
        more = missed = False
        start = self._start
        for part in self.parts:
            length = len(part) if isinstance(part, bytes) else part.length
            room = min(length - start, piece_bytes - filled)
            if not room:
                break
            if isinstance(part, bytes):
                got = room
                buffer[filled : filled + got] = part[start : start + got]
            else:
                if filled:
                    more = self._reference(part, 0) >= 0
                    if more:
                        break
                got = part.read_nowait(start, buffer[filled : filled + room])
            if got <= 0:
                missed = got < 0
                break
            filled += got
            if got < room:
                break
            start = 0
        taken = None if missed and not filled else self._outlet.send(buffer[:filled], more) if filled else 0
        buffers.give_back(buffer)
        return taken

    def _took(self, count: int) -> None:
        """The outlet has taken so many bytes from the first part on."""
        parts = self.parts
        start = self._start + count
        while parts:
            part = parts[0]
            length = len(part) if isinstance(part, bytes) else part.length
            if start < length:
                break
            start -= length
            parts.popleft()
            if not isinstance(part, bytes):
                part.release()
        self._start = start

    async def _send_from_disk(self, part: SendableRange, start: int) -> None:
        """Read bytes that are not cached on a pool thread, send as much as there is room for, and go on."""
        connection = self._connection
        buffers = connection.server.buffers
        buffer = buffers.take(SEND_BYTES)
        wanted = min(part.length - start, len(buffer))
        try:
            got = await connection.server.pool.run(lambda: part.read(start, buffer[:wanted]))
        except (OSError, FirnError) as error:
            connection.fail(
                f"closing the connection of {connection.peer}: cannot read what a response promised: {error}"
            )
            return
        finally:
            self.reading = False
        try:
            if connection.closed:
                return
            if got <= 0:
                self._ended_early()
                return
            self._took(max(0, self._outlet.send(buffer[:got], False)))
        except OSError:
            connection.abort()
            return
        finally:
            buffers.give_back(buffer)
        connection.send_on()

    def _ended_early(self) -> None:
        peer = self._connection.peer
        self._connection.fail(f"closing the connection of {peer}: a file became shorter while it was being sent")
