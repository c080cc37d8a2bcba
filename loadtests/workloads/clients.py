"""Real clients: librdkafka through confluent-kafka, and Kafka's own ProducerPerformance and ConsumerPerformance."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from functools import partial

from loadtests.kafka_peer import PeerMissing, kafka_libs
from loadtests.lab import NOT_TIERED, Lab, WarmUp, python_on, show
from loadtests.measuring import LOAD_CORE, LoadFailed, Report, alternate, generate, make_topic
from loadtests.processes import family_cpu_seconds
from loadtests.results import Case
from loadtests.system import ROOT, System

RECORD_BYTES = 1000
PRODUCED = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\).*?([\d.]+) ms 50th, .*?([\d.]+) ms 99th, ([\d.]+) ms 99\.9th"
)
JAVA_TIMEOUT_S = 120
JAVA_RECORDS_FULL, JAVA_RECORDS_QUICK = 300_000, 20_000
WARM_UP = WarmUp(0, 2, 40.0)
"""A slice is a run of the client, which takes its own time."""
READ_MEGABYTES_FULL, READ_MEGABYTES_QUICK = 400, 40


def real(lab: Lab) -> list[Case]:
    """Records of 1,000 bytes to and from one partition; the client alone on the load's core, so it is often what is measured:
    look at the server's CPU."""
    cases = []
    with lab.systems() as systems:
        for system, peer in systems.items():
            own = NOT_TIERED.get(system, {})
            for topic in ("rdkafka", "java", "read"):
                make_topic(peer, topic, **own)
            generate(
                peer,
                "produce",
                "read",
                batch_bytes=100_000,
                records=100,
                pipeline=3,
                megabytes=_read_megabytes(lab),
                warm_up=0,
            )
        cases.append(_case(lab, "librdkafka produces", systems, partial(_rdkafka, lab, "produce", "rdkafka")))
        cases.append(_case(lab, "librdkafka consumes", systems, partial(_rdkafka, lab, "consume", "read")))
        try:
            kafka_libs()
        except PeerMissing as missing:
            lab.note(f"Kafka's own clients are left out: {missing}.")
            return cases
        tools = {"ProducerPerformance": _java_produce, "ConsumerPerformance": _java_consume}
        for tool, run in list(tools.items())[:1] if lab.quick else tools.items():
            try:
                cases.append(_case(lab, tool, systems, partial(run, lab)))
            except LoadFailed as failure:
                lab.note(f"{tool} is left out: {failure}")
    return cases


def _rate(run: Callable[[System], Report], peer: System) -> float:
    return float(run(peer)["mb_per_s"])


def _read_megabytes(lab: Lab) -> int:
    return READ_MEGABYTES_QUICK if lab.quick else READ_MEGABYTES_FULL


def _case(lab: Lab, name: str, systems: Mapping[str, System], run: Callable[[System], Report]) -> Case:
    for peer in systems.values():
        lab.warm(peer, partial(_rate, run, peer), WARM_UP)
    runs = {system: partial(run, peer) for system, peer in systems.items()}
    found = alternate(runs, lab.effort.variant_rounds, servers=systems)
    show(name, found)
    return Case(name, found)


def _rdkafka(lab: Lab, work: str, topic: str, peer: System) -> Report:
    arguments = ("--bootstrap", peer.bootstrap, "--topic", topic, "--server-pid", str(peer.pid))
    command = python_on(
        LOAD_CORE, "-m", "loadtests.client_load", work, *arguments, "--seconds", str(lab.effort.seconds)
    )
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise LoadFailed(f"librdkafka, {work} at {peer.name}: {done.stderr.strip()[-300:]}")
    report: Report = json.loads(done.stdout)
    return report


def _java(peer: System, tool: str, *arguments: str) -> tuple[str, float]:
    """What a tool printed, and the CPU seconds that the server spent meanwhile."""
    command = ["taskset", "-c", str(LOAD_CORE), "java", "-Xmx512m", "-cp", f"{kafka_libs()}/*"]
    before = family_cpu_seconds(peer.pid)
    try:
        done = subprocess.run(
            [*command, tool, *arguments], capture_output=True, text=True, check=False, timeout=JAVA_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{tool} at {peer.name} did not end within {JAVA_TIMEOUT_S} s.") from None
    if done.returncode:
        raise LoadFailed(f"{tool} at {peer.name}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout, family_cpu_seconds(peer.pid) - before


def _java_produce(lab: Lab, peer: System) -> Report:
    records = JAVA_RECORDS_QUICK if lab.quick else JAVA_RECORDS_FULL
    out, spent = _java(
        peer,
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "java", "--num-records", str(records), "--record-size", str(RECORD_BYTES), "--throughput", "-1"),
        *("--bootstrap-server", peer.bootstrap),
    )
    if not (found := PRODUCED.findall(out)):
        raise LoadFailed(f"ProducerPerformance at {peer.name} printed {out.strip()[-300:]}")
    count, rate, _, p50, p99, p999 = (float(part) for part in found[-1])
    return {
        "records_per_s": rate,
        "mb_per_s": rate * RECORD_BYTES / 1e6,
        "server_cpu_s_per_gb": spent / (count * RECORD_BYTES) * 1e9,
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
    }


def _java_consume(lab: Lab, peer: System) -> Report:
    records = _read_megabytes(lab) * 1000
    out, spent = _java(
        peer,
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", peer.bootstrap, "--topic", "read", "--num-records", str(records)),
        *("--timeout", "30000", "--hide-header"),
    )
    lines = [line.split(", ") for line in out.splitlines() if line.count(", ") >= 8]
    if not lines:
        raise LoadFailed(f"at {peer.name} it printed {out.strip()[-300:]}")
    fields = lines[-1]
    return {
        "records_per_s": float(fields[9]),
        "mb_per_s": float(fields[8]) * (1 << 20) / 1e6,
        "server_cpu_s_per_gb": spent / (float(fields[2]) * (1 << 20)) * 1e9,
    }
