"""All connections of one broker: accepting them, what they share, and their limits."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from app.handlers.api import Api
from app.handlers.buffers import BufferPool
from app.handlers.connection import PRODUCE, Connection
from app.handlers.context import Context
from app.handlers.listener import Listener
from app.handlers.metrics import ApiMetrics
from app.handlers.outlet import RoomWatch, SendBuffers, room_watch
from app.handlers.preparations import Preparations
from app.handlers.produce_shape import ProduceShapes
from app.limits import KIB

SCRATCH_BYTES: Final = 256 * KIB
"""One read of the shared receive buffer: a few hundred small requests, and it stays in the processor's cache."""
IDLE_CHECKS_PER_PERIOD: Final = 10
"""How often, per ``connections.max.idle.ms``, idle connections are looked for."""


class KafkaServer:
    """Listens, and owns the connections and every task that they start. Belongs to one loop."""

    def __init__(
        self,
        context: Context,
        apis: Mapping[int, Api],
        *,
        connections_max: int,
    ) -> None:
        self.context = context
        self.apis = apis
        self.metrics: ApiMetrics = context.metrics
        self.produce_meter = context.metrics.meter(PRODUCE)
        self.produce_shapes = ProduceShapes()
        self.buffers = BufferPool()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.request_bytes_max = context.config.socket_request_max_bytes
        self.log_line = context.log_line
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.room_watch: RoomWatch | None = None
        self.send_buffers = SendBuffers(context.config.socket_send_buffer_bytes)
        self.preparations = Preparations(
            context.pool,
            bytes_max=context.config.firn_preparation_bytes_max,
            batch_bytes_max=context.config.firn_decompressed_batch_bytes_max,
        )
        self._connections: set[Connection] = set()
        self._connections_max = connections_max
        self._frame_bytes = 0
        self._frame_bytes_max = context.config.queued_max_request_bytes
        self._waiting_for_memory: deque[Connection] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._closed = False
        context.gate.on_open(self._go_on)
        context.registry.gauge("firn_connections", "Connections open.", lambda: [((), float(len(self._connections)))])
        context.registry.gauge(
            "firn_request_memory_bytes",
            "Memory of request frames that are still arriving, and of records that wait for their preparation.",
            lambda: [((), float(self._frame_bytes))],
        )
        context.registry.gauge(
            "firn_preparation_memory_bytes",
            "Memory claimed for produced batches that are being decompressed, checked or recompressed.",
            lambda: [((), float(self.preparations.claimed_bytes))],
        )

    # --- life ----------------------------------------------------------------------------------------------------

    async def listen(self, bound: socket.socket) -> int:
        """Accept connections on a socket that is bound, which is the server's from now on. Returns the port.

        Raises: OSError if it cannot be listened on.
        """
        self.attach()
        self.room_watch = room_watch(self.loop)
        self._listener = Listener(bound, lambda: Connection(self), self.context.faults)
        await self._listener.start()
        self._schedule_idle_check()
        return int(bound.getsockname()[1])

    def attach(self) -> None:
        """Serve without listening: connections are handed transports by the caller (tests, the simulation)."""
        self.loop = asyncio.get_running_loop()

    def stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
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

    def spawn(self, work: Coroutine[Any, Any, None], connection: Connection) -> None:
        """Run a request that waits. A bug in it ends its connection, and nothing else."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, connection))

    def _ended(self, task: asyncio.Task[None], connection: Connection) -> None:
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
        self.metrics.connections_accepted.value += 1
        self._connections.add(connection)
        if self._listener is not None and len(self._connections) >= self._connections_max:
            self.metrics.accepting_stopped.value += 1
            self._listener.pause()

    def limit_connections(self, connections_max: int) -> None:
        """From now on so many at a time; those above it that are open stay."""
        self._connections_max = connections_max
        if self._listener is not None:
            if len(self._connections) >= connections_max:
                self._listener.pause()
            else:
                self._listener.resume()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._listener is not None and len(self._connections) < self._connections_max:
            self._listener.resume()
        if connection in self._waiting_for_memory:
            self._waiting_for_memory.remove(connection)

    def _schedule_idle_check(self) -> None:
        idle_ms = self.context.config.connections_max_idle_ms
        if idle_ms > 0:
            self.loop.call_later(idle_ms / 1000 / IDLE_CHECKS_PER_PERIOD, self._close_idle)

    def _close_idle(self) -> None:
        if self._listener is None:
            return
        oldest = self.loop.time() - self.context.config.connections_max_idle_ms / 1000
        for connection in tuple(self._connections):
            if connection.active_s < oldest and connection.waits_for_peer:
                self.metrics.connections_idle.value += 1
                connection.abort()
        self._schedule_idle_check()

    def _go_on(self) -> None:
        for connection in tuple(self._connections):
            connection.doubt_ended()

    # --- memory of arriving frames -------------------------------------------------------------------------------

    def reserve(self, connection: Connection, size_bytes: int) -> bool:
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
