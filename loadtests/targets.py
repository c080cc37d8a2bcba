"""What the figures are held against: one line per target, met or missed, in the words of the requirement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtests.measuring import Report

Results = Mapping[str, Report]


@dataclass(frozen=True, slots=True)
class Target:
    """One requirement. ``value`` raises KeyError where what it needs was not measured."""

    name: str
    value: Callable[[Results], float]
    bound: float
    at_least: bool
    unit: str = "x"

    def line(self, results: Results) -> str | None:
        """What was measured beside the bound; None if it was not."""
        try:
            value = self.value(results)
        except KeyError:
            return None
        met = value >= self.bound if self.at_least else value <= self.bound
        word = "at least" if self.at_least else "at most"
        verdict = "met" if met else "MISSED"
        return f"{verdict:<7} {self.name:<66} {value:>9.2f} {self.unit:<4} ({word} {self.bound:g})"


def _ratio(one: str, other: str, field: str) -> Callable[[Results], float]:
    return lambda results: results[one][field] / results[other][field]


def _value(one: str, field: str) -> Callable[[Results], float]:
    return lambda results: results[one][field]


def _against_kafka(name: str, rate: float) -> Target:
    return Target(f"{name}: rate against Kafka", _ratio(f"{name}, Firn", f"{name}, Kafka", "mb_per_s"), rate, True)


def _starts() -> list[Target]:
    names = {
        "empty": 1.0,
        "1,000 partitions, stopped in order": 2.0,
        "1,000 partitions, after kill -9": 2.0,
        "1,000 partitions, S3 at 50 ms a request": 2.0,
    }
    return [
        Target(f"start to Metadata, Produce and Fetch: {name}", _value(f"start, {name}", "fetch_s"), bound, False, "s")
        for name, bound in names.items()
    ]


BESIDE = "beside a cold replay"

TARGETS = (
    _against_kafka("produce 1 KB", 2.0),
    Target(
        "produce 1 KB: CPU a request against Kafka",
        _ratio("produce 1 KB, Firn", "produce 1 KB, Kafka", "server_cpu_us_per_request"),
        0.5,
        False,
    ),
    _against_kafka("produce 16 KB", 1.4),
    _against_kafka("produce 1 MB", 1.2),
    Target(
        "hot fetch: CPU per GB against the bare pread and write loop",
        _ratio("hot fetch, Firn", "hot fetch, bare", "server_cpu_s_per_gb"),
        1.15,
        False,
    ),
    _against_kafka("cold fetch, 1 partition", 1.5),
    Target(
        "cold fetch: eight partitions against one",
        _ratio("cold fetch, 8 partitions, Firn", "cold fetch, 1 partition, Firn", "mb_per_s"),
        0.8,
        True,
    ),
    Target(
        "producers at half rate beside a cold replay: rate kept",
        _ratio(f"{BESIDE}, beside", f"{BESIDE}, alone", "mb_per_s"),
        0.95,
        True,
    ),
    Target(
        "producers at half rate beside a cold replay: p99 against alone",
        _ratio(f"{BESIDE}, beside", f"{BESIDE}, alone", "p99_ms"),
        2.0,
        False,
    ),
    *_starts(),
    Target("broker, idle", _value("memory, idle", "idle_mb"), 100, False, "MB"),
    Target("1,000 idle connections more", _value("memory, idle", "connections_mb"), 50, False, "MB"),
    Target("broker at its highest under these loads", _value("memory, loaded, Firn", "peak_mb"), 300, False, "MB"),
    Target("upload while producing", _value("upload while producing", "mb_per_s"), 500, True, "MB/s"),
)


def report(results: Results) -> str:
    """The table of every target that was measured."""
    return "\n".join(line for target in TARGETS if (line := target.line(results)) is not None)
