"""Produce to a topic of object durability beside one of `memory`, on brokers of one age, alternating.

    python -m loadtests.object_produce [--delay-ms 30] [--rounds 5] [--seconds 4] [--connections 4]

Requests of 16 KB, idempotent, acks=all. The store of both brokers is an S3 stand-in that waits before every answer and keeps only
the ends of objects of the write-ahead log. Nothing is tiered meanwhile. The brokers with their store processes have one core, the
load and the stand-in the other. Prints medians over the rounds: MB/s, latencies, and the CPU of the broker's processes per GB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.firn_peer import firn_running
from loadtests.measuring import ROOT, Report, make_topic
from loadtests.processes import family_cpu_seconds
from loadtests.start_up import S3_ENVIRONMENT, s3_url, slow_s3
from loadtests.system import System

REQUEST_BYTES, RECORDS = 16_384, 140
WARM_UP_S = 1.0
BROKER_CORE, LOAD_CORE = "0", "1"
OBJECT = {"firn.ephemeral": "true", "node.id": "auto", "wal.retention.bytes": str(1 << 40)}
"""Beyond a GiB, the default, partitions would roll and tier here, and those in memory would not."""
QUIET = {"firn_tier_max_lag_ms": "3600000", "segment_bytes": "1073741824"}


@contextmanager
def two_brokers(base: Path, delay_ms: float) -> Iterator[dict[str, System]]:
    """One that writes to its write-ahead log, and one that writes to its disk alone."""
    with (
        slow_s3(base / "s3-object", delay_ms, discard="wal/") as first,
        slow_s3(base / "s3-memory", delay_ms) as second,
        firn_running(
            base / "object", cores=BROKER_CORE, settings=OBJECT, store=s3_url(first), environment=S3_ENVIRONMENT
        ) as in_log,
        firn_running(base / "memory", cores=BROKER_CORE, store=s3_url(second), environment=S3_ENVIRONMENT) as in_memory,
    ):
        yield {"object": in_log, "memory": in_memory}


def one_run(system: System, topics: list[str], in_flight: int, rate: float, seconds: float) -> Report:
    """All connections at once, each to a topic of its own."""
    before = family_cpu_seconds(system.pid)
    loads = [
        subprocess.Popen(
            [
                *("taskset", "-c", LOAD_CORE, sys.executable, "loadtests/raw_load.py", "produce"),
                *("--port", str(system.port), "--topic", topic, "--batch-bytes", str(REQUEST_BYTES)),
                *("--records", str(RECORDS), "--pipeline", str(in_flight), "--seconds", str(seconds), "--idempotent"),
                *("--warm-up", str(WARM_UP_S), "--rate", str(rate)),
            ],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for topic in topics
    ]
    found = [json.loads(load.communicate()[0]) for load in loads]
    cpu_s = family_cpu_seconds(system.pid) - before
    gigabytes = sum(one["mb_per_s"] for one in found) / 1000 * seconds * (1 + WARM_UP_S / seconds)
    return {
        "mb_per_s": sum(one["mb_per_s"] for one in found),
        "p50_ms": statistics.median(one["p50_ms"] for one in found),
        "p99_ms": max(one["p99_ms"] for one in found),
        "cpu_s_per_gb": cpu_s / gigabytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=4)
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp())
    topics = [f"t{number}" for number in range(arguments.connections)]
    cases = {
        "object, as fast as it goes": ("object", 900, 0.0),
        "object, 1,000 requests a second in all": ("object", 900, 1000 / arguments.connections),
        "memory": ("memory", 100, 0.0),
    }
    results: dict[str, list[Report]] = {name: [] for name in cases}
    try:
        with two_brokers(base, arguments.delay_ms) as systems:
            for system in systems.values():
                for topic in topics:
                    make_topic(system, topic, 1, **QUIET)
            for number in range(arguments.rounds + 1):
                for name, (which, in_flight, rate) in cases.items():
                    report = one_run(systems[which], topics, in_flight, rate, arguments.seconds)
                    if number:  # the first one touches memory for the first time
                        results[name].append(report)
                        print(name, {key: round(value, 1) for key, value in report.items()}, flush=True)
        for name, reports in results.items():
            print("median", name, {key: round(statistics.median(one[key] for one in reports), 1) for key in reports[0]})
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
