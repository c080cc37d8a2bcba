"""The shell around the core of a connection: a protocol of the event loop that moves bytes, and decides nothing about them.

It reads to where the core says, hands the core's responses to the transport once they may leave, and tells the core when there is
room again. The core (``core.py``) says whether to read, and when to end.

Tests: ``tests/transport/test_server.py``, ``tests/broker/test_ended_connections.py``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from app.core.addresses import plain_address
from app.transport.core import Ending
from app.transport.outlet import outlet_of
from app.transport.sending import Closes, Sending

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from app.core.faults import Faults
    from app.core.seams import BlockingPool
    from app.transport.buffers import BufferPool
    from app.transport.core import ConnectionCore
    from app.transport.metrics import ConnectionMetrics
    from app.transport.outlet import RoomWatch, SendBuffers
    from app.transport.replays import ReplayTurns

BROKEN: Final = "connections of"
BROKEN_TOLD: Final = 5
"""Connections of one host that are told one by one when the broker closes them; further ones are counted."""


class Gate(Protocol):
    """Whether responses may leave."""

    boot_s: Callable[[], float]
    sure_until_s: float
    """They may until then; ``holds`` says whether they must stay after that."""

    def holds(self, connection: object) -> bool: ...

    def on_open(self, call: Callable[[], None]) -> None:
        """Call it whenever responses may leave again."""
        ...


class ConnectionOwner(Protocol):
    """The parts that the connections of a server share, and their reports to it."""

    loop: asyncio.AbstractEventLoop
    buffers: BufferPool
    send_buffers: SendBuffers
    room_watch: RoomWatch | None
    gate: Gate
    replays: ReplayTurns
    faults: Faults
    pool: BlockingPool
    connection_metrics: ConnectionMetrics

    def admit(self, connection: Connection, transport: asyncio.BaseTransport, ends: Any) -> bool: ...

    def opened(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, None], connection: Any, *inner: Closes) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """See the module. Belongs to one loop; everything here is synchronous."""

    __slots__ = (
        "_gate",
        "_reads",
        "_rests",
        "_sending",
        "_transport",
        "_write_paused",
        "active_s",
        "core",
        "get_buffer",
        "server",
    )

    def __init__(self, server: ConnectionOwner, core: ConnectionCore) -> None:
        self.server = server
        self.core = core
        self.get_buffer = core.get_buffer  # type: ignore[method-assign]
        """The core's own: it is called for every read."""
        self._gate = server.gate
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self.active_s = 0.0
        """Loop time of the last byte received, or of the last time that everything sent had been taken; at first, of its start."""
        self._reads = True
        self._sending: Sending | None = None
        """Made with the first response that has file ranges."""
        self._rests = False
        """Goes on sending when replays may."""
        self._write_paused = False

    @property
    def peer(self) -> str:
        """``host:port`` of the other end, for log lines."""
        return self.core.peer

    @property
    def closed(self) -> bool:
        return self.core.closed

    # --- the transport's calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        if not self.server.admit(self, transport, self):
            return
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        core = self.core
        host, port = (plain_address(str(name[0])), name[1]) if isinstance(name, tuple) else ("", 0)
        core.opened(host, port)
        core.ready = self._core_is_ready
        self._transport.set_write_buffer_limits(high=0, low=0)
        self.active_s = self.server.loop.time()
        self.server.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        core = self.core
        if core.closed:
            return
        if self._sending is not None:
            self._sending.close()
            self._sending = None  # each holds the other
        core.lost()
        self.server.replays.forget(core)
        self.server.lost(self)

    def eof_received(self) -> bool:
        return False

    if TYPE_CHECKING:

        def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None:
        server = self.server
        now_s = self.active_s = server.loop.time()
        core, replays = self.core, server.replays
        if replays.watched or core.replaying:
            began_s = replays.elapsed_s()
            self._settle(core.received(nbytes, now_s))
            replays.account(began_s, core.replaying)
        else:
            self._settle(core.received(nbytes, now_s))

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self.room_made()

    # --- output of the core --------------------------------------------------------------------------------------

    def _settle(self, left: bool) -> None:
        """Hand over ready responses, let the core serve the bytes that are ``left``, and carry out its decision."""
        core = self.core
        while self._flush() and left:
            left = core.go_on()
        if core.ending is not None:
            self._end(core.ending)
        elif core.reads is not self._reads and not core.closed:
            self._reads = core.reads
            if self._reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _flush(self) -> bool:
        """Hand ready responses to the transport, unless it has not taken the last. False if the connection has ended."""
        core = self.core
        if core.closed:
            return False
        if not self._write_paused:
            gate = self._gate
            if core.pieces:
                if gate.boot_s() > gate.sure_until_s and gate.holds(core.on_close):
                    return True
                sending = self._sending
                if sending is None:
                    server = self.server
                    outlet = outlet_of(self._transport, server.room_watch, self.room_made, server.send_buffers)
                    sending = self._sending = Sending(self, outlet, core.pieces)
                sending.push()
                if not core.pieces:
                    core.pieces_left()
                return not core.closed
            if core.out:
                if gate.boot_s() > gate.sure_until_s and gate.holds(core.on_close):
                    return True
                self._transport.write(core.take_out())
        return True

    def _core_is_ready(self) -> None:
        core = self.core
        ending = core.ending
        if ending is not None and ending.at_once:
            self._end(ending)
        elif self._flush():
            if ending is not None:
                self._end(ending)
            elif not core.reads and not core.pieces:
                now_s = self.active_s = self.server.loop.time()
                self._settle(core.resume(now_s))

    def doubt_ended(self) -> None:
        """Responses may leave that were held back."""
        self.send_on()

    def room_made(self) -> None:
        """The client has read: there is room for more."""
        if not self.core.closed:
            self.active_s = self.server.loop.time()
            self.send_on()

    def send_on(self) -> None:
        """Go on sending, and after that with the requests that waited for it."""
        core = self.core
        if core.closed:
            return
        replays = self.server.replays
        began_s = replays.elapsed_s()
        if core.replaying and core.pieces and (rest_s := replays.pace.wait_s(began_s)):
            if not self._rests:
                self._rests = True
                self.server.loop.call_later(rest_s, self._rested)
            return
        self._core_is_ready()
        replays.account(began_s, core.replaying)

    def _rested(self) -> None:
        self._rests = False
        self.send_on()

    # --- the end -------------------------------------------------------------------------------------------------

    @property
    def waits_for_peer(self) -> bool:
        """Whether the next step is the client's: it has to send a request, or the rest of one, or to read its answers."""
        sending, waits_for_answers = self._sending, self.core.waits_for_answers
        if sending is None:
            return self._write_paused or not waits_for_answers
        return self._write_paused or sending.full or not (waits_for_answers or sending.reading)

    def fail(self, line: str) -> None:
        """Say why in one line, and close once the transport has written everything."""
        self._end(Ending(line, at_once=False))

    def abort(self) -> None:
        """Close at once."""
        self._end(Ending(None, at_once=True))

    def close(self) -> None:
        """Close once the transport has written everything."""
        if not self.core.closed:
            self._transport.close()
            self.connection_lost(None)

    def _end(self, ending: Ending) -> None:
        core = self.core
        if core.closed:
            return
        if ending.line is not None:
            self.server.connection_metrics.broken.value += 1
            # A client of malformed requests sends them again and again.
            host = core.peer.rpartition(":")[0] or core.peer
            self.server.faults.met(BROKEN, host, ending.line, burst=BROKEN_TOLD)
        if ending.at_once:
            self._transport.abort()
            self.connection_lost(None)
        else:
            self.close()
