"""HTTPS: the certificate of the HTTP process, and its connections.

TLS is that of the Kafka listeners (``app/transport/tls.py``), so unfinished handshakes have a deadline and a limit. The loop's own
TLS would report a client only after its handshake. Nothing here is imported without a certificate.

Tests: ``tests/http/test_https.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

from app.core.errors import ConfigError
from app.core.faults import Faults
from app.core.limits import KIB
from app.core.log_events import Event
from app.core.metrics import Labels, Registry
from app.http.connections import HttpConnection, OpenConnections
from app.machine.certificates import Certificates, TlsSettings
from app.transport.arrivals import Arrivals
from app.transport.tls import Inner, TlsLink, scratch

LOOK_S: Final = 5.0
"""How often files of certificates are looked at."""
PLAIN_BYTES: Final = 64 * KIB
"""One read of decrypted bytes."""


class HttpTls:
    """The TLS of the process's connections. Belongs to one loop."""

    def __init__(self, settings: TlsSettings, door: OpenConnections, *, handshakes_max: int) -> None:
        """Raises: ConfigError if the certificate cannot be used."""
        self._certificates = Certificates(settings, server=True)
        self._door = door
        self.arrivals = Arrivals(arrivals_max=handshakes_max, timeout_ms=door.limits.header_timeout_ms)
        self.tls_scratch = scratch()
        self._plain = memoryview(bytearray(PLAIN_BYTES))

    def register(self, registry: Registry) -> None:
        registry.gauge(
            "firn_certificate_expiry_timestamp_seconds", "When a listener's certificate ends, in Unix time", self._ends
        )

    def _ends(self) -> Iterator[tuple[Labels, float]]:
        ends_s = self._certificates.expires_s
        if ends_s is not None:
            yield (("listener", "HTTPS"),), ends_s

    def admit(self, connection: Inner, transport: asyncio.BaseTransport, ends: TlsLink[Any]) -> bool:
        """Handshakes are limited by ``arrivals``, connections by their ``OpenConnections`` afterwards."""
        return True

    def lost(self, connection: Inner) -> None:
        """Do nothing: a connection is not counted before its handshake."""

    def handshake_failed(self, listener: str, host: str, why: str) -> None:
        """Counted only, not logged: any client can cause it."""
        self._door.count_closed("tls_handshake")

    def tls_broken(self, host: str, why: str) -> None:
        """Counted only, too."""
        self._door.count_closed("malformed")

    def around(self, make: Callable[..., HttpConnection]) -> Callable[..., asyncio.BaseProtocol]:
        """A factory of connections for uvicorn: those of ``make``, with TLS."""

        def connection(**more: Any) -> asyncio.BaseProtocol:
            inner = _Decrypted(make(**more), self._plain)
            return TlsLink(self, self._certificates.context, inner, lambda _, arrival: arrival.over())

        return connection

    async def run(self, faults: Faults, log_line: Callable[[str], None]) -> None:
        """Use changed files for new connections, until cancelled. Open connections keep their certificate."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look(faults, log_line)

    async def look(self, faults: Faults, log_line: Callable[[str], None]) -> None:
        """Read the files again if they have changed."""
        try:
            if await asyncio.to_thread(self._certificates.look):
                log_line(
                    Event.CERTIFICATE_RELOADED.line(
                        "HTTPS has read its certificate again: new connections use it, open ones keep the old one",
                        listener="HTTPS",
                    )
                )
        except ConfigError as error:
            faults.met(
                "reading",
                "the certificate of HTTPS",
                Event.CERTIFICATE_FAILED.line(
                    f"HTTPS goes on with its old certificate: {error} Replace the file by a good one: it is read within "
                    f"{LOOK_S:g} s"
                ),
                lasting=True,
            )
        else:
            faults.over("reading", "the certificate of HTTPS")


class _Decrypted(asyncio.BufferedProtocol):
    """Hands decrypted bytes of a ``TlsLink`` on to a connection that takes bytes."""

    def __init__(self, inner: HttpConnection, buffer: memoryview) -> None:
        self._inner = inner
        self._buffer = buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)  # type: ignore[arg-type] # a TlsLink

    def connection_lost(self, exc: BaseException | None) -> None:
        self._inner.connection_lost(exc)  # type: ignore[arg-type]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._inner.data_received(bytes(self._buffer[:nbytes]))

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
