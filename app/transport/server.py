"""All connections of a broker, of every listener: accepting them, their shared parts, and their limits."""

from __future__ import annotations

import asyncio
import heapq
import math
import socket
from collections.abc import Callable, Coroutine
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from app.core.addresses import plain_address
from app.core.limits import KIB
from app.core.turns import Portion, each
from app.transport.admission import Admission, AdmissionLimits
from app.transport.buffers import BufferPool, free_bytes_max
from app.transport.frame_memory import FrameMemory
from app.transport.listener import Listener
from app.transport.metrics import ConnectionMetrics
from app.transport.outlet import RoomWatch, SendBuffers, room_watch

if TYPE_CHECKING:
    from app.core.faults import Faults
    from app.core.metrics import Registry
    from app.core.seams import BlockingPool
    from app.transport.connection import Connection, Gate
    from app.transport.core import ConnectionCore
    from app.transport.replays import ReplayTurns
    from app.transport.sending import Closes

SCRATCH_BYTES: Final = 256 * KIB
"""One read of the shared receive buffer: a few hundred small requests, and it stays in the processor's cache."""
SET_ASIDE_MAX: Final = 32
"""Receive buffers whose content is still needed. Most of them are hardly filled."""
IDLE_CHECKS_PER_PERIOD: Final = 10
"""How often, per ``idle_ms_max``, idle connections are looked for."""
CLOSED_AT_ONCE: Final = 32
"""Connections that are closed in one step to make room. Each takes about 15 µs."""
TURNED_AWAY_MAX: Final = 1000
"""Connections that are kept unread for a while and closed then. With more, the oldest is closed sooner."""
TURNED_AWAY: Final = "more connections of"
UNFINISHED: Final = "the unfinished requests of"
_used_s: Final = attrgetter("active_s")


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


class Ends(Protocol):
    """A way to end a connection, from its first byte on."""

    def abort(self) -> None: ...


class Place(NamedTuple):
    """The counts that a connection belongs to."""

    listener: str
    address: str
    ends: Ends


class _Unheard(asyncio.Protocol):
    """In place of a connection that is turned away: nothing that its client sends is read."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        del data
        self._transport.pause_reading()


class Server:
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
        self.buffers = BufferPool(free_bytes_max(limits.frame_bytes_max))
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._set_aside: list[memoryview] = []
        self.request_bytes_max = limits.request_bytes_max
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.now_s: Callable[[], float] = _not_attached
        """Loop time."""
        self.room_watch: RoomWatch | None = None
        self.send_buffers = SendBuffers(limits.send_buffer_bytes)
        self._connections: set[Connection] = set()
        self._admission = Admission(AdmissionLimits(limits.connections_max))
        self._places: dict[Connection, Place] = {}
        """Of all connections, those that are at their handshake, too."""
        self._regulates: asyncio.TimerHandle | None = None
        self._turned_away: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        """The oldest first."""
        self._idle_ms_max = limits.idle_ms_max
        self.frames: FrameMemory[ConnectionCore] = FrameMemory(limits.frame_bytes_max)
        self._wakes = False
        self._watches_frames: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Listener] = []
        self._closed = False
        gate.on_open(self._go_on)
        registry.gauge("firn_connections", "Connections open.", lambda: [((), float(len(self._connections)))])
        registry.gauge(
            "firn_listener_connections",
            "Connections open by listener, those at their TLS handshake, too.",
            lambda: [((("listener", name),), float(count)) for name, count in self._admission.by_listener.items()],
        )
        registry.gauge(
            "firn_request_memory_bytes",
            "Memory of request frames still arriving, of requests that are held back, and of records that wait to be prepared.",
            lambda: [((), float(self.frames.bytes + self.frames.unproven_bytes + self.frames.held_bytes))],
        )

    # --- life ----------------------------------------------------------------------------------------------------

    async def listen(self, bound: socket.socket, make: Callable[[], asyncio.BaseProtocol], name: str) -> int:
        """Accept connections on a socket that is bound, which is the server's from now on; may be called for several.

        Args:
            make: makes the core of a connection of this socket.
            name: the ``listener`` of the cores of these connections.
        Returns the port. Raises: OSError if it cannot be listened on.
        """
        if not self._listeners:
            self.attach()
            self.room_watch = room_watch(self.loop)
            self._schedule_idle_check()
        listener = Listener(bound, make, self.faults, name)
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
        if self._regulates is not None:
            self._regulates.cancel()
        if self._watches_frames is not None:
            self._watches_frames.cancel()
            self._watches_frames = None
        for transport, timer in self._turned_away.items():
            timer.cancel()
            transport.abort()
        self._turned_away.clear()

    async def close(self) -> None:
        """Stop listening and close every connection. Requests that wait are dropped; their appends stay."""
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
        """Close every connection once its transport has written everything."""
        for connection in tuple(self._connections):
            connection.close()

    def spawn(
        self,
        work: Coroutine[Any, Any, None],
        connection: Connection | ConnectionCore,
        *inner: Closes,
    ) -> None:
        """Run a request that waits. A bug in it ends its connection, and nothing else. ``inner`` are the objects that ``work``
        awaits or keeps: it is closed when ``work`` has ended, also if that is cancelled before its first step."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, connection))
        for one in inner:
            task.add_done_callback(lambda _, one=one: one.close())  # type: ignore[misc]

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

    def admit(self, connection: Connection, transport: asyncio.BaseTransport, ends: Ends) -> bool:
        """A client has connected, and nothing of it has been read. Count its connection until ``lost``.

        Args:
            connection: the protocol that will serve it; may be asked again for the same one.
            ends: ends it, at any time.
        Returns: False if it is turned away. ``transport`` has another protocol then, and ``connection`` is of no use.
        """
        if not self._listeners or connection in self._places:
            return True
        listener, now_s = connection.core.listener, self.now_s()
        name = transport.get_extra_info("peername")
        address = plain_address(str(name[0])) if isinstance(name, tuple) else ""
        admitted = self._admission.enter(listener, address, now_s)
        metrics = self.connection_metrics
        if not admitted:
            metrics.of_address.value += 1
            self._turn_away(transport, 0, address, "its address has as many as it may have (max.connections.per.ip)")
        elif (rest_s := self.rest_s(address)) > 0:
            self._admission.leave(listener, address)
            self._admission.turned_back(listener, now_s)
            metrics.too_soon.value += 1
            # Closed later, so that a client which comes back at once gains nothing (KIP-612).
            self._turn_away(
                transport,
                rest_s,
                address,
                "its address opens more connections a second than it may (connection_creation_rate)",
            )
            admitted = False
        else:
            connection.active_s = now_s
            self._places[connection] = Place(listener, address, ends)
            if listener == self._admission.limits.protected:
                self._make_room()
        if self._admission.wait_s(listener, now_s) > 0:
            metrics.accepting_stopped.value += 1
            self._regulate()
        return admitted

    def rest_s(self, address: str) -> float:
        """The seconds after which a new connection of an address is closed, unread; 0 if it may stay."""
        del address
        return 0.0

    def _turn_away(self, transport: asyncio.BaseTransport, rest_s: float, address: str, why: str) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        turned: asyncio.Transport = transport  # type: ignore[assignment] # uvloop's is one in all but its base class
        self.faults.met(TURNED_AWAY, address, f"closing a connection of {address}: {why}")
        turned.set_protocol(_Unheard(turned))
        if not rest_s:
            turned.abort()
            return
        if len(self._turned_away) >= TURNED_AWAY_MAX:
            self._let_go(next(iter(self._turned_away)))
        self._turned_away[turned] = self.loop.call_later(rest_s, self._let_go, turned)

    def _let_go(self, transport: asyncio.Transport) -> None:
        self._turned_away.pop(transport).cancel()
        transport.abort()

    def _make_room(self) -> None:
        """There are more connections than there may be: close those that were used least recently. Brokers keep theirs."""
        protected = self._admission.limits.protected
        others = (one for one, place in self._places.items() if place.listener != protected)
        closed: list[Ends] = []
        for connection in heapq.nsmallest(self._admission.excess(), others, key=_used_s):
            place = self._places.pop(connection)
            self._admission.leave(place.listener, place.address)
            self.connection_metrics.made_room.value += 1
            closed.append(place.ends)
        if len(closed) > CLOSED_AT_ONCE:
            self._do_in_portions(each(methodcaller("abort"), closed))  # the limit was lowered by many
        else:
            for ends in closed:
                ends.abort()

    def opened(self, connection: Connection) -> None:
        if self._closed:
            # Accepted before we stopped listening and made after it: the logs are being closed by now.
            connection.abort()
            return
        self.connection_metrics.accepted.value += 1
        self._connections.add(connection)

    def limit_connections(self, limits: AdmissionLimits) -> None:
        """From now on these limits count. As in Kafka, connections above ``connections_max`` are closed, and those above other
        limits stay."""
        self._admission.change(limits, self.now_s() if self.loop is not None else 0.0)
        if self._listeners:
            self._make_room()
            self._regulate()

    def _regulate(self) -> None:
        """Let each listener accept, or stop it for as long as it must not."""
        if not self._listeners:
            return
        if self._regulates is not None:
            self._regulates.cancel()
            self._regulates = None
        now_s = self.now_s()
        soonest_s = math.inf
        for listener in self._listeners:
            wait_s = self._admission.wait_s(listener.name, now_s)
            if wait_s > 0:
                listener.pause()
                soonest_s = min(soonest_s, wait_s)
            else:
                listener.resume()
        if soonest_s < math.inf:
            self._regulates = self.loop.call_later(soonest_s, self._regulate)

    def lost(self, connection: Connection) -> None:
        """A connection has ended, or its client left before it was served. May be called again."""
        self._connections.discard(connection)
        place = self._places.pop(connection, None)
        if place is not None:
            self._admission.leave(place.listener, place.address)
            if self._waits:
                self._regulate()
        self.frames.forget(connection.core)

    @property
    def _waits(self) -> bool:
        """Whether a listener accepts no connection for now."""
        return any(listener.paused for listener in self._listeners)

    def _schedule_idle_check(self) -> None:
        if self._idle_ms_max > 0:
            self.loop.call_later(self._idle_ms_max / 1000 / IDLE_CHECKS_PER_PERIOD, self._look_for_idle)

    def _look_for_idle(self) -> None:
        if self._listeners:
            self._do_in_portions(self._close_idle())

    async def _close_idle(self) -> None:
        """Close the connections that are idle. Thousands may be at once, so it goes in portions (INV-15)."""
        oldest_s = self.loop.time() - self._idle_ms_max / 1000
        portion = Portion()
        for connection in tuple(self._connections):
            # It may have ended, or been used, during a rest.
            if connection in self._connections and connection.active_s < oldest_s and connection.waits_for_peer:
                self.connection_metrics.idle.value += 1
                connection.abort()
            if portion.spent_by():
                await portion.rest()
        if self._listeners:
            self._schedule_idle_check()

    def _do_in_portions(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work of the server itself, until it is closed. An error in it is a bug, which the event loop reports."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done_in_portions)

    def _done_in_portions(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.call_exception_handler(
                {"message": "the server's own work failed", "exception": error, "task": task}
            )

    def _go_on(self) -> None:
        for connection in tuple(self._connections):
            connection.doubt_ended()

    # --- memory of arrived bytes ----------------------------------------------------------------------------------

    def set_scratch_aside(self) -> bool:
        """Keep the bytes in ``scratch``, which is another buffer from now on. Returns: False if it cannot be kept."""
        if len(self._set_aside) >= SET_ASIDE_MAX:
            return False
        self._set_aside.append(self.scratch)
        self.scratch = self.buffers.take(SCRATCH_BYTES)
        return True

    def take_scratches_back(self) -> None:
        """The buffers that were set aside are free again."""
        for scratch in self._set_aside:
            self.buffers.give_back(scratch)
        self._set_aside.clear()

    def claim(self, connection: ConnectionCore, size_bytes: int) -> bool:
        """The arriving frame of a connection needs so many bytes in all. Returns: False if the connection must wait, and is told
        later."""
        frames = self.frames
        if not connection.is_proven:
            for one in frames.claim_unproven(connection, size_bytes):
                self._end_arriving(one, "too many bytes of clients that have not logged in are waiting for their rest")
            return True
        if frames.claim(connection, size_bytes):
            return True
        if self._watches_frames is None:
            self._watches_frames = self.loop.call_later(1.0, self._look_at_frames)
        return False

    def release(self, connection: ConnectionCore) -> None:
        """No frame of a connection is arriving."""
        self.frames.release(connection)
        self._wake_soon()

    def hold(self, size_bytes: int) -> None:
        """Count bytes that a connection holds back of one read; negative if it no longer does. Arriving frames of others do not
        wait."""
        self.frames.hold(size_bytes)

    def keep(self, size_bytes: int) -> None:
        """Count memory that a request keeps past its frame, until ``unreserve``. No call waits here; arriving frames do."""
        self.frames.keep(size_bytes)

    def unreserve(self, size_bytes: int) -> None:
        self.frames.keep(-size_bytes)
        self._wake_soon()

    def _wake_soon(self) -> None:
        if self.frames.is_waited_for and not self._wakes:
            self._wakes = True
            self.loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wakes = False
        if self.frames.wake():
            self._wake_soon()

    def _look_at_frames(self) -> None:
        """Others have waited for memory for a second: end the connections of clients that have stopped in the middle of a frame."""
        self._watches_frames = None
        if not self.frames.is_waited_for:
            return
        for one in self.frames.ended_after_a_second():
            self._end_arriving(
                one, "its request arrives too slowly while others wait for memory (queued.max.request.bytes)"
            )
        self._watches_frames = self.loop.call_later(1.0, self._look_at_frames)

    def _end_arriving(self, connection: ConnectionCore, why: str) -> None:
        self.connection_metrics.unfinished.value += 1
        address = connection.peer.rpartition(":")[0]
        self.faults.met(UNFINISHED, address, f"closing a connection of {address}: {why}")
        connection.abort()
