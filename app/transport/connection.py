"""One client's connection: frames in, responses out, in order, without a task per request.

**In.** All connections of a loop read into one shared buffer. That works because the loop asks for a buffer, fills it and calls
back, with nothing in between. Whole frames are served where they lie. The start of an unfinished frame is kept. Up to
``OWN_FRAME_BYTES_MIN`` it is copied in front of the next read. A longer one gets a pooled buffer of its own, which the following
reads fill directly, so that a frame of 100 MiB is received without a copy. Record bytes are passed on as slices of the receive
buffer. The next read overwrites it, so code that works past the callback makes a copy.

**Served at once.** ``serve`` is the subclass's: it is given the bytes that are here and answers what it can within the callback.
A request that has to wait takes a ``Slot``, which holds its place in the order of responses. It says whether requests behind it may
be served meanwhile; if not, the parsing of this connection stops until it is answered.

**Out.** The responses of one callback leave in one write, those with file ranges piece by piece (``sending.py``).
While a client does not read its answers, its requests are not read either.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from app.errors import ProtocolError
from app.limits import KIB, MIB
from app.transport.outlet import outlet_of
from app.transport.sending import Sending

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from app.faults import Faults
    from app.seams import BlockingPool
    from app.transport.buffers import BufferPool
    from app.transport.metrics import ConnectionMetrics
    from app.transport.outlet import RoomWatch, SendBuffers
    from app.transport.replays import ReplayTurns
    from app.transport.sending import Part, Parts

FRAME_SIZE: Final = Struct(">i")
REQUEST_BYTES_MIN: Final = 10
"""Key, version, correlation id and the length of the client id."""
OWN_FRAME_BYTES_MIN: Final = 16 * KIB
"""A longer unfinished frame gets a buffer of its own: below this, copying it twice is cheaper than a further read."""
EXACT_FRAME_BYTES_MIN: Final = 128 * KIB
"""From this size on a frame is read up to its end and the next one's size prefix, so that steady streams never copy."""
OUT_BYTES_MAX: Final = 1 * MIB
"""Finished responses that wait for the transport before requests stop being read."""
SLOTS_MAX: Final = 1024
"""Responses in waiting before requests stop being read."""

BROKEN: Final = "connections of"
BROKEN_TOLD: Final = 5
"""Connections of one host that are told one by one when the broker closes them; further ones are counted."""


class Meter(Protocol):
    """Counts the requests of one kind."""

    def observe(self, seconds: float, count: int) -> None:
        """``count`` requests took ``seconds`` each, from being here as a whole to being answered."""
        ...


class Gate(Protocol):
    """Whether responses may leave."""

    boot_s: Callable[[], float]
    sure_until_s: float
    """They may until then; ``holds`` says whether they must stay after that."""

    def holds(self, connection: object) -> bool: ...

    def on_open(self, call: Callable[[], None]) -> None:
        """Call it whenever responses may leave again."""
        ...


class Shared(Protocol):
    """What the connections of a server share, and what they tell it."""

    loop: asyncio.AbstractEventLoop
    scratch: memoryview
    buffers: BufferPool
    send_buffers: SendBuffers
    room_watch: RoomWatch | None
    request_bytes_max: int
    gate: Gate
    replays: ReplayTurns
    faults: Faults
    pool: BlockingPool
    connection_metrics: ConnectionMetrics

    def opened(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...

    def reserve(self, connection: Connection, size_bytes: int) -> bool: ...

    def unreserve(self, size_bytes: int) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, None], connection: Connection) -> None: ...


class _Unmetered:
    """Of responses that were counted when they were made."""

    def observe(self, seconds: float, count: int) -> None:
        del seconds, count


_UNMETERED: Final = _Unmetered()


class Slot:
    """The place of a response that is not there yet."""

    __slots__ = ("done", "meter", "parts", "started_s", "stops_parsing")

    def __init__(self, meter: Meter, started_s: float, stops_parsing: bool) -> None:
        self.done = False
        self.parts: Parts = None
        self.meter = meter
        self.started_s = started_s
        self.stops_parsing = stops_parsing


class Connection(asyncio.BufferedProtocol, ABC):
    """See the module. Belongs to one loop; everything here is synchronous."""

    __slots__ = (
        "_filled",
        "_gate",
        "_held",
        "_in_callback",
        "_needs_drain",
        "_out",
        "_out_bytes",
        "_own",
        "_pending",
        "_reserved",
        "_rests",
        "_send",
        "_sending",
        "_slots",
        "_stopped",
        "_transport",
        "_waiters",
        "_waits_for_memory",
        "_window_end",
        "_write_paused",
        "active_s",
        "closed",
        "on_close",
        "peer",
        "replaying",
        "server",
        "started_s",
    )

    def __init__(self, server: Shared) -> None:
        self.server = server
        self._gate = server.gate
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self.peer = ""
        self.closed = True
        self.active_s = 0.0
        """Loop time of the last byte received, or of the last time that everything sent had been taken."""
        self.on_close: set[Any] = set()
        """Things with a ``cancel()`` that must hear of the end of the connection."""
        self.replaying = False
        """Its last response came from the tier: the time it takes is a replay's (``replays.py``)."""

        self._own: memoryview | None = None
        self._reserved = 0
        self._filled = 0
        self._window_end = 0
        self._pending = b""
        self._held: memoryview | None = None
        self._stopped = False
        self._needs_drain = False
        self._waits_for_memory = False
        self._in_callback = False
        self.started_s = 0.0
        """Loop time at which the bytes came that are being served."""

        self._slots: deque[Slot] = deque()
        self._waiters = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._send: deque[Part] = deque()
        """Pieces of responses that have file ranges, and responses behind them."""
        self._sending: Sending | None = None
        """Made with the first of them."""
        self._rests = False
        """Goes on sending when replays may."""
        self._write_paused = False

    # --- the transport's calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"
        self.closed = False
        self._transport.set_write_buffer_limits(high=0, low=0)
        self.active_s = self.server.loop.time()
        self.server.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._drop_own()
        self._held = None
        self._pending = b""
        if self._sending is not None:
            self._sending.close()
        self._out.clear()
        self._slots.clear()
        for waiting in tuple(self.on_close):
            waiting.cancel()
        self.on_close.clear()
        self.server.replays.forget(self)
        self.server.lost(self)

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        own = self._own
        if own is not None:
            return own[self._filled : self._window_end]
        scratch = self.server.scratch
        pending = self._pending
        if pending:
            self._filled = len(pending)
            scratch[: self._filled] = pending
            return scratch[self._filled :]
        self._filled = 0
        return scratch

    def buffer_updated(self, nbytes: int) -> None:
        began_s = self.server.replays.elapsed_s()
        own = self._own
        self._receive(self.server.scratch if own is None else own, self._filled + nbytes)
        self.account(began_s)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self.room_made()

    # --- in ------------------------------------------------------------------------------------------------------

    def _receive(self, view: memoryview, end: int) -> None:
        """Serve the frames in ``view[:end]``, keep the rest, hand the answers to the transport."""
        self.started_s = self.active_s = self.server.loop.time()
        position = 0
        while True:
            self._in_callback = True
            try:
                served_to = self.serve(view, position, end)
            except ProtocolError as error:
                self._flush()
                self.fail(f"closing the connection of {self.peer}: {error}")
                return
            finally:
                self._in_callback = False
            if self.closed:
                return
            # Parsing may have stopped only to let answers out, and the transport may have taken them at once.
            progress = served_to > position
            position = served_to
            congested = self.is_congested()
            if not self._flush():
                return
            if position == end or not (progress and congested and not self.is_congested()):
                break
        self._keep_rest(view, position, end)

    @abstractmethod
    def serve(self, view: memoryview, position: int, end: int) -> int:
        """Serve every whole frame in ``view`` from ``position`` until parsing has to stop; where the first byte not served is.

        Parsing stops while ``is_congested``. Raises: ProtocolError; the connection is closed then.
        """

    def check_size(self, size: int) -> None:
        """Whether a frame may say that it is so long. Raises: ProtocolError."""
        most = self.server.request_bytes_max
        if not REQUEST_BYTES_MIN <= size <= most:
            raise ProtocolError(f"a frame claims {size} bytes; {REQUEST_BYTES_MIN} to {most} are served")

    def _keep_rest(self, view: memoryview, position: int, end: int) -> None:
        """Keep the bytes not served yet, and stop reading if their turn has not come."""
        rest = end - position
        total = FRAME_SIZE.unpack_from(view, position)[0] + 4 if rest >= 4 else 0
        whole = 0 < total <= rest
        if whole or (rest and self.is_congested()) or not self._reserve_frame(total):
            self._needs_drain = whole
            self._held = memoryview(bytearray(view[position:end]))
            self._pending = b""
            self._drop_own()
            if not self._stopped:
                self._stopped = True
                self._transport.pause_reading()
            return
        # With nothing held back the reading goes on even while a request waits, so that the client's leaving is noticed.
        if self._stopped:
            self._stopped = False
            self._transport.resume_reading()
        if total > OWN_FRAME_BYTES_MIN:
            self._continue_in_own(view, position, rest, total)
            return
        self._pending = bytes(view[position:end]) if rest else b""
        self._drop_own()

    def is_congested(self) -> bool:
        """Whether no request may be served now, whatever it is."""
        return bool(self._waiters or self._send or self._out_bytes > OUT_BYTES_MAX or len(self._slots) >= SLOTS_MAX)

    def _reserve_frame(self, total: int) -> bool:
        """Claim the memory of an unfinished frame of ``total`` bytes; if there is none, ``memory_freed`` is called later."""
        wanted = total if total > OWN_FRAME_BYTES_MIN else 0
        if wanted > self._reserved and not self.server.reserve(self, wanted - self._reserved):
            self._waits_for_memory = True
            return False
        if wanted < self._reserved:
            self.server.unreserve(self._reserved - wanted)
        self._reserved = wanted
        return True

    def _continue_in_own(self, view: memoryview, position: int, rest: int, total: int) -> None:
        """Go on receiving an unfinished frame of ``total`` bytes in a buffer of its own."""
        own = self._own
        if own is None or len(own) < total + 4:
            bigger = self.server.buffers.take(total + 4)
            bigger[:rest] = view[position : position + rest]
            if own is not None:
                self.server.buffers.give_back(own)
            self._own = bigger
        elif position:
            own[:rest] = view[position : position + rest]
        self._pending = b""
        self._filled = rest
        self._window_end = total + 4 if total >= EXACT_FRAME_BYTES_MIN else total

    def _drop_own(self) -> None:
        if self._own is not None:
            self.server.buffers.give_back(self._own)
            self._own = None
        if self._reserved:
            reserved, self._reserved = self._reserved, 0
            self.server.unreserve(reserved)

    def memory_freed(self) -> None:
        """Room for frames has been made: try again."""
        self._waits_for_memory = False
        self._consider_resuming()

    def _consider_resuming(self) -> None:
        """Serve what was held back, and read on, once nothing stands in the way."""
        if not self._stopped or self.closed or self._waits_for_memory:
            return
        if self._waiters or self._send or self._out_bytes > OUT_BYTES_MAX:
            return
        if len(self._slots) > (0 if self._needs_drain else SLOTS_MAX // 2):
            return
        held = self._held
        self._held = None
        if held is None:
            held = memoryview(bytearray())
        self._receive(held, len(held))

    # --- out -----------------------------------------------------------------------------------------------------

    def open_slot(self, meter: Meter, *, stops_parsing: bool) -> Slot:
        """Keep the place of a response that comes later, through ``complete``."""
        slot = Slot(meter, self.started_s, stops_parsing)
        self._slots.append(slot)
        if stops_parsing:
            self._waiters += 1
        return slot

    def complete(self, slot: Slot, parts: Parts) -> None:
        """Answer a slot. Responses leave as soon as all before them have. After the connection's end this does nothing."""
        if self.closed:
            if isinstance(parts, list):
                for part in parts:
                    if not isinstance(part, bytes):
                        part.release()
            return
        assert not slot.done
        slot.done = True
        slot.parts = parts
        slot.meter.observe(self.server.loop.time() - slot.started_s, 1)
        if slot.stops_parsing:
            self._waiters -= 1
        slots = self._slots
        while slots and slots[0].done:
            parts = slots.popleft().parts
            if parts is not None:
                self._deliver(parts)
        if not self._in_callback:
            self._flush()
            self._consider_resuming()

    def answer(self, parts: Parts) -> None:
        """A response that is there at once takes its place behind those that are not."""
        if self._slots:
            slot = Slot(_UNMETERED, self.started_s, False)
            slot.done = True
            slot.parts = parts
            self._slots.append(slot)
        elif parts is not None:
            self._deliver(parts)

    def _deliver(self, parts: bytes | list[Part]) -> None:
        if isinstance(parts, list):
            if self._sending is None:
                shared = self.server
                outlet = outlet_of(self._transport, shared.room_watch, self.room_made, shared.send_buffers)
                self._sending = Sending(self, outlet, self._send)
            if self._out:
                self._send.extend(self._out)
                self._out.clear()
            self._send.extend(parts)
        elif self._send:
            self._send.append(parts)
            self._out_bytes += len(parts)
        else:
            self._out.append(parts)
            self._out_bytes += len(parts)

    def _flush(self) -> bool:
        """Hand to the transport what is ready, unless it has not taken the last. False if the connection has ended."""
        if self.closed:
            return False
        if not self._write_paused:
            sending, gate = self._sending, self._gate
            if sending is not None and sending.parts:
                if gate.boot_s() > gate.sure_until_s and gate.holds(self.on_close):
                    return True
                sending.push()
                if not sending.parts:
                    self._out_bytes = 0
                return not self.closed
            out = self._out
            if out:
                if gate.boot_s() > gate.sure_until_s and gate.holds(self.on_close):
                    return True
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))
                out.clear()
                self._out_bytes = 0
        return True

    def doubt_ended(self) -> None:
        """Responses may leave that were held back."""
        if not self.closed:
            self.send_on()

    def room_made(self) -> None:
        """The client has read: there is room for what is to be sent."""
        if not self.closed:
            self.active_s = self.server.loop.time()
            self.send_on()

    def send_on(self) -> None:
        """Go on sending, and after that with the requests that waited for it."""
        if self.closed or self._in_callback:
            return
        replays = self.server.replays
        began_s = replays.elapsed_s()
        if self.replaying and self._send and (rest_s := replays.pace.wait_s(began_s)):
            if not self._rests:
                self._rests = True
                self.server.loop.call_later(rest_s, self._rested)
            return
        self._flush()
        self._consider_resuming()
        self.account(began_s)

    def _rested(self) -> None:
        self._rests = False
        self.send_on()

    def account(self, began_s: float) -> None:
        """The loop has worked for this client since ``began_s``."""
        replays = self.server.replays
        now_s = replays.elapsed_s()
        if self.replaying:
            replays.pace.took(now_s, now_s - began_s)
        else:
            replays.pace.others_s += now_s - began_s

    # --- the end -------------------------------------------------------------------------------------------------

    @property
    def waits_for_peer(self) -> bool:
        """Whether the next step is the client's: it has to send a request, or the rest of one, or to read its answers."""
        sending = self._sending
        if sending is None:
            return self._write_paused or not self._slots
        return self._write_paused or sending.full or not (self._slots or sending.reading)

    def fail(self, line: str) -> None:
        """Say why in one line, and close after what was already answered has been written."""
        if not self.closed:
            self.server.connection_metrics.broken.value += 1
            # One that sends what nobody understands sends it again and again.
            host = self.peer.rpartition(":")[0] or self.peer
            self.server.faults.met(BROKEN, host, line, burst=BROKEN_TOLD)
            self.close()

    def close(self) -> None:
        """Close once the transport has written what it was given."""
        if not self.closed:
            self._transport.close()
            self.connection_lost(None)

    def abort(self) -> None:
        """Close at once."""
        if not self.closed:
            self._transport.abort()
            self.connection_lost(None)
