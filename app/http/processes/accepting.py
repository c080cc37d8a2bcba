"""A worker's share of the connections to a port that several processes listen on.

A worker takes one connection in a turn of its loop. So a burst of connections spreads over workers that are idle, and a busy worker
takes few. A loop that takes all that wait would give a whole burst to the first worker that wakes.

Tests: ``tests/http/processes_of_a_port/test_accepting.py``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from app.core.faults import Faults

PAUSE_S: Final = 1.0
"""After a failure to accept, which has its cause in this process or in the system: no files or no memory are left."""


class Accepting:
    """Accepts connections until it is closed. It has the methods of a server that uvicorn uses."""

    def __init__(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol], faults: Faults) -> None:
        """Begin. ``listening`` belongs to this object from now on."""
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._protocol = protocol
        self._faults = faults
        self._opening: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._go_on()

    def close(self) -> None:
        """Accept no more. Connections stay open."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()

    async def wait_closed(self) -> None:
        """Return when each accepted connection has its protocol."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker took it, or the client has left
        except OSError as error:
            self._faults.met("accepting", "HTTP connections", f"HTTP cannot accept connections: {error}")
            self._loop.remove_reader(self._listening.fileno())
            self._pause = self._loop.call_later(PAUSE_S, self._go_on)
            return
        accepted.setblocking(False)
        task: asyncio.Task[object] = self._loop.create_task(self._open(accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted)
        except OSError:
            accepted.close()  # the client left meanwhile
