"""All connections of a broker, of every listener: accepting them, what they share, and their limits."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.limits import KIB
from app.transport.buffers import BufferPool
from app.transport.listener import Listener
from app.transport.metrics import ConnectionMetrics
from app.transport.outlet import RoomWatch, SendBuffers, room_watch

if TYPE_CHECKING:
    from app.faults import Faults
    from app.metrics import Registry
    from app.seams import BlockingPool
    from app.transport.connection import Connection, Gate
    from app.transport.core import ConnectionCore
    from app.transport.replays import ReplayTurns

SCRATCH_BYTES: Final = 256 * KIB
"""One read of the shared receive buffer: a few hundred small requests, and it stays in the processor's cache."""
IDLE_CHECKS_PER_PERIOD: Final = 10
"""How often, per ``idle_ms_max``, idle connections are looked for."""


def _not_attached() -> float:
    raise AssertionError("a server without a loop has no time")


class ServerLimits(NamedTuple):
    connections_max: int
    """Open at a time; further clients wait in the kernel's queue."""
    request_bytes_max: int
    frame_bytes_max: int
    """Memory of frames still arriving, over all connections; one frame is always admitted."""
    send_buffer_bytes: int
    """Of each socket, if there are many; -1 leaves it to the kernel."""
    idle_ms_max: int
    """A connection whose client does nothing for so long is closed; 0 or less: never."""


class Server(ABC):
    """Listens, and owns the connections and every task that they start. Belongs to one loop."""

    def __init__(
        self,
        limits: ServerLimits,
        *,
        gate: Gate,
        replays: ReplayTurns,
        faults: Faults,
        pool: BlockingPool,
        registry: Registry,
    ) -> None:
        self.gate = gate
        self.replays = replays
        self.faults = faults
        self.pool = pool
        self.connection_metrics = ConnectionMetrics(registry)
        self.buffers = BufferPool()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.request_bytes_max = limits.request_bytes_max
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.now_s: Callable[[], float] = _not_attached
        """Loop time."""
        self.room_watch: RoomWatch | None = None
        self.send_buffers = SendBuffers(limits.send_buffer_bytes)
        self._connections: set[Connection] = set()
        self._connections_max = limits.connections_max
        self._idle_ms_max = limits.idle_ms_max
        self._frame_bytes = 0
        self._frame_bytes_max = limits.frame_bytes_max
        self._waiting_for_memory: deque[ConnectionCore] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Listener] = []
        self._closed = False
        gate.on_open(self._go_on)
        registry.gauge("firn_connections", "Connections open.", lambda: [((), float(len(self._connections)))])
        registry.gauge(
            "firn_request_memory_bytes",
            "Memory of request frames still arriving, and of records that wait to be prepared.",
            lambda: [((), float(self._frame_bytes))],
        )

    @abstractmethod
    def make(self) -> Connection:
        """A connection for the next client."""

    # --- life ----------------------------------------------------------------------------------------------------

    async def listen(self, bound: socket.socket, make: Callable[[], asyncio.BaseProtocol] | None = None) -> int:
        """Accept connections on a socket that is bound, which is the server's from now on; may be called for several.

        Args:
            make: makes what serves a connection of this socket; None for ``self.make``.
        Returns the port. Raises: OSError if it cannot be listened on.
        """
        if not self._listeners:
            self.attach()
            self.room_watch = room_watch(self.loop)
            self._schedule_idle_check()
        listener = Listener(bound, make or self.make, self.faults)
        self._listeners.append(listener)
        await listener.start()
        return int(bound.getsockname()[1])

    def attach(self) -> None:
        """Serve without listening: connections are handed transports by the caller (tests, the simulation)."""
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time

    def stop_listening(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()

    async def close(self) -> None:
        """Stop listening and close every connection. Requests that wait are dropped; what they have appended stays."""
        self._closed = True
        self.stop_listening()
        self.close_connections()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self.room_watch is not None:
            self.room_watch.close()
            self.room_watch = None

    def close_connections(self) -> None:
        """Close every connection once its transport has written what it was given."""
        for connection in tuple(self._connections):
            connection.close()

    def spawn(
        self,
        work: Coroutine[Any, Any, None],
        connection: Connection | ConnectionCore,
        inner: Coroutine[Any, Any, Any] | None = None,
    ) -> None:
        """Run a request that waits. A bug in it ends its connection, and nothing else. ``inner`` is what ``work`` awaits: it is
        closed if ``work`` is cancelled before its first step."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, connection))
        if inner is not None:
            task.add_done_callback(lambda _: inner.close())

    def _ended(self, task: asyncio.Task[None], connection: Connection | ConnectionCore) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            connection.abort()
            self.loop.call_exception_handler(
                {"message": f"a request of {connection.peer} failed", "exception": error, "task": task}
            )

    # --- connections ---------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        if self._closed:
            # Accepted before we stopped listening and made after it: the logs are being closed by now.
            connection.abort()
            return
        self.connection_metrics.accepted.value += 1
        self._connections.add(connection)
        if self._listeners and len(self._connections) >= self._connections_max:
            self.connection_metrics.accepting_stopped.value += 1
            self._pause()

    def limit_connections(self, connections_max: int) -> None:
        """From now on so many at a time; those above it that are open stay."""
        self._connections_max = connections_max
        if len(self._connections) >= connections_max:
            self._pause()
        else:
            self._resume()

    def _pause(self) -> None:
        for listener in self._listeners:
            listener.pause()

    def _resume(self) -> None:
        for listener in self._listeners:
            listener.resume()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if len(self._connections) < self._connections_max:
            self._resume()
        if connection.core in self._waiting_for_memory:
            self._waiting_for_memory.remove(connection.core)

    def _schedule_idle_check(self) -> None:
        if self._idle_ms_max > 0:
            self.loop.call_later(self._idle_ms_max / 1000 / IDLE_CHECKS_PER_PERIOD, self._close_idle)

    def _close_idle(self) -> None:
        if not self._listeners:
            return
        oldest = self.loop.time() - self._idle_ms_max / 1000
        for connection in tuple(self._connections):
            if connection.active_s < oldest and connection.waits_for_peer:
                self.connection_metrics.idle.value += 1
                connection.abort()
        self._schedule_idle_check()

    def _go_on(self) -> None:
        for connection in tuple(self._connections):
            connection.doubt_ended()

    # --- memory of arriving frames -------------------------------------------------------------------------------

    def reserve(self, connection: ConnectionCore, size_bytes: int) -> bool:
        """Claim memory for a frame; if there is none, the connection is told later. One frame is always admitted."""
        if self._frame_bytes and self._frame_bytes + size_bytes > self._frame_bytes_max:
            self._waiting_for_memory.append(connection)
            return False
        self._frame_bytes += size_bytes
        return True

    def keep(self, size_bytes: int) -> None:
        """Count memory that a request keeps past its frame, until ``unreserve``. Nobody waits here; arriving frames do."""
        self._frame_bytes += size_bytes

    def unreserve(self, size_bytes: int) -> None:
        self._frame_bytes -= size_bytes
        assert self._frame_bytes >= 0
        if self._waiting_for_memory:
            self.loop.call_soon(self._admit_waiting)

    def _admit_waiting(self) -> None:
        if self._waiting_for_memory:
            self._waiting_for_memory.popleft().memory_freed()
