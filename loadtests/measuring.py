"""What all workloads share: running the generator, medians, turns, and what /proc says of a process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from loadtests.firn_peer import FirnPeer
from loadtests.kafka_peer import KafkaPeer

SERVER_CORE = 0
LOAD_CORE = 1
GENERATOR = Path(__file__).parent / "raw_load.py"
ROOT = Path(__file__).parent.parent

Peer = FirnPeer | KafkaPeer
Report = dict[str, Any]


class LoadFailed(Exception):
    """The generator ended with an error."""


def start_generator(
    peer: Peer, work: str, topic: str, *, core: int = LOAD_CORE, **options: object
) -> subprocess.Popen[str]:
    """Start the raw load generator against ``peer``; ``core`` -1 leaves it unpinned. ``finish`` gives its report."""
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    flags = [flag for flag in flags if flag != "True"]
    command = [sys.executable, str(GENERATOR), work, "--host", peer.host, "--port", str(peer.port), "--topic", topic]
    return subprocess.Popen(
        [*command, "--cpu", str(core), "--server-pid", str(peer.pid), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(generator: subprocess.Popen[str]) -> Report:
    """Wait for a generator. Raises: LoadFailed."""
    out, trouble = generator.communicate()
    if generator.returncode != 0:
        raise LoadFailed(f"{' '.join(generator.args[2:])}: {trouble.strip()[-400:]}")  # type: ignore[index, arg-type]
    report: Report = json.loads(out)
    return report


def generate(peer: Peer, work: str, topic: str, **options: object) -> Report:
    """One run of the raw load generator against ``peer``, on the load's core. Raises: LoadFailed."""
    return finish(start_generator(peer, work, topic, **options))  # type: ignore[arg-type]


def make_topic(peer: Peer, topic: str, partitions: int = 1, **config: str) -> None:
    """Create a topic; ``config`` has ``_`` for ``.``."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})  # must live until the answer is there
    admin.create_topics([wanted])[topic].result(30)


def generators(peers: Mapping[str, Peer], work: str, topic: str, **options: object) -> dict[str, Callable[[], Report]]:
    """The same run of the generator for each system, to be taken in turns."""
    return {system: partial(generate, peer, work, topic, **options) for system, peer in peers.items()}


def median(rounds: list[Report]) -> Report:
    """Medians of the numbers of several rounds, with the spread of the rates."""
    out: Report = {}
    for key, value in rounds[0].items():
        if isinstance(value, (int, float)):
            out[key] = statistics.median(r[key] for r in rounds)
    if "mb_per_s" in out:
        rates = sorted(r["mb_per_s"] for r in rounds)
        out["mb_per_s_spread"] = [rates[0], rates[-1]]
    return out


def alternate(runs: Mapping[str, Callable[[], Report]], rounds: int) -> dict[str, Report]:
    """Run each system in turn, ``rounds`` times."""
    found: dict[str, list[Report]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
    return {name: median(reports) for name, reports in found.items()}


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, what: str = "VmRSS") -> float:
    """Resident memory in MB now (``VmRSS``) or at its highest (``VmHWM``)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"no {what} of process {pid}")


def children(pid: int) -> list[int]:
    """Processes that this one has started and that still run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def show(name: str, reports: Mapping[str, Report]) -> None:
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
