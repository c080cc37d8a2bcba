"""The Kafka listeners of a broker. Tests: ``tests/handlers/test_connection.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from app.handlers.base.api import Api
from app.handlers.base.context import Context
from app.handlers.clients.client import Service
from app.handlers.clients.produce_shape import ProduceShapes
from app.handlers.policy.callers import PLAINTEXT
from app.handlers.produce.gathering import Gathering
from app.handlers.produce.produce import PRODUCE
from app.handlers.serving.session import Session
from app.handlers.state.preparations import Preparations
from app.transport.admission import AdmissionLimits
from app.transport.answers import Answers
from app.transport.connection import BROKEN, BROKEN_TOLD, Connection
from app.transport.server import ServerLimits

if TYPE_CHECKING:
    from app.handlers.serving.doors import ListenerAuthentication

HANDSHAKES: Final = "TLS handshakes of"
HANDSHAKES_TOLD: Final = 5
"""Failed handshakes of one host that are told one by one; further ones are counted."""


class KafkaServer(Service):
    """Serves the Kafka protocol to every client that connects. Belongs to one loop."""

    context: Context

    def __init__(self, context: Context, apis: Mapping[int, Api], *, connections_max: int) -> None:
        config = context.config
        super().__init__(
            ServerLimits(
                connections_max=connections_max,
                request_bytes_max=config.socket_request_max_bytes,
                frame_bytes_max=config.queued_max_request_bytes,
                send_buffer_bytes=config.socket_send_buffer_bytes,
                idle_ms_max=config.connections_max_idle_ms,
            ),
            gate=context.gate,
            replays=context.replays,
            faults=context.faults,
            pool=context.pool,
            registry=context.registry,
        )
        self.context = context
        self._doors: Mapping[str, ListenerAuthentication] = {}
        self.metrics = context.metrics
        self.produce_meter = context.metrics.meter(PRODUCE)
        self.produce_shapes = ProduceShapes()
        self.preparations = Preparations(
            context.pool,
            bytes_max=config.firn_preparation_bytes_max,
            batch_bytes_max=config.firn_decompressed_batch_bytes_max,
        )
        self.apis = apis
        context.registry.gauge(
            "firn_preparation_memory_bytes",
            "Memory claimed for produced batches that are being decompressed, checked or recompressed.",
            lambda: [((), float(self.preparations.claimed_bytes))],
        )

    def attach(self) -> None:
        super().attach()
        self.answers = Answers(self.loop)
        self.gathering = Gathering(self)

    def make(self) -> Connection:
        return Connection(self, self.new_session(PLAINTEXT))

    def new_session(self, listener: str) -> Session:
        """The protocol of a new connection to a listener without TLS and login."""
        return Session(self, listener)

    def rest_s(self, address: str) -> float:
        quotas = self.context.quotas
        return 0.0 if quotas is None else quotas.connected(address)

    def limit_connections(self, limits: AdmissionLimits) -> None:
        super().limit_connections(limits)
        if self._doors:
            self.arrivals.share(limits.connections_max)

    def secure(self, doors: Mapping[str, ListenerAuthentication]) -> None:
        """Authenticate clients of these listeners, by name, with these doors. Call it before ``listen``."""
        from app.transport.arrivals import Arrivals
        from app.transport.tls import scratch

        timeout_ms, arrivals_max, self.failure_delay_ms = self.context.config.security_numbers
        self.arrivals = arrivals = Arrivals(arrivals_max=arrivals_max, timeout_ms=timeout_ms)
        self.tls_scratch = scratch()
        self._doors = doors
        registry = self.context.registry
        registry.gauge(
            "firn_unauthenticated_connections",
            "Connections whose TLS handshake or login is not finished.",
            lambda: [((), float(len(arrivals)))],
        )
        self._handshake_failures = registry.counter(
            "firn_tls_handshake_failures_total", "TLS handshakes of clients that failed."
        )

    def handshake_failed(self, listener: str, host: str, why: str) -> None:
        self._handshake_failures.value += 1
        if self.context.audit is not None:
            self.context.audit.login_failed(listener, host, "TLS", why)
        self.faults.met(HANDSHAKES, host, f"the TLS handshake of {host} failed: {why}", burst=HANDSHAKES_TOLD)

    def tls_broken(self, host: str, why: str) -> None:
        self.connection_metrics.broken.value += 1
        self.faults.met(BROKEN, host, f"closing the connection of {host}: its TLS broke: {why}", burst=BROKEN_TOLD)

    async def close(self) -> None:
        self.stop_listening()
        if self._doors:
            self.arrivals.end_all()
        await super().close()

    def maker(self, listener: str) -> Callable[[], asyncio.BaseProtocol]:
        """Return the function that makes the protocol of each connection to a listener."""
        door = self._doors.get(listener)
        if door is not None:
            return lambda: door.make(self)
        if listener == PLAINTEXT:
            return self.make
        return lambda: Connection(self, self.new_session(listener))
