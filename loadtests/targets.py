"""What the figures are held against: one line per target, met or missed, in the words of the requirement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadtests.results import Results
from loadtests.workloads import cluster, cluster_moves, secured
from loadtests.workloads.latency import produce_at_half_of
from loadtests.workloads.produce import (
    CONNECTED,
    CONNECTED_SIZES,
    IN_FLIGHT,
    LARGE,
    MIDDLE,
    SMALL,
    connected,
    in_flight,
)

MANY = 1_000
"""From here on a figure is shown without decimals."""


@dataclass(frozen=True, slots=True)
class Target:
    """One requirement. ``value`` raises KeyError where what it needs was not measured."""

    name: str
    value: Callable[[Results], float]
    bound: float
    at_least: bool
    unit: str = "x"

    @property
    def bound_text(self) -> str:
        bound = f"{self.bound:,.0f}" if self.bound >= MANY else f"{self.bound:g}"
        return f"{'at least' if self.at_least else 'at most'} {bound} {self.unit}"

    def verdict(self, results: Results) -> Verdict | None:
        """What was measured beside the bound; None if it was not."""
        try:
            value = self.value(results)
        except KeyError:
            return None
        return Verdict(self, value, value >= self.bound if self.at_least else value <= self.bound)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured of it."""

    target: Target
    value: float
    met: bool

    @property
    def value_text(self) -> str:
        value = f"{self.value:,.0f}" if self.value >= MANY else f"{self.value:.2f}"
        return f"{value} {self.target.unit}"

    def line(self) -> str:
        word = "met" if self.met else "MISSED"
        return f"{word:<7} {self.target.name:<66} {self.value_text:>12}  ({self.target.bound_text})"


def _ratio(case: str, field: str, other: str = "Kafka", system: str = "Firn") -> Callable[[Results], float]:
    return lambda results: results.figures(case, system)[field] / results.figures(case, other)[field]


def _between(case: str, other: str, field: str) -> Callable[[Results], float]:
    return lambda results: results.figures(case, "Firn")[field] / results.figures(other, "Firn")[field]


def _value(case: str, field: str, system: str = "Firn") -> Callable[[Results], float]:
    return lambda results: results.figures(case, system)[field]


def _produce(name: str, rate: float = 1.5, cpu: float = 0.6) -> tuple[Target, ...]:
    return (
        Target(f"{name}: rate against Kafka", _ratio(name, "mb_per_s"), rate, True),
        Target(f"{name}: CPU per GB against Kafka", _ratio(name, "server_cpu_s_per_gb"), cpu, False),
    )


def _half_load() -> tuple[Target, ...]:
    """Half load is half of what either system takes flat out."""
    return tuple(
        Target(f"{case}: {word}", _value(case, field), bound, False, "ms")
        for case in (produce_at_half_of("Firn"), produce_at_half_of("Kafka"))
        for word, field, bound in (("p99", "p99_ms", 20), ("p99.9", "p999_ms", 50))
    )


def _bare_s3(case: str, what: str, bound: float) -> Target:
    """A replay beside the bare client."""
    return Target(f"{what}: rate against the bare client", _ratio(case, "mb_per_s", BARE_S3), bound, True)


def _starts() -> tuple[Target, ...]:
    names = {
        "empty": 1.0,
        "1,000 partitions, stopped in order": 2.0,
        "1,000 partitions, after kill -9": 2.0,
        "1,000 partitions, S3 at 50 ms a request": 2.0,
    }
    return tuple(
        Target(f"start to Metadata, Produce and Fetch: {name}", _value(f"start, {name}", "fetch_s"), bound, False, "s")
        for name, bound in names.items()
    )


def _to_zero_and_back() -> tuple[Target, ...]:
    case = "to zero and back, 1,000 partitions, stopped in order"
    killed = "to zero and back, 1,000 partitions, after kill -9"
    return (
        Target(f"{case}: stop", _value(case, "stop_s"), 5.0, False, "s"),
        Target(f"{case}: Fetch and Produce of all", _value(case, "produce_s"), 8.0, False, "s"),
        Target(f"{killed}: Fetch and Produce of all", _value(killed, "produce_s"), 8.0, False, "s"),
    )


def _memory(case: str, system: str = "Firn") -> Target:
    """What the broker's processes held together under a load; older results have only what the broker held when it ended."""

    def value(results: Results) -> float:
        figures = results.figures(case, system)
        return float(figures["peak_memory_mb"] if "peak_memory_mb" in figures else figures["memory_mb"])

    return Target(f"{case}: memory", value, 300, False, "MB")


def _spark() -> tuple[Target, ...]:
    def of_lower_limit(case: str) -> Callable[[Results], float]:
        limits = ("prebuilt batches", "kernel alone")
        return lambda results: (
            results.figures(case, "Firn")["records_per_s"]
            / min(results.figures(case, limit)["records_per_s"] for limit in limits)
        )

    day = "Spark, one day of many segments"
    found: list[Target] = []
    for size in (100, 1000):
        case = f"Spark, records of {size} bytes"
        found += (
            Target(f"{case}: rate against its Kafka source", _ratio(case, "records_per_s"), 3.0, True),
            Target(
                f"{case}, Spark's default settings: rate against its Kafka source",
                _ratio(case, "records_per_s", system="Firn, Spark's defaults"),
                3.0,
                True,
            ),
            Target(f"{case}: rate against the lower limit", of_lower_limit(case), 0.6, True),
            Target(f"{case}: a task's own memory", _value(case, "task_mb"), 256, False, "MB"),
            Target(f"{case}: with its libraries'", _value(case, "task_with_libraries_mb"), 256, False, "MB"),
        )
    return (
        *found,
        Target(f"{day}: planned in", _value(day, "plan_s"), 2.0, False, "s"),
        Target(f"{day}: bytes read of its own", _value(day, "bytes_read_of_range"), 1.2, False),
        Target("Spark, archive to Parquet", _value("Spark, archive", "mb_per_s"), 150, True, "MB/s"),
    )


def _replicated(name: str, rate: float, cpu: float) -> tuple[Target, ...]:
    """By requests, which are the same on both sides: few of 1 KB are no MB."""
    return (
        Target(f"{name}: rate against Kafka", _ratio(name, "requests_per_s"), rate, True),
        Target(f"{name}: CPU of all brokers against Kafka", _ratio(name, "server_cpu_us_per_request"), cpu, False),
    )


def _clusters() -> tuple[Target, ...]:
    """Three brokers against three."""
    bounds = {cluster.SMALL: (3.0, 0.5), cluster.MIDDLE: (2.0, 0.5), cluster.LARGE: (1.3, 0.9)}
    restarted = cluster.RESTARTED
    return (
        *(
            target
            for size, connections in cluster.NAMES
            for target in _replicated(cluster.replicated(size, connections), *bounds[size])
        ),
        *(
            Target(f"{name}: p99 against Kafka", _ratio(name, "p99_ms"), 1.0, False)
            for name in map(cluster.at_half, (cluster.SMALL, cluster.MIDDLE))
        ),
        *(
            Target(f"{name}: first write to the last partition", _value(name, "longest_s"), bound, False, "s")
            for name, bound in (
                (cluster.KILLED, 3.0),
                (cluster.STOPPED, 5.5),
                (cluster.BOTH, 7.0),
                (cluster.DEAD_OF_MANY, 3.0),
            )
        ),
        Target(f"{restarted}: p99.9", _value(restarted, "p999_ms"), 500, False, "ms"),
        Target(f"{restarted}: longest", _value(restarted, "max_ms"), 1_000, False, "ms"),
        Target("10 GB with a tail of 50 MB: sent", _value(cluster_moves.HISTORY, "moved_mb"), 60, False, "MB"),
        Target("100 moves: producers' rate of that alone", _value(cluster_moves.HUNDRED, "of_alone"), 0.5, True),
        Target(f"{cluster.idle_with(100)}: CPU", _value(cluster.idle_with(100), "idle_cpu_percent"), 0.5, False, "%"),
    )


def _secured() -> tuple[Target, ...]:
    """TLS and logins against Kafka with the same; rules and quotas against a broker without."""
    return (
        *(
            Target(f"{name}: rate against Kafka", _ratio(name, "requests_per_s"), 1.3, True)
            for name in map(secured.produced, (secured.ONE, secured.MANY))
        ),
        Target(f"{secured.HOT}: rate against Kafka", _ratio(secured.HOT, "mb_per_s"), 1.0, True),
        Target(f"{secured.HOT}: CPU per GB against Kafka", _ratio(secured.HOT, "server_cpu_s_per_gb"), 1.1, False),
        *(
            target
            for name in map(secured.ruled, (secured.ONE, secured.MANY))
            for target in (
                Target(f"{name}: rate against off", _ratio(name, "requests_per_s", secured.OFF), 0.95, True),
                Target(f"{name}: CPU against off", _ratio(name, "server_cpu_us_per_request", secured.OFF), 1.05, False),
            )
        ),
    )


BESIDE = "beside a cold replay, Firn"
REBALANCE = "1,000 members, a tenth replaced"
COMPACTED, COMPACTED_SMALL = "compaction, 1 KB records, 16 a batch", "compaction, 100 B records, 100 a batch"
BESIDE_COMPACTION = "producers beside compaction"
LOADING = "loading 1,000,000 offsets, {} in a batch"
ONE, BARE_S3 = "cold fetch, 1 partition", "bare obstore"
"""The bare client of S3 that Firn is held against."""

TARGETS = (
    *_produce(in_flight(SMALL, 20)),
    *_produce(in_flight(SMALL, 100), 3.0, 0.5),
    *(target for count in IN_FLIGHT for target in _produce(in_flight(MIDDLE, count))),
    *_produce(LARGE, cpu=0.5),
    *_produce(f"{LARGE}, pages as they come"),
    *(target for count in CONNECTED for label in CONNECTED_SIZES for target in _produce(connected(label, count))),
    Target("10,000 partitions: made in", _value("10,000 partitions", "create_s"), 2.0, False, "s"),
    *_half_load(),
    *(
        Target(
            f"{size}, a commit every 100 ms: rate against without transactions",
            _ratio(f"{size}, a commit every 100 ms, Firn", "mb_per_s", "idempotent", "transactional"),
            0.8,
            True,
        )
        for size in ("produce 1 KB", "produce 16 KB", "produce 1 MB")
    ),
    Target(f"{REBALANCE}: heartbeat intervals", _value(REBALANCE, "rebalance_intervals"), 3, False, "intervals"),
    Target(f"{REBALANCE}: CPU of the coordinator", _value(REBALANCE, "rebalance_cpu_s"), 5, False, "s"),
    Target("OffsetCommit of 1: a second", _value("OffsetCommit of 1", "commits_per_s"), 10_000, True, "commits"),
    *(
        Target(f"{LOADING.format(per_batch)}: time", _value(LOADING.format(per_batch), "load_s"), 3, False, "s")
        for per_batch in (1, 100)
    ),
    Target(f"{COMPACTED}: rate", _value(COMPACTED, "mb_per_s"), 200, True, "MB/s"),
    Target(
        f"{COMPACTED_SMALL}: records a second", _value(COMPACTED_SMALL, "records_per_s"), 1_000_000, True, "records"
    ),
    *(
        Target(f"{case}: memory of the cleaner process", _value(case, "memory_mb"), 128, False, "MB")
        for case in (COMPACTED, COMPACTED_SMALL)
    ),
    Target(
        f"{BESIDE_COMPACTION}: p99 against alone", _ratio(BESIDE_COMPACTION, "p99_ms", "alone", "beside"), 2.0, False
    ),
    Target("hot fetch: CPU per GB against Kafka", _ratio("hot fetch", "server_cpu_s_per_gb"), 1.0, False),
    *(
        Target(f"hot fetch{consumers}: rate against Kafka", _ratio(f"hot fetch{consumers}", "mb_per_s"), 1.0, True)
        for consumers in ("", ", 10 consumers", ", 100 consumers")
    ),
    Target(
        "hot fetch: CPU per GB against the bare pread and write loop",
        _ratio("hot fetch", "server_cpu_s_per_gb", "bare"),
        1.15,
        False,
    ),
    Target("acknowledged writes at half load: p99 against Kafka", _ratio("acknowledged at 50 %", "p99_ms"), 1.0, False),
    Target(
        "acknowledged writes at half load: p99.9 against Kafka", _ratio("acknowledged at 50 %", "p999_ms"), 0.5, False
    ),
    Target(f"{ONE}: rate against Kafka", _ratio(ONE, "mb_per_s"), 1.5, True),
    Target("cold fetch: 8 partitions against one", _between("cold fetch, 8 partitions", ONE, "mb_per_s"), 0.8, True),
    Target("cold fetch: 64 partitions against one", _between("cold fetch, 64 partitions", ONE, "mb_per_s"), 0.8, True),
    _bare_s3("S3 at 0 ms", "cold fetch from S3", 0.8),
    _bare_s3("S3 at 0 ms, 64 partitions", "cold fetch from S3, 64 partitions at once", 0.85),
    *(_bare_s3(f"S3 of {server}", f"cold fetch from {server}", 0.8) for server in ("MinIO", "s3s-fs")),
    Target(
        "cold fetch from S3: CPU per GB above the bare client's",
        lambda results: (
            results.figures("S3 at 0 ms", "Firn")["server_cpu_s_per_gb"]
            - results.figures("S3 at 0 ms", BARE_S3)["server_cpu_s_per_gb"]
        ),
        0.6,
        False,
        "s",
    ),
    Target(
        "cold fetch from S3 at 100 ms: rate against the bare client at 0 ms",
        lambda results: (
            results.figures("S3 at 100 ms", "Firn")["mb_per_s"] / results.figures("S3 at 0 ms", BARE_S3)["mb_per_s"]
        ),
        0.6,
        True,
    ),
    Target(
        "producers at half rate beside a cold replay: rate kept",
        _ratio(BESIDE, "mb_per_s", "alone", "beside"),
        0.95,
        True,
    ),
    Target(
        "producers at half rate beside a cold replay: p99 against alone",
        _ratio(BESIDE, "p99_ms", "alone", "beside"),
        2.0,
        False,
    ),
    *_starts(),
    *_to_zero_and_back(),
    *(
        _memory(case)
        for case in (
            *(in_flight(size, IN_FLIGHT[-1]) for size in (SMALL, MIDDLE)),
            LARGE,
            connected("4 KB", CONNECTED[-1]),
            "hot fetch",
            ONE,
            "cold fetch, 8 partitions",
        )
    ),
    _memory(BESIDE, "beside"),
    Target("broker, at rest", _value("at rest", "memory_mb"), 100, False, "MB"),
    Target(
        "1,000 idle connections more",
        lambda results: (
            results.figures("1,000 idle connections", "Firn")["memory_mb"]
            - results.figures("at rest", "Firn")["memory_mb"]
        ),
        50,
        False,
        "MB",
    ),
    Target("upload while producing", _value("upload while producing", "mb_per_s"), 500, True, "MB/s"),
    *_spark(),
    *_clusters(),
    *_secured(),
)


def verdicts(results: Results) -> list[Verdict]:
    """Every target that was measured."""
    return [found for target in TARGETS if (found := target.verdict(results)) is not None]
