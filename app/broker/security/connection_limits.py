"""How many connections the servers of a broker admit, as its settings say."""

from __future__ import annotations

from app.configs import BrokerConfig
from app.configs.connection_limits import by_listener, connections_by_address
from app.transport.admission import AdmissionLimits


def admission_limits(broker: BrokerConfig, descriptors_max: int) -> AdmissionLimits:
    """How many connections a broker has, and how many a second. ``descriptors_max``: files and sockets that it may have open."""
    bearable = max(16, descriptors_max // 2)
    return AdmissionLimits(
        connections_max=min(broker.max_connections, bearable),
        protected=broker.inter_broker_listener if len(broker.served) > 1 else None,
        protected_max=bearable,
        of_listener=by_listener(broker, "max.connections"),
        of_address=broker.max_connections_per_ip,
        of_addresses=connections_by_address(broker.max_connections_per_ip_overrides),
        rate=broker.max_connection_creation_rate,
        rates=by_listener(broker, "max.connection.creation.rate"),
        window_s=broker.quota_window_size_seconds,
    )
