"""The two ways for a connection's file ranges: into the socket itself, or through the loop's transport.

A transport takes bytes that are in memory. A socket also takes a range of a file (``sendfile``). The pages then go from the page
cache to the network and are not copied through this process. A socket takes only as many bytes as it has room for, so a client
that does not read costs no buffer.

The descriptor belongs to the transport, which goes on reading from it and writes the answers that have no ranges. Both ways into
the socket keep their order because one is used only when the other has nothing left to send.

Tests: ``tests/handlers/test_sending.py``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from app.core.limits import KIB, MIB

if TYPE_CHECKING:
    from app.core.units import Buffer

FULL: Final = -1
"""There is no room for now: the outlet calls back when there is."""
PIECE_BYTES: Final = 1 * MIB + 64 * KIB
"""A fetched partition of the usual size and its header in one go."""
PIECE_BYTES_MIN: Final = 16 * KIB
KERNELS_CHOICE: Final = -1
"""In place of the size of a send buffer: the kernel's own choice."""
FEW_READERS: Final = 4
"""So many times the size of each of many has one reader; as many or more are many."""
EVENTS_MAX: Final = 16
"""So many sockets that take bytes again are served before the loop looks at other events."""
NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class Outlet(Protocol):
    """The way to one client. Takes bytes in order, and never waits."""

    takes_files: bool
    """Whether ``send_file`` works."""
    piece_bytes: int
    """As much as is worth being offered to ``send`` at a time."""

    def send(self, data: Buffer, more: bool) -> int:
        """Take bytes from the start of ``data``, which is the caller's again afterwards.

        ``more``: the next call follows at once, so these bytes need not leave by themselves.
        Returns: how many were taken, or ``FULL``. Raises: OSError if the client has gone.
        """
        ...

    def send_file(self, descriptor: int, position: int, length: int) -> int:
        """Take bytes of a file by reference: bytes that overwrite them before they have left may be sent in their place.

        Returns: how many were taken, 0 where the file ends early, or ``FULL``.
        Raises: ConnectionError, TimeoutError if the client has gone; OSError if the file cannot be read.
        """
        ...

    def close(self) -> None:
        """The connection ends: nothing is sent any more, and no callback is called."""
        ...


class TransportOutlet:
    """Through a transport that has no socket to offer. Its protocol's ``resume_writing`` says that there is room again."""

    __slots__ = ("_copies", "_transport", "piece_bytes", "takes_files")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._copies = not getattr(transport, "takes_views", False)
        """Whether the transport may keep the bytes that it gets."""
        self.takes_files = False
        self.piece_bytes = PIECE_BYTES

    def send(self, data: Buffer, more: bool) -> int:
        if self._transport.get_write_buffer_size():
            return FULL
        self._transport.write(bytes(data) if self._copies else data)
        return len(data)

    def send_file(self, descriptor: int, position: int, length: int) -> int:
        raise AssertionError("a transport takes no files")

    def close(self) -> None:
        pass


class SocketOutlet:
    """Into a socket that belongs to a transport: used while that has nothing unsent, and not after ``close``."""

    __slots__ = (
        "_buffer_bytes",
        "_buffers",
        "_descriptor",
        "_on_room",
        "_room",
        "_socket",
        "piece_bytes",
        "takes_files",
    )

    def __init__(self, descriptor: int, room: RoomWatch, on_room: Callable[[], None], buffers: SendBuffers) -> None:
        """``buffers`` say how large the socket's is to be, from the first file range on.

        A client of copies alone has no use for a small one: bytes without room are copied once more.
        """
        self._descriptor = descriptor
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._buffers = buffers
        self._buffer_bytes = KERNELS_CHOICE
        self.piece_bytes = PIECE_BYTES
        self._room = room
        self._on_room = on_room
        self.takes_files = True

    def send(self, data: Buffer, more: bool) -> int:
        try:
            return self._socket.send(data, socket.MSG_MORE if more else 0)
        except BlockingIOError:
            self._room.watch(self._descriptor, self._on_room)
            return FULL

    def send_file(self, descriptor: int, position: int, length: int) -> int:
        if self._buffer_bytes != self._buffers.each_bytes:
            self._resize()
        try:
            return os.sendfile(self._descriptor, descriptor, position, length)
        except BlockingIOError:
            self._room.watch(self._descriptor, self._on_room)
            return FULL

    def close(self) -> None:
        if self._buffer_bytes != KERNELS_CHOICE:
            self._buffers.leave()
            self._buffer_bytes = KERNELS_CHOICE
        self._room.forget(self._descriptor)
        self._socket.detach()

    def _resize(self) -> None:
        if self._buffer_bytes == KERNELS_CHOICE:
            self._buffers.join()
        self._buffer_bytes = self._buffers.each_bytes
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffer_bytes)
        self.piece_bytes = min(PIECE_BYTES, max(PIECE_BYTES_MIN, 2 * self._buffer_bytes))


class SendBuffers:
    """Decides how large the send buffers of sockets are that are sent file ranges.

    With some tens of readers small buffers are faster, because the bytes under way to all of them stay in the processor's cache.
    With few readers small buffers are slower: each is full before the loop comes back to it, so its reader has to wait.
    """

    def __init__(self, many_bytes: int) -> None:
        """``many_bytes``: size of each buffer if there are many; -1 leaves all sizes to the kernel."""
        self._many_bytes = many_bytes
        self._members = 0
        self.each_bytes = KERNELS_CHOICE
        """The size that each buffer should have now. A socket with another size changes when something is sent to it."""
        self._divide()

    def join(self) -> None:
        """One more."""
        self._members += 1
        self._divide()

    def leave(self) -> None:
        """One less."""
        self._members -= 1
        self._divide()

    def _divide(self) -> None:
        if self._many_bytes != KERNELS_CHOICE:
            self.each_bytes = self._many_bytes * max(1, FEW_READERS // max(1, self._members))


class RoomWatch:
    """Calls back when a socket that was full takes bytes again. One for all connections of a loop.

    The loop watches the sockets for reading and lets no other code register them. So this object has an epoll of its own, which the
    loop watches as one more descriptor. It is edge-triggered, so a socket is registered once, however often it is full.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, descriptor: int, on_room: Callable[[], None]) -> None:
        """Call ``on_room`` whenever the socket takes bytes after it was full, or has an error, until ``forget``."""
        if descriptor not in self._callbacks:
            self._callbacks[descriptor] = on_room
            self._epoll.register(descriptor, select.EPOLLOUT | select.EPOLLET)

    def forget(self, descriptor: int) -> None:
        """Before the descriptor is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._callbacks.clear()
        self._epoll.close()

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0, EVENTS_MAX):
            self._loop.call_soon(self._call, descriptor)

    def _call(self, descriptor: int) -> None:
        on_room = self._callbacks.get(descriptor)
        if on_room is not None:
            on_room()


def room_watch(loop: asyncio.AbstractEventLoop) -> RoomWatch | None:
    """The system calls of ``SocketOutlet``, where the system has them."""
    return RoomWatch(loop) if sys.platform == "linux" else None


def outlet_of(
    transport: asyncio.Transport, room: RoomWatch | None, on_room: Callable[[], None], buffers: SendBuffers
) -> Outlet:
    """The best way to the client of a transport; ``on_room`` is called when a way that was full takes bytes again."""
    plain = transport.get_extra_info("socket")
    if room is None or plain is None or transport.get_extra_info("sslcontext") is not None:
        return TransportOutlet(transport)
    return SocketOutlet(plain.fileno(), room, on_room, buffers)
