"""A workload in the terms of its operator, and the sizes that follow from it.

Tests: ``tests/cost/test_bill.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from app.core.errors import ConfigError
from app.core.limits import GIB, MIB
from app.cost.prices import SECONDS_PER_MONTH, StoreKind

HOURS_PER_DAY: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Rates are of record bytes as producers send them (after their compression), in MB/s of 10^6 bytes."""

    write_mb_per_s: float
    fan_out: float = 2.0
    """Consumers that read everything from the end of the log."""
    retention_days: float = 7.0
    replay_share: float = 0.1
    """Bytes read again from the tier, as a share of the bytes written."""
    partitions: int = 100
    segment_bytes: int = GIB
    roll_hours: float = 1.0
    """A segment is rolled at this age at the latest (``firn.tier.max.lag.ms``)."""
    local_hours: float = 1.0
    stored_share: float = 1.0
    """Bytes in the object store for each byte of records; below 1 where chunks are compressed (``firn.tier.compression``)."""
    zones: int = 3
    """Zones over which brokers and clients are spread evenly; 1 is everything in one."""
    peak: float = 2.0
    """The busiest hour divided by the average. Machines and provisioned throughput are bought for it."""

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        # Asked so that a value that is no number is refused too.
        for name, value in {
            "What is written": self.write_mb_per_s,
            "The retention": self.retention_days,
            "The number of partitions": self.partitions,
            "The size of a segment": self.segment_bytes,
            "The age at which a segment is rolled": self.roll_hours,
            "The time on the local disk": self.local_hours,
            "The share that is stored": self.stored_share,
            "The number of zones": self.zones,
        }.items():
            if not 0 < value < inf:
                raise ConfigError(f"{name} must be a number above 0.")
        for name, value in {"The fan-out": self.fan_out, "The share that is replayed": self.replay_share}.items():
            if not 0 <= value < inf:
                raise ConfigError(f"{name} must be a number, 0 or more.")
        if not 1 <= self.peak < inf:
            raise ConfigError("The peak is a multiple of the average: a number, 1 or more.")

    @property
    def gib_per_month(self) -> float:
        """GiB written in a month."""
        return self.write_mb_per_s * 1e6 * SECONDS_PER_MONTH / GIB

    @property
    def retained_gib(self) -> float:
        """GiB of records, counted once, when as much expires as comes in."""
        return self.write_mb_per_s * 1e6 * self.retention_days * HOURS_PER_DAY * 3600 / GIB

    @property
    def local_gib(self) -> float:
        """GiB of records in the hot tier, counted once: active segments, and the local retention behind them."""
        per_partition = self.local_hours * 3600 * self.partition_bytes_per_s + self.rolled_bytes
        return min(per_partition * self.partitions / GIB, self.retained_gib)

    @property
    def partition_bytes_per_s(self) -> float:
        return self.write_mb_per_s * 1e6 / self.partitions

    @property
    def rolled_bytes(self) -> float:
        """Size of a segment when it rolls: full, or old."""
        return max(1.0, min(self.segment_bytes, self.partition_bytes_per_s * self.roll_hours * 3600))

    @property
    def segments_per_month(self) -> float:
        """Segments rolled in a month, over all partitions."""
        return self.write_mb_per_s * 1e6 * SECONDS_PER_MONTH / self.rolled_bytes

    @property
    def crossing_share(self) -> float:
        """Share of the traffic between a client and a broker that crosses zones, if brokers are chosen without regard to zones."""
        return (self.zones - 1) / self.zones


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAhead:
    """How brokers keep records of topics with ``firn.durability=object`` in the bucket until their segments are there."""

    linger_ms: float = 250.0
    """``firn.wal.linger.ms``."""
    object_bytes: int = 8 * MIB
    """``wal.bytes``."""
    retention_bytes: int = GIB
    """``wal.retention.bytes`` of each broker: partitions that hold more back are rolled, and their segments are smaller then."""
    appends_per_s: float = inf
    """Produce requests of all producers. Where they are few, an object waits for the first of them. The default is the most that
    objects can come to."""
    store: StoreKind = StoreKind.S3
    """The kind of the store of the log."""
    take_overs: float = 1.0
    """How often a month the partitions of each broker go on somewhere else, or on itself after a restart."""

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        for name, value in {
            "firn.wal.linger.ms": self.linger_ms,
            "The number of take-overs": self.take_overs,
        }.items():
            if not 0 <= value < inf:
                raise ConfigError(f"{name} must be a number, 0 or more.")
        if not self.object_bytes > 0 or not self.retention_bytes > 0:
            raise ConfigError("wal.bytes and wal.retention.bytes must be above 0.")
        if not self.appends_per_s > 0:
            raise ConfigError("The number of requests of producers must be a number above 0.")


def parse_bytes(text: str) -> int:
    """``64MiB``, ``1GiB`` or plain bytes. Raises: ConfigError."""
    units = {"kib": 1024, "mib": MIB, "gib": GIB}
    lowered = text.strip().lower()
    factor = next((size for unit, size in units.items() if lowered.endswith(unit)), 1)
    number = lowered if factor == 1 else lowered[:-3]
    try:
        return int(float(number) * factor)
    except ValueError:
        raise ConfigError(f"{text!r} is no size; write 64MiB, 1GiB or a number of bytes.") from None
