"""Counters of connections. Tests: ``tests/handlers/test_connection.py``."""

from __future__ import annotations

from app.core.metrics import Counter, Registry


class ConnectionMetrics:
    """Of one server's connections."""

    def __init__(self, registry: Registry) -> None:
        self.accepted: Counter = registry.counter("firn_connections_accepted_total", "Connections accepted.")
        self.accepting_stopped: Counter = registry.counter(
            "firn_connections_full_total",
            "Times that a listener stopped accepting because it had as many connections, or as many a second, as it may.",
        )
        self.of_address: Counter = registry.counter(
            "firn_connections_refused_total",
            "Connections closed because their address has or opens too many.",
            limit="max.connections.per.ip",
        )
        self.too_soon: Counter = registry.counter(
            "firn_connections_refused_total",
            "Connections closed because their address has or opens too many.",
            limit="connection_creation_rate",
        )
        self.made_room: Counter = registry.counter(
            "firn_connections_made_room_total",
            "Connections of clients closed because a broker connected when max.connections were open, or the limit was lowered.",
        )
        self.broken: Counter = registry.counter(
            "firn_connections_malformed_total",
            "Connections closed because their bytes broke the protocol, or their TLS broke after its handshake.",
        )
        self.unfinished: Counter = registry.counter(
            "firn_connections_unfinished_closed_total",
            "Connections closed in the middle of a request, because others waited for the memory that it kept.",
        )
        self.idle: Counter = registry.counter(
            "firn_connections_idle_closed_total", "Connections closed after connections.max.idle.ms without progress."
        )
