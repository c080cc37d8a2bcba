"""The metrics that clients push, and the order in which pushes are read.

Tests: ``tests/handlers/test_telemetry.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from app.configs import BrokerConfig
from app.core.loop_time import loop_time_s
from app.core.metrics import Labels, Registry, SampleBlock
from app.telemetry.clients import PushingClients
from app.telemetry.series import PREFIX


class Telemetry:
    """The clients that push, and the one push that is being read."""

    def __init__(self, config: BrokerConfig) -> None:
        self.clients = PushingClients(
            bytes_max=config.telemetry_max_bytes,
            series_max=config.firn_telemetry_series_max,
            client_series_max=config.firn_telemetry_client_series_max,
        )
        self.reading = asyncio.Lock()
        """Held by the push that is being read."""
        self.waiting = 0
        """Pushes that are being read or wait for it."""

    def show(self, registry: Registry) -> None:
        """Show the metrics of clients, and of how they are taken, beside those of the broker."""
        clients = self.clients
        registry.gauge(
            "firn_telemetry_clients", "Clients that were heard lately (KIP-714).", lambda: [((), float(len(clients)))]
        )
        registry.gauge(
            "firn_telemetry_series",
            "Time series of clients' metrics that are shown.",
            lambda: [((), float(clients.series_count))],
        )
        text = (
            "Points of clients' metrics that were not wanted, cannot be shown, or are beyond firn.telemetry.series.max."
        )
        registry.describe("firn_telemetry_points_dropped_total", "counter", text)
        registry.describe("firn_telemetry_pushes_total", "counter", "Pushes of clients' metrics, by outcome.")
        registry.source(self._counts)
        registry.foreign(self._of_clients, PREFIX)

    def _counts(self) -> Iterator[tuple[str, Labels, float]]:
        yield "firn_telemetry_points_dropped_total", (), float(self.clients.dropped_points)
        for outcome, count in self.clients.pushes.items():
            yield "firn_telemetry_pushes_total", (("outcome", outcome),), float(count)

    def _of_clients(self) -> Iterator[SampleBlock]:
        self.clients.expire(loop_time_s())
        yield from self.clients.shown()
