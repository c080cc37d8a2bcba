"""The listening socket. Connections are accepted up to the limit; further ones wait in the kernel's queue.

As in Apache Kafka, a client beyond ``max.connections`` is not refused. It is served when another leaves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from app.core.faults import Faults

BACKLOG: Final = 1024
"""So many connections wait in the kernel while the loop is busy, or while there are too many."""
RETRY_S: Final = 1.0
"""After accepting could not begin again for want of descriptors."""


class Listener:
    """Accepts on one bound socket, which it owns. Belongs to one loop."""

    def __init__(
        self, bound: socket.socket, make: Callable[[], asyncio.BaseProtocol], faults: Faults, name: str
    ) -> None:
        # Accepted sockets inherit it; Kafka sets it on its own, too. A load balancer between forgets an idle connection without
        # telling either side. Probes (net.ipv4.tcp_keepalive_time apart) keep it, and find out that a client's machine is gone.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.name = name
        self._faults = faults
        self._socket = bound
        self._make = make
        self._server: asyncio.Server | None = None
        self._opening: asyncio.Task[None] | None = None
        self._wanted = False
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Raises: OSError if the socket cannot be listened on."""
        self._wanted = True
        await self._open()

    async def _open(self) -> None:
        # A server closes its socket; a copy of ours can go, and the queue of connections stays.
        copy = self._socket.dup()
        try:
            self._server = await self._loop.create_server(self._make, sock=copy, backlog=BACKLOG)
        except BaseException:
            copy.close()
            raise
        if not self._wanted:
            self._shut()

    @property
    def paused(self) -> bool:
        """Whether it accepts no connection until ``resume``."""
        return not self._wanted

    def pause(self) -> None:
        """Accept no connection until ``resume``."""
        self._wanted = False
        self._shut()

    def resume(self) -> None:
        """Accept again. Nothing if that goes on."""
        self._wanted = True
        if self._server is None and self._opening is None:
            self._opening = self._loop.create_task(self._open())
            self._opening.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError):
            sentence = f"no connections are accepted for now, will try again: {error.strerror or error}"
            self._faults.met("accepting", "connections", sentence)
            self._loop.call_later(RETRY_S, self._retry)
        elif error is not None:
            self._loop.call_exception_handler({"message": "cannot accept connections again", "exception": error})

    def _retry(self) -> None:
        if self._wanted:
            self.resume()

    def close(self) -> None:
        """Stop for good."""
        self.pause()
        if self._opening is not None:
            self._opening.cancel()
        self._socket.close()

    def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
