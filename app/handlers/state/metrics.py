"""Requests, bytes and latency by API, which connections count while they serve.

Tests: ``tests/broker/test_refusals.py``, ``tests/handlers/test_produce.py``.
"""

from __future__ import annotations

from bisect import bisect_left

from app.core.metrics import Counter, Histogram, Registry
from app.handlers.state.zones import ZoneMeter
from app.wire.apikeys import ApiKey


class ApiMeter:
    """The counters of one API."""

    __slots__ = ("errors", "latency", "request_bytes", "requests", "response_bytes")

    def __init__(self, registry: Registry, name: str) -> None:
        self.requests = registry.counter("firn_requests_total", "Requests received, by API.", api=name)
        self.errors = registry.counter(
            "firn_request_errors_total", "Requests refused as a whole or cut off, by API.", api=name
        )
        self.request_bytes = registry.counter("firn_request_bytes_total", "Bytes of request frames, by API.", api=name)
        self.response_bytes = registry.counter(
            "firn_response_bytes_total", "Bytes of response frames, by API.", api=name
        )
        self.latency: Histogram = registry.histogram(
            "firn_request_seconds",
            "Time from the arrival of the whole request until its response is given to the socket.",
            api=name,
        )

    def observe(self, seconds: float, count: int) -> None:
        """``count`` requests took ``seconds`` each."""
        latency = self.latency
        latency.counts[bisect_left(latency.bounds, seconds)] += count
        latency.total += seconds * count


class ApiMetrics:
    """Meters of every API, made on first use, and the totals of records and bytes that people watch."""

    def __init__(self, registry: Registry, zone: str | None = None) -> None:
        """``zone``: of the broker; None if it is not known."""
        self.zones = ZoneMeter(registry, zone) if zone else None
        """Counts the bytes that cross zones; None if this broker's zone is not known."""
        self._registry = registry
        self._meters: dict[int, ApiMeter] = {}
        self._unknown: ApiMeter | None = None
        """The one meter of all API keys that do not exist: a peer may send 65,000 of them."""
        self.bytes_in: Counter = registry.counter(
            "firn_bytes_in_total", "Bytes of record batches appended by producers."
        )
        self.records_in: Counter = registry.counter("firn_records_in_total", "Records appended by producers.")
        self.bytes_out: Counter = registry.counter("firn_bytes_out_total", "Bytes of record batches sent to consumers.")
        self.records_out: Counter = registry.counter(
            "firn_records_out_total",
            "Records sent to consumers, counted by offset, so markers and records that compaction removed count too.",
        )
        self.replication_bytes_out: Counter = registry.counter(
            "firn_replication_bytes_out_total", "Bytes of record batches sent to followers."
        )
        self.produce_errors: Counter = registry.counter(
            "firn_produce_partition_errors_total", "Partitions of Produce requests whose response was an error."
        )

    def refused_sequences(self, reason: str) -> Counter:
        """``reason``: one of few."""
        return self._registry.counter(
            "firn_refused_sequences_total",
            "Batches of idempotent producers that were refused for their sequence or epoch, by reason; held: an earlier one is "
            "to be retried first.",
            reason=reason,
        )

    def meter(self, api_key: int) -> ApiMeter:
        found = self._meters.get(api_key)
        if found is None:
            try:
                name: str | None = ApiKey(api_key).name.lower()
            except ValueError:
                name = PRIVATE_NAMES.get(api_key)
            if name is None:
                if self._unknown is None:
                    self._unknown = ApiMeter(self._registry, "unknown")
                return self._unknown
            found = self._meters[api_key] = ApiMeter(self._registry, name)
        return found


PRIVATE_NAMES = {
    20000: "firn_metrics",
    20001: "firn_tier_status",
    20002: "firn_tier_segments",
    20003: "firn_tier_replace",
    20004: "firn_place",
    20005: "firn_drain",
    20006: "firn_entries",
    20007: "firn_heard",
    20008: "firn_register",
    20009: "firn_change",
    20010: "firn_manifests",
    20011: "firn_transactions",
    20012: "firn_hold",
    20013: "firn_pulse",
    20016: "firn_topics",
    20018: "firn_topic_lags",
    20020: "firn_cluster",
    20021: "firn_forwarded",
}
