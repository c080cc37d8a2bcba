"""``make bench``: Firn against Apache Kafka and against bare limits, alternating within one run.

The system under test runs on core 0, the load on core 1. Every figure is the median of the rounds of this run; ratios are
between medians of the same run. A peer that is not there is a line in the report, not a failure.

    python -m loadtests [--quick] [--only produce,fetch,cold] [--directory DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from loadtests.bare_limits import page_cache_write
from loadtests.firn_peer import FirnPeer, firn_running
from loadtests.kafka_peer import KafkaPeer, PeerMissing, kafka_running

SERVER_CORE = 0
LOAD_CORE = 1
GENERATOR = Path(__file__).parent / "raw_load.py"

Peer = FirnPeer | KafkaPeer
Report = dict[str, Any]

PRODUCE_SIZES = {
    "produce 1 KB": (1_000, 8, 20),
    "produce 16 KB": (16_384, 140, 10),
    "produce 1 MB": (1_000_000, 950, 3),
}
"""Name to bytes of a batch, records in it, requests in flight."""


def generate(peer: Peer, work: str, topic: str, **options: object) -> Report:
    """One run of the raw load generator against ``peer``, on the load's core."""
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    flags = [flag for flag in flags if flag != "True"]
    command = [sys.executable, str(GENERATOR), work, "--host", peer.host, "--port", str(peer.port), "--topic", topic]
    done = subprocess.run(
        [*command, "--cpu", str(LOAD_CORE), "--server-pid", str(peer.pid), *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{work} on {topic}: {done.stderr.strip()[-400:]}")
    report: Report = json.loads(done.stdout)
    return report


def make_topic(peer: Peer, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)])[
        topic
    ].result(30)
    time.sleep(0.5)


def median(rounds: list[Report]) -> Report:
    """Medians of the numbers of several rounds, with the spread of the main one."""
    out: Report = {}
    for key, value in rounds[0].items():
        if isinstance(value, (int, float)):
            out[key] = statistics.median(r[key] for r in rounds)
    rates = sorted(r["mb_per_s"] for r in rounds)
    out["mb_per_s_spread"] = [rates[0], rates[-1]]
    return out


def alternate(peers: dict[str, Peer], rounds: int, run: Callable[[Peer], Report]) -> dict[str, Report]:
    """Run each peer in turn, ``rounds`` times."""
    found: dict[str, list[Report]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, peer in peers.items():
            found[name].append(run(peer))
    return {name: median(reports) for name, reports in found.items()}


def measure_produce(peers: dict[str, Peer], rounds: int, seconds: float) -> dict[str, dict[str, Report]]:
    results = {}
    for name, (batch_bytes, records, pipeline) in PRODUCE_SIZES.items():
        topic = name.replace(" ", "-")
        for peer in peers.values():
            make_topic(peer, topic)
        options = {"batch_bytes": batch_bytes, "records": records, "pipeline": pipeline, "idempotent": True}
        for peer in peers.values():
            generate(peer, "produce", topic, seconds=seconds, warm_up=2, **options)
        results[name] = alternate(
            peers,
            rounds,
            lambda peer, topic=topic, options=options: generate(  # type: ignore[misc]
                peer, "produce", topic, seconds=seconds, warm_up=0.5, **options
            ),
        )
        show(name, results[name])
    return results


def measure_hot_fetch(peers: dict[str, Peer], rounds: int, seconds: float) -> dict[str, dict[str, Report]]:
    for peer in peers.values():
        make_topic(peer, "hot")
        generate(peer, "produce", "hot", batch_bytes=100_000, records=100, pipeline=3, seconds=3, warm_up=0)
    results = {
        "hot fetch": alternate(
            peers, rounds, lambda peer: generate(peer, "fetch", "hot", max_bytes=1 << 20, seconds=seconds, warm_up=0.5)
        )
    }
    show("hot fetch", results["hot fetch"])
    return results


def measure_bare_send(directory: Path, rounds: int) -> Report:
    """The bare pread and write loop: MB/s and CPU seconds per GB."""
    path = directory / "bare-send"
    path.write_bytes(os.urandom(1 << 20) * 256)
    command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "loadtests.bare_limits", "send", str(path)]
    os.sched_setaffinity(0, {LOAD_CORE})
    buffer = bytearray(4 << 20)
    found: list[Report] = []
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent) as server:
            assert server.stdout is not None
            with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as connection:
                for _ in range(rounds + 1):
                    before, started = _cpu_seconds(server.pid), time.perf_counter()
                    total = 0
                    for _ in range(4):
                        connection.sendall(b"x")
                        left = 256 << 20
                        while left:
                            left -= connection.recv_into(buffer, min(left, len(buffer)))
                        total += 256 << 20
                    seconds = time.perf_counter() - started
                    spent = _cpu_seconds(server.pid) - before
                    found.append({"mb_per_s": total / seconds / 1e6, "server_cpu_s_per_gb": spent / total * 1e9})
    finally:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        path.unlink()
    return median(found[1:])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def local_bytes(directory: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in directory.glob(f"{topic}-*/*.log"))


def measure_cold_fetch(
    peers: dict[str, Peer], directories: dict[str, Path], rounds: int, quick: bool
) -> dict[str, dict[str, Report]]:
    """One partition and eight, read from the tier with no local copy but the active segment's."""
    results = {}
    for partitions in (1, 8):
        topic = f"cold-{partitions}"
        for name, peer in peers.items():
            make_topic(
                peer,
                topic,
                partitions,
                segment_bytes=str(64 << 20),
                remote_storage_enable="true",
                local_retention_ms="1000",
                retention_ms="-1",
            )
            seconds = 3 if quick else 8
            generate(peer, "produce", topic, batch_bytes=100_000, records=100, pipeline=3, seconds=seconds, warm_up=0)
            deadline = time.monotonic() + 120
            while local_bytes(directories[name], topic) > partitions * (64 << 20) and time.monotonic() < deadline:
                time.sleep(0.5)
        results[f"cold fetch, {partitions} partition{'s' * (partitions > 1)}"] = alternate(
            peers,
            rounds,
            lambda peer, topic=topic: generate(  # type: ignore[misc]
                peer, "fetch", topic, max_bytes=1 << 20, seconds=6 if quick else 10, warm_up=0.5
            ),
        )
        show(topic, results[f"cold fetch, {partitions} partition{'s' * (partitions > 1)}"])
    return results


def show(name: str, reports: dict[str, Report]) -> None:
    """A line per system, and the ratio of the first to each other."""
    first = next(iter(reports.values()))
    for system, report in reports.items():
        line = f"{name:<26} {system:<6} {report['mb_per_s']:>8.1f} MB/s"
        if "requests_per_s" in report:
            line += f" {report['requests_per_s']:>9,.0f} requests/s"
        if "server_cpu_us_per_request" in report:
            line += f" {report['server_cpu_us_per_request']:>9.1f} µs CPU each"
        line += f" {report['server_cpu_s_per_gb']:>6.2f} s CPU/GB"
        if "p99_ms" in report:
            line += f"  p50 {report['p50_ms']:.2f}  p99 {report['p99_ms']:.2f}  p99.9 {report['p999_ms']:.2f} ms"
        if report is not first:
            line += f"   Firn is {first['mb_per_s'] / report['mb_per_s']:.2f} x"
            line += f" at {first['server_cpu_s_per_gb'] / max(report['server_cpu_s_per_gb'], 1e-9):.2f} x the CPU"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--only", default="produce,fetch,cold", help="which groups, separated by commas")
    parser.add_argument("--directory", type=Path, help="where the systems keep their data (a temporary folder)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    arguments = parser.parse_args()
    groups = set(arguments.only.split(","))
    rounds, seconds = (2, 2.0) if arguments.quick else (5, 4.0)
    base = arguments.directory or Path(tempfile.mkdtemp(prefix="firn-bench-"))
    base.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "kernel": os.uname().release}}
    try:
        new, warm = page_cache_write(base, 256 << 20)
        results["page-cache write"] = {"new pages MB/s": round(new), "warm pages MB/s": round(warm)}
        print(f"page-cache write           {new:,.0f} MB/s on new pages, {warm:,.0f} MB/s on warm ones", flush=True)
        bare = measure_bare_send(base, rounds)
        results["bare send"] = bare
        show("bare pread and write", {"bare": bare})
        with ExitStack() as stack:
            quick_tier = {"remote.log.manager.task.interval.ms": "1000", "log.retention.check.interval.ms": "1000"}
            peers: dict[str, Peer] = {
                "Firn": stack.enter_context(firn_running(base / "firn", cores=str(SERVER_CORE), settings=quick_tier))
            }
            directories = {"Firn": base / "firn" / "data", "Kafka": base / "kafka" / "logs"}
            try:
                peers["Kafka"] = stack.enter_context(kafka_running(base / "kafka", core=SERVER_CORE, tiered=True))
            except PeerMissing as missing:
                print(f"Apache Kafka is left out: {missing}", flush=True)
            results["start to first connection, s"] = {name: round(peer.start_s, 2) for name, peer in peers.items()}
            print(
                "start to first connection  " + ", ".join(f"{n} {p.start_s:.2f} s" for n, p in peers.items()),
                flush=True,
            )
            if "produce" in groups:
                results |= measure_produce(peers, rounds, seconds)
            if "fetch" in groups:
                results |= measure_hot_fetch(peers, rounds, seconds)
            if "cold" in groups:
                results |= measure_cold_fetch(peers, directories, rounds, arguments.quick)
    finally:
        if arguments.directory is None:
            shutil.rmtree(base, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
