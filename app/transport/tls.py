"""TLS between a socket and a connection: received bytes are decrypted into the core's buffer, sent bytes are encrypted.

``TlsLink`` is the protocol of the loop's transport, and the transport of a ``Connection``, which is not made before the handshake
is done. It encrypts in memory (``ssl.MemoryBIO``) and not by the loop's own TLS. So a client is known from its first byte, and
unfinished handshakes are counted and bounded. Each connection takes the newest certificate. Bytes are decrypted where the core
reads them, and all that is there is handed over in one call.

No file goes out by ``sendfile``. Pieces are encrypted from where they lie in memory, a megabyte at a time.

A client chooses how many records of TLS its bytes are cut into, and their kinds. A change of keys has 27 bytes and costs 50
microseconds, so one read could have ten thousand of them, before any login. So OpenSSL is given ``RECORDS_PER_TURN`` records. The
rest of the read follows in later turns of the loop. The lengths of records can be read in every version of TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from app.core.addresses import plain_address
from app.core.limits import KIB, MIB

if TYPE_CHECKING:
    from app.transport.arrivals import Arrival, Arrivals

SCRATCH_BYTES: Final = 256 * KIB
"""One read of encrypted bytes; the buffer is shared by all connections of a loop."""
UNSENT_BYTES_MAX: Final = 2 * MIB
"""Of encrypted bytes that the client does not take: beyond this nothing is read from it, not even for replies of TLS itself."""


RECORDS_PER_TURN: Final = 256
"""Records that are decrypted in one turn: some 15 ms of CPU if each changes keys. A full read of requests of 1 KB has fewer."""
RECORD_HEAD_BYTES: Final = 5
LENGTH: Final = Struct(">H")
LENGTH_AT: Final = 3


class Inner(Protocol):
    """The protocol over a link: a ``Connection``, or one of HTTP."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def connection_lost(self, exc: BaseException | None) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


Served_contra = TypeVar("Served_contra", bound=Inner, contravariant=True)


class TlsServer(Protocol[Served_contra]):
    """The shared parts of the links of a server."""

    arrivals: Arrivals
    tls_scratch: memoryview

    def admit(self, connection: Served_contra, transport: asyncio.BaseTransport, ends: TlsLink[Any]) -> bool:
        """Whether a client that has connected may begin its handshake. If not, ``transport`` has another protocol now."""
        ...

    def lost(self, connection: Served_contra) -> None:
        """It left before the end of its handshake."""
        ...

    def handshake_failed(self, listener: str, host: str, why: str) -> None:
        """Tell the operator."""
        ...

    def tls_broken(self, host: str, why: str) -> None:
        """A client that is past its handshake sent bytes that are not TLS: its connection is closed. Tell the operator."""
        ...


Served = TypeVar("Served", bound=Inner)


class TlsLink(asyncio.BufferedProtocol, Generic[Served]):
    """See the module. Everything here is synchronous."""

    __slots__ = (
        "_arrival",
        "_broken",
        "_closing",
        "_head",
        "_host",
        "_inner",
        "_listener",
        "_lost",
        "_outgoing",
        "_paused",
        "_raw",
        "_raw_paused",
        "_reads_soon",
        "_received",
        "_record_left",
        "_rest",
        "_server",
        "_shaken",
        "_tls",
        "known",
    )

    takes_views: ClassVar = True
    """``write`` keeps none of its bytes."""

    def __init__(
        self,
        server: TlsServer[Served],
        context: ssl.SSLContext,
        connection: Served,
        known: Callable[[ssl.SSLObject, Arrival], None],
        listener: str = "",
    ) -> None:
        """``known`` is told of the end of the handshake, before the connection is made. It ends the arrival, now or later."""
        self._server = server
        self._inner = connection
        self.known = known
        self._listener = listener
        self._received = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._outgoing, server_side=True)
        self._raw: asyncio.Transport = None  # type: ignore[assignment] # until connected
        self._arrival: Arrival = None  # type: ignore[assignment]
        self._host = ""
        self._shaken = False
        """The handshake is done, and the connection is made."""
        self._paused = False
        """The connection wants no bytes for now."""
        self._raw_paused = False
        self._closing = False
        self._broken = ""
        """How the client has broken TLS: nothing can be sent to it."""
        self._lost = False
        self._head = b""
        """The first bytes of a record's head, whose last bytes have not come."""
        self._record_left = 0
        """Bytes of the last record that OpenSSL was given in part."""
        self._rest = b""
        """Received bytes that wait for the next turn. Nothing is read meanwhile."""
        self._reads_soon = False

    # --- the loop's transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._server.admit(self._inner, transport, self):
            return
        self._raw = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        self._host = plain_address(str(name[0])) if isinstance(name, tuple) else "local"
        self._raw.set_write_buffer_limits(high=0, low=0)
        self._arrival = self._server.arrivals.begin(self._raw.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lost = True
        self._arrival.over()
        self._let_go(exc)

    def _let_go(self, exc: BaseException | None) -> None:
        # The connection holds the link as its transport. Cut here, both go at once with the memory that OpenSSL keeps for them,
        # and do not wait for a garbage collection, which a broker makes rarely.
        inner, self._inner = self._inner, None  # type: ignore[assignment]
        if inner is not None and self._shaken:
            inner.connection_lost(exc)
        elif inner is not None:  # it was not let go before
            self._server.lost(inner)

    def get_buffer(self, sizehint: int) -> memoryview:
        scratch, head = self._server.tls_scratch, self._head
        if head:
            scratch[: len(head)] = head
            return scratch[len(head) :]
        return scratch

    def buffer_updated(self, nbytes: int) -> None:
        view = self._server.tls_scratch[: len(self._head) + nbytes]
        if self._rest:
            self._rest += view  # it was read before the reading was stopped
        else:
            self._take(view)

    def _take(self, view: memoryview) -> None:
        """Decrypt the first records in ``view``, which is overwritten later, and keep the rest."""
        position, end = self._record_left, len(view)
        records = 0
        while position + RECORD_HEAD_BYTES <= end and records < RECORDS_PER_TURN:
            position += RECORD_HEAD_BYTES + LENGTH.unpack_from(view, position + LENGTH_AT)[0]
            records += 1
        given = min(position, end)
        self._record_left = position - given
        self._head = self._rest = b""
        if position + RECORD_HEAD_BYTES <= end:
            self._rest = bytes(view[given:])
            self._regulate()
            self._read_soon()
        elif given < end:
            self._head = bytes(view[given:])
        self._received.write(view[:given])
        if not self._shaken and not self._shake():
            return
        self._read()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._shaken and self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is None or not self._shaken:
            return
        self._inner.resume_writing()
        self._regulate()

    # --- the handshake --------------------------------------------------------------------------------------------

    def _shake(self) -> bool:
        """Take the next step. Returns whether the handshake is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._send()  # the alert says why
            self._arrival.over()
            if not self._closing:
                self._closing = True
                self._server.handshake_failed(self._listener, self._host, _reason(error))
            self._raw.close()
            return False
        self._send()
        self._shaken = True
        self.known(self._tls, self._arrival)
        self._inner.connection_made(self)  # type: ignore[arg-type]
        return True

    # --- in -------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Decrypt received bytes, as long as the connection wants them."""
        inner = self._inner
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment] # with a buffer it counts
        received = self._received
        while not (self._paused or self._closing or self._lost):
            view = inner.get_buffer(-1)
            filled, room = 0, len(view)
            left = False
            try:
                while filled < room:
                    taken = read(room - filled, view[filled:] if filled else view)
                    if not taken:
                        left = True
                        break
                    filled += taken
                    if not received.pending:
                        break  # OpenSSL would say so, too, by an exception that costs more than a small record
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                left = True
            except ssl.SSLError as error:
                left, self._broken = True, _reason(error)
            if filled:
                inner.buffer_updated(filled)
            if left:
                # Bytes before the break may have ended it for another reason.
                if self._broken and not (self._closing or self._lost):
                    self._server.tls_broken(self._host, self._broken)
                self.abort()
                # At once: bytes that it has not served yet are no further reason to end it.
                self._let_go(None)
                return
            if filled < room:
                break
        if self._outgoing.pending:
            self._send()
        self._regulate()

    def _regulate(self) -> None:
        """Read from the socket only if the connection wants bytes, and while the client reads."""
        if self._closing or self._lost:
            return
        waits = self._paused or bool(self._rest) or self._raw.get_write_buffer_size() > UNSENT_BYTES_MAX
        if waits and not self._raw_paused:
            self._raw_paused = True
            self._raw.pause_reading()
        elif not waits and self._raw_paused:
            self._raw_paused = False
            self._raw.resume_reading()

    def _read_soon(self) -> None:
        if not self._reads_soon:
            self._reads_soon = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._reads_soon = False
        if self._shaken and not (self._paused or self._lost or self._closing):
            self._read()
        if self._rest and not (self._paused or self._lost or self._closing):
            self._take(memoryview(self._rest))
            self._regulate()

    # --- the connection's transport -------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._tls.context
        if name == "socket":
            return None
        return self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are set once, as the connection wants them."""

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def write(self, data: bytes | memoryview) -> None:
        """Encrypt and send. ``data`` is the caller's again afterwards."""
        if self._closing or self._lost or self._broken:
            return
        view = memoryview(data)
        position, end = 0, len(view)
        write = self._tls.write
        try:
            while position < end:
                position += write(view[position:] if position else view)
        except ssl.SSLError:
            self.abort()  # the client has ended TLS
            return
        self._send()

    def _send(self) -> None:
        data = self._outgoing.read()
        if data:
            self._raw.write(data)

    def pause_reading(self) -> None:
        self._paused = True
        self._regulate()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            # Bytes that were decrypted and not taken are inside of OpenSSL: no event of the socket will tell of it.
            self._read_soon()

    def close(self) -> None:
        """Say that this is the end, and close once everything is written."""
        if self._closing or self._lost:
            return
        self._closing = True
        with suppress(ssl.SSLError):  # it has only sent its own word, and does not wait for the client's
            self._tls.unwrap()
        self._send()
        self._raw.close()

    def write_eof(self) -> None:
        """Say that this is the end, and read on."""
        if self._closing or self._lost:
            return
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        self._send()

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._raw.abort()


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_message:
        return error.verify_message
    return (error.reason or str(error)).replace("_", " ").lower()


def scratch() -> memoryview:
    """A buffer for ``TlsServer.tls_scratch``."""
    return memoryview(bytearray(SCRATCH_BYTES))
