"""One client's connection without its socket: bytes go in and are served, responses come out in order.

Pure: it does no input or output, has no event loop, and is told the time. Its owner, the shell (``connection.py``), reads bytes
into ``get_buffer``, says how many came (``received``), hands ``out`` and ``pieces`` to the client when it may, and obeys ``reads``
and ``ending``. ``ready`` is the shell's: the core calls it when something can happen outside of the shell's own calls.

**In.** All connections of a loop read into one shared buffer. That works because the loop asks for a buffer, fills it and calls
back, with nothing in between. Whole frames are served where they lie. The start of an unfinished frame is kept. Up to
``OWN_FRAME_BYTES_MIN`` it is copied in front of the next read. A longer one gets a pooled buffer of its own, which the following
reads fill directly, so that a frame of 100 MiB is received without a copy. It claims memory as it arrives (``frame_memory.py``),
and no read brings more than was claimed. Record bytes are passed on as slices of the receive buffer. The next read overwrites it,
so code that works past the callback makes a copy.

**Served at once.** ``serve`` is the subclass's: it gets the bytes that are here and serves as many requests as it can within the
call. A request that has to wait takes a ``Slot``, which holds its place in the order of responses. It says whether requests
behind it may be served meanwhile; if not, the parsing of this connection stops until it is answered.

**Out.** The responses of one call leave in one write, those with file ranges piece by piece (``sending.py``). While a client does
not read its answers, its requests are not read either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from app.core.errors import ProtocolError
from app.core.limits import KIB, MIB
from app.transport.frame_memory import claim_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.transport.buffers import BufferPool
    from app.transport.sending import Part, Parts

FRAME_SIZE: Final = Struct(">i")
REQUEST_BYTES_MIN: Final = 10
"""Key, version, correlation id and the length of the client id."""
OWN_FRAME_BYTES_MIN: Final = 16 * KIB
"""A longer unfinished frame gets a buffer of its own: below this, copying it twice is cheaper than a further read."""
EXACT_FRAME_BYTES_MIN: Final = 128 * KIB
"""From this size on a frame is read up to its end and the next one's size prefix, so that steady streams never copy."""
OUT_BYTES_MAX: Final = 1 * MIB
"""Finished responses that wait for the client before requests stop being read."""
SLOTS_MAX: Final = 1024
"""Responses in waiting before requests stop being read."""


class Meter(Protocol):
    """Counts the requests of one kind."""

    def observe(self, seconds: float, count: int) -> None:
        """``count`` requests took ``seconds`` each, from being here as a whole to being answered."""
        ...


class Shared(Protocol):
    """The shared parts of a server's connections that the core needs."""

    scratch: memoryview
    buffers: BufferPool
    request_bytes_max: int

    def now_s(self) -> float:
        """Loop time."""
        ...

    def claim(self, connection: ConnectionCore, size_bytes: int) -> bool:
        """The arriving frame needs so many bytes in all. Returns: False if it is to wait for ``memory_freed``."""
        ...

    def release(self, connection: ConnectionCore) -> None:
        """No frame is arriving."""
        ...

    def hold(self, size_bytes: int) -> None:
        """Count bytes of at most one read of ``scratch`` that a connection holds back; negative if it no longer does."""
        ...

    def keep(self, size_bytes: int) -> None:
        """Count bytes that are kept without a claim, until ``unreserve``."""
        ...

    def unreserve(self, size_bytes: int) -> None: ...


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


class Ending:
    """How a connection is to end."""

    __slots__ = ("at_once", "line")

    def __init__(self, line: str | None, *, at_once: bool) -> None:
        self.line = line
        """The fault of its client; None if there is none."""
        self.at_once = at_once
        """Without writing ready responses."""


def nobody() -> None:
    """In place of ``ready`` before a connection is made and after its end."""


class ConnectionCore(ABC):
    """See the module. Everything here is synchronous."""

    __slots__ = (
        "_busy",
        "_claimed",
        "_filled",
        "_held",
        "_held_bytes",
        "_left",
        "_needs_drain",
        "_out_bytes",
        "_own",
        "_pending",
        "_slots",
        "_waiters",
        "_waits_for_memory",
        "_window_end",
        "closed",
        "ending",
        "listener",
        "on_close",
        "out",
        "peer",
        "pieces",
        "reads",
        "ready",
        "replaying",
        "server",
        "started_s",
    )

    def __init__(self, server: Shared, listener: str = "") -> None:
        self.server = server
        self.listener = listener
        """The name of the listener that was connected to."""
        self.peer = ""
        """``host:port`` of the other end, for log lines."""
        self.closed = True
        self.ending: Ending | None = None
        """Once it is set, the shell ends the connection."""
        self.ready: Callable[[], None] = nobody
        """The shell's: something can be handed over, read or ended. Not called within ``serve``."""
        self.on_close: set[Any] = set()
        """Things with a ``cancel()`` that must hear of the end of the connection."""
        self.replaying = False
        """Its last response came from the tier: the time it takes is a replay's (``replays.py``)."""
        self.started_s = 0.0
        """Loop time at which the bytes came that are being served."""

        self.reads = True
        """Whether more bytes are wanted now."""
        self._own: memoryview | None = None
        self._claimed = 0
        """Bytes that the arriving frame has claimed."""
        self._filled = 0
        self._window_end = 0
        self._pending = b""
        self._left: tuple[memoryview, int, int, bool] | None = None
        """Bytes behind those that were served, and whether only answers that had to leave stopped it."""
        self._held: memoryview | None = None
        """The same while nothing is read, in memory of their own."""
        self._held_bytes = 0
        """Of these, if they are many."""
        self._needs_drain = False
        self._waits_for_memory = False
        self._busy = False

        self._slots: deque[Slot] = deque()
        self._waiters = 0
        self.out: list[bytes] = []
        """Responses that are to leave in one write."""
        self._out_bytes = 0
        self.pieces: deque[Part] = deque()
        """Pieces of responses that have file ranges, and responses behind them. The shell takes from its left end."""

    # --- the shell's calls ---------------------------------------------------------------------------------------

    def opened(self, host: str, port: int) -> None:
        """The client at this address has connected."""
        self.peer = f"{host}:{port}" if host else "local"
        self.closed = False

    def lost(self) -> None:
        """The connection has ended: nothing leaves any more, and its waits are told."""
        if self.closed:
            return
        self.closed = True
        self.ready = nobody
        self._drop_own()
        self._left = None
        self._hold_no_more()
        self._pending = b""
        release(self.pieces)
        self.pieces.clear()
        self.out.clear()
        self._slots.clear()
        for waiting in tuple(self.on_close):
            waiting.cancel()
        self.on_close.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes are to be read to."""
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

    def received(self, nbytes: int, now_s: float) -> bool:
        """So many bytes are in ``get_buffer``: serve the whole frames.

        Returns whether something is left: then the shell hands over ready responses, and calls ``go_on``.
        """
        own = self._own
        self.started_s = now_s
        return self._serve(self.server.scratch if own is None else own, 0, self._filled + nbytes)

    def go_on(self) -> bool:
        """The shell has handed over as much as it could: serve the bytes that are left, or keep them. Returns as ``received``."""
        if self._left is None:
            return False
        view, position, end, stopped_for_answers = self._left
        self._left = None
        # Parsing may have stopped only to let answers out, and the client may have taken them at once.
        if stopped_for_answers and not self.is_congested():
            return self._serve(view, position, end)
        self._keep_rest(view, position, end)
        return False

    def resume(self, now_s: float) -> bool:
        """Serve bytes that were held back, and read on, once nothing stands in the way. Returns as ``received``."""
        if self.reads or self.closed or self.ending is not None or self._waits_for_memory:
            return False
        own = self._own
        if own is not None:
            # Its frame has waited for memory. The reading goes on even while a request waits.
            self.reads = self._claim(self._filled, FRAME_SIZE.unpack_from(own)[0] + FRAME_SIZE.size)
            return False
        if self._waiters or self.pieces or self._out_bytes > OUT_BYTES_MAX:
            return False
        if len(self._slots) > (0 if self._needs_drain else SLOTS_MAX // 2):
            return False
        held = self._held
        self._hold_no_more()
        self.started_s = now_s
        if held is None:
            held = memoryview(bytearray())
        return self._serve(held, 0, len(held))

    def take_out(self) -> bytes:
        """``out`` in one, which has left by that."""
        out = self.out
        taken = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_bytes = 0
        return taken

    def pieces_left(self) -> None:
        """The shell has taken all ``pieces``."""
        self._out_bytes = 0

    # --- in ------------------------------------------------------------------------------------------------------

    def _serve(self, view: memoryview, position: int, end: int) -> bool:
        """Serve the frames in ``view[position:end]``. Returns as ``received``."""
        self._busy = True
        try:
            served_to = self.serve(view, position, end)
        except ProtocolError as error:
            self.fail(f"closing the connection of {self.peer}: {error}")
            return False
        finally:
            self._busy = False
        if self.ending is not None:
            return False
        if served_to == end:
            if self._own is None and self.reads:
                self._pending = b""  # The usual end, without the steps of any other.
            else:
                self._keep_rest(view, end, end)
            return False
        self._left = (view, served_to, end, served_to > position and self.is_congested())
        return True

    @abstractmethod
    def serve(self, view: memoryview, position: int, end: int) -> int:
        """Serve every whole frame in ``view`` from ``position`` until parsing has to stop; where the first byte not served is.

        Parsing stops while ``is_congested``, and once ``ending`` is set. Raises: ProtocolError; the connection is closed then.
        """

    def check_size(self, size: int) -> None:
        """Whether a frame may say that it is so long. Raises: ProtocolError."""
        most = self.server.request_bytes_max
        if not REQUEST_BYTES_MIN <= size <= most:
            raise ProtocolError(f"A frame claims {size} bytes; {REQUEST_BYTES_MIN} to {most} are served.")

    def _keep_rest(self, view: memoryview, position: int, end: int) -> None:
        """Keep the bytes not served yet, and stop reading if their turn has not come."""
        rest = end - position
        total = FRAME_SIZE.unpack_from(view, position)[0] + 4 if rest >= 4 else 0
        whole = 0 < total <= rest
        if whole or (rest and self.is_congested()):
            self._needs_drain = whole
            self._hold(view, position, end)
        elif total > OWN_FRAME_BYTES_MIN:
            self._continue_in_own(view, position, end, total)
        else:
            # With nothing held back the reading goes on even while a request waits, so that the client's leaving is noticed.
            self.reads = True
            self._pending = bytes(view[position:end]) if rest else b""
            self._drop_own()

    def _hold(self, view: memoryview, position: int, end: int) -> None:
        """Keep bytes that must not be served yet, and read no more."""
        self._held = memoryview(bytearray(view[position:end]))
        self._pending = b""
        self._drop_own()
        self.reads = False
        size = len(self._held)
        if size > OWN_FRAME_BYTES_MIN:
            self._held_bytes = size
            if size > len(self.server.scratch):
                self.server.keep(size)  # of a long frame, which would have a claim
            else:
                self.server.hold(size)

    def _hold_no_more(self) -> None:
        self._held = None
        if self._held_bytes:
            size, self._held_bytes = self._held_bytes, 0
            if size > len(self.server.scratch):
                self.server.unreserve(size)
            else:
                self.server.hold(-size)

    def is_congested(self) -> bool:
        """Whether no request of any kind may be served now."""
        return bool(self._waiters or self.pieces or self._out_bytes > OUT_BYTES_MAX or len(self._slots) >= SLOTS_MAX)

    @property
    def is_proven(self) -> bool:
        """Whether the client is known, or need not be."""
        return True

    @property
    def arrived_bytes(self) -> int:
        """Of the frame that is arriving, if it has a buffer of its own."""
        return self._filled

    def _claim(self, rest: int, total: int) -> bool:
        """Claim the memory of a frame of ``total`` bytes, of which ``rest`` are here. If there is none, ``memory_freed`` is called
        later."""
        claimed = claim_bytes(rest, total, self._claimed)
        if claimed != self._claimed:
            if not self.server.claim(self, claimed):
                self._waits_for_memory = True
                return False
            self._claimed = claimed
        if claimed < total:
            self._window_end = claimed
        else:
            self._window_end = total + 4 if total >= EXACT_FRAME_BYTES_MIN else total
        return True

    def _continue_in_own(self, view: memoryview, position: int, end: int, total: int) -> None:
        """Go on receiving an unfinished frame of ``total`` bytes in a buffer of its own."""
        own, rest = self._own, end - position
        begins = position > 0 or own is None
        if begins and self._claimed:
            self._release()  # of the frame before it
        granted = self._claim(rest, total)
        if begins and not granted:
            self._needs_drain = False
            self._hold(view, position, end)
            return
        self.reads = granted
        if own is None or len(own) < total + 4:
            bigger = self.server.buffers.take(total + 4)
            bigger[:rest] = view[position:end]
            if own is not None:
                self.server.buffers.give_back(own)
            self._own = bigger
        elif position:
            own[:rest] = view[position:end]
        self._pending = b""
        self._filled = rest

    def _drop_own(self) -> None:
        if self._own is not None:
            self.server.buffers.give_back(self._own)
            self._own = None
        if self._claimed:
            self._release()

    def _release(self) -> None:
        self._claimed = 0
        self.server.release(self)

    def memory_freed(self) -> None:
        """Room for frames has been made: try again."""
        self._waits_for_memory = False
        self.ready()

    def stop_parsing(self) -> None:
        """Serve no further request until ``parse_on``; each call needs one."""
        self._waiters += 1

    def parse_on(self) -> None:
        """Take back one ``stop_parsing``."""
        self._waiters -= 1
        if not self._busy:
            self.ready()

    # --- out -----------------------------------------------------------------------------------------------------

    def open_slot(self, meter: Meter, *, stops_parsing: bool) -> Slot:
        """Keep the place of a response that comes later, through ``complete``."""
        slot = Slot(meter, self.started_s, stops_parsing)
        self._slots.append(slot)
        if stops_parsing:
            self._waiters += 1
        return slot

    def keep_slot(self, slot: Slot) -> None:
        """As ``open_slot``, with a slot that the caller made. It does not stop parsing, and is answered by ``hand_over``."""
        self._slots.append(slot)

    @property
    def open_slots(self) -> int:
        """Responses whose place is kept."""
        return len(self._slots)

    @property
    def waits_for_answers(self) -> bool:
        """Whether requests are being worked on."""
        return bool(self._slots)

    def complete(self, slot: Slot, parts: Parts) -> None:
        """Answer a slot. Responses leave as soon as all before them have. After the connection's end this does nothing."""
        if self.closed:
            if isinstance(parts, list):
                release(parts)
            return
        assert not slot.done
        slot.done = True
        slot.parts = parts
        slot.meter.observe(self.server.now_s() - slot.started_s, 1)
        if slot.stops_parsing:
            self._waiters -= 1
        slots = self._slots
        while slots and slots[0].done:
            parts = slots.popleft().parts
            if parts is not None:
                self._deliver(parts)
        if not self._busy:
            self.ready()

    def hand_over(self) -> None:
        """Slots of ``keep_slot`` have their parts and are done: their responses leave as soon as all before them have."""
        if self.closed:
            return
        slots = self._slots
        now_s = self.server.now_s()
        alike, last = 0, None
        while slots and slots[0].done:
            slot = slots.popleft()
            if last is not None and (slot.started_s != last.started_s or slot.meter is not last.meter):
                last.meter.observe(now_s - last.started_s, alike)
                alike = 0
            alike, last = alike + 1, slot
            if slot.parts is not None:
                self._deliver(slot.parts)
        if last is not None:
            last.meter.observe(now_s - last.started_s, alike)
        if not self._busy:
            self.ready()

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
            if self.out:
                self.pieces.extend(self.out)
                self.out.clear()
            self.pieces.extend(parts)
        elif self.pieces:
            self.pieces.append(parts)
            self._out_bytes += len(parts)
        else:
            self.out.append(parts)
            self._out_bytes += len(parts)

    # --- the end -------------------------------------------------------------------------------------------------

    def fail(self, line: str) -> None:
        """Say why in one line, and close after responses that are ready have been written."""
        self._end(Ending(line, at_once=False))

    def abort(self) -> None:
        """Close at once."""
        self._end(Ending(None, at_once=True))

    def _end(self, ending: Ending) -> None:
        if self.closed or self.ending is not None:
            return
        self.ending = ending
        if not self._busy:
            self.ready()


def release(parts: list[Part] | deque[Part]) -> None:
    """Give back the file ranges among the parts of a response that is not sent."""
    for part in parts:
        if not isinstance(part, bytes):
            part.release()
