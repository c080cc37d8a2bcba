"""What is counted of connections."""

from __future__ import annotations

from app.metrics import Counter, Registry


class ConnectionMetrics:
    """Of one server's connections."""

    def __init__(self, registry: Registry) -> None:
        self.accepted: Counter = registry.counter("firn_connections_accepted_total", "Connections accepted.")
        self.accepting_stopped: Counter = registry.counter(
            "firn_connections_full_total",
            "Times that no more connections were accepted because max.connections were open.",
        )
        self.broken: Counter = registry.counter(
            "firn_connections_malformed_total", "Connections closed because of bytes that break the protocol."
        )
        self.idle: Counter = registry.counter(
            "firn_connections_idle_closed_total", "Connections closed after connections.max.idle.ms without progress."
        )
