"""Bytes that cross from one zone to another: clouds bill them to both sides.

A broker's zone is its ``broker.rack``. A consumer names its zone with ``client.rack``. Producers of Kafka have no such setting, so
they may name the zone in their client id, and so may consumers without ``client.rack``. A client id consists of parts, separated by
``,``, ``;`` or ``&``. The zone stands in a part behind ``zone_id=``, or behind the name that other systems use: ``ws_az=``
(WarpStream), ``zone=`` (Bufstream), ``automq_az=`` (AutoMQ), ``diskless_az=`` (Aiven). Bytes of clients that name no zone are not
counted here.

Tests: ``tests/broker/test_zones.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from app.core.metrics import Counter, Registry
from app.wire.produce import ProduceRequest

CLIENTS_MAX: Final = 10_000
"""Client ids whose zones are remembered."""
_PARTS: Final = re.compile(r"[,;&]")
_NAMES: Final = frozenset({"zone_id", "ws_az", "zone", "automq_az", "diskless_az"})


def zone_of(client_id: str) -> str:
    """The zone that a client id names; empty if it names none."""
    for part in _PARTS.split(client_id):
        name, _, value = part.partition("=")
        if value and name.strip() in _NAMES:
            return value.strip()
    return ""


class ZoneMeter:
    """Counts the bytes that a broker in a zone sends to clients and brokers, and receives from them."""

    def __init__(self, registry: Registry, zone: str) -> None:
        self._zone = zone
        self._in = _both(registry, "in")
        self._out = _both(registry, "out")
        self._replication = _both(registry, "replication")
        self._zones: dict[str, str] = {}
        """Zones by client id."""

    def produced(self, client_id: str | None, size_bytes: int) -> None:
        """Count bytes of records from a producer."""
        self._count(self._in, self._zone_of(client_id), size_bytes)

    def consumed(self, client_id: str | None, rack: str, size_bytes: int) -> None:
        """Count bytes of records to a consumer. ``rack``: its ``client.rack``; empty if it has none."""
        self._count(self._out, rack or self._zone_of(client_id), size_bytes)

    def replicated(self, rack: str | None, size_bytes: int) -> None:
        """Count bytes of records to a follower on this rack."""
        self._count(self._replication, rack or "", size_bytes)

    def counted(self) -> dict[tuple[str, str], float]:
        """Bytes so far by (direction, ``same`` or ``other``)."""
        directions = {"in": self._in, "out": self._out, "replication": self._replication}
        return {
            (direction, zone): counter.value
            for direction, counters in directions.items()
            for zone, counter in zip(("same", "other"), counters, strict=True)
        }

    def _count(self, counters: tuple[Counter, Counter], zone: str, size_bytes: int) -> None:
        if zone:
            counters[zone != self._zone].value += size_bytes

    def _zone_of(self, client_id: str | None) -> str:
        if not client_id:
            return ""
        found = self._zones.get(client_id)
        if found is None:
            if len(self._zones) >= CLIENTS_MAX:
                self._zones.clear()
            found = self._zones[client_id] = zone_of(client_id)
        return found


def record_bytes(request: ProduceRequest) -> int:
    """Bytes of records that a request brings."""
    return sum(len(records) for _, records in _records(request) if records is not None)


def _records(request: ProduceRequest) -> Iterable[tuple[int, memoryview | None]]:
    for _, partitions in request.topics:
        yield from partitions


def _both(registry: Registry, direction: str) -> tuple[Counter, Counter]:
    """(bytes within the zone, bytes from or to another one)"""
    text = "Bytes of record batches by whether they crossed from one zone to another, as far as both zones are known."
    same, other = (
        registry.counter("firn_zone_bytes_total", text, direction=direction, zone=zone) for zone in ("same", "other")
    )
    return same, other
