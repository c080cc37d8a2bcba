"""The workloads of the laboratory: each starts what it needs, runs in turns, and answers figures.

A function here prints its lines as it goes and returns a mapping from the name of a figure to its report; what a figure is
held against is in ``targets``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.framing import request_frame
from loadtests import many_segments
from loadtests.bare_limits import touch_pages
from loadtests.firn_peer import FirnPeer, firn_running
from loadtests.measuring import (
    LOAD_CORE,
    ROOT,
    SERVER_CORE,
    Peer,
    Report,
    alternate,
    children,
    cpu_seconds,
    finish,
    generate,
    generators,
    make_topic,
    median,
    memory_mb,
    show,
    start_generator,
)
from loadtests.start_up import S3_ENVIRONMENT, first_answers, s3_url, slow_s3

Results = dict[str, Report]

PRODUCE_SIZES = {
    "produce 1 KB": (1_000, 8, 20),
    "produce 16 KB": (16_384, 140, 10),
    "produce 1 MB": (1_000_000, 950, 3),
}
"""Name to bytes of a batch, records in it, requests in flight."""

TIER_AT_ONCE = {"remote.log.manager.task.interval.ms": "1000", "log.retention.check.interval.ms": "1000"}
COLD_SEGMENT_BYTES = 32 << 20
COLD_TIMEOUT_S = 60
CONNECTIONS = 1000
API_VERSIONS = request_frame(ApiKey.API_VERSIONS, 0, 1, "idle", ApiVersionsRequest())


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often."""

    rounds: int
    seconds: float
    """Of one measured run."""
    java_warm_up_s: float
    """Kafka takes a third of its rate before Java has compiled what the workload needs."""
    cold_megabytes: int
    partitions: int
    segments: int
    """In each partition, for the start-up."""
    starts: int
    backlog_megabytes: int


FULL = Effort(5, 4.0, 15.0, 1500, 1000, 10, 5, 3000)
QUICK = Effort(2, 1.0, 4.0, 400, 100, 10, 1, 1000)


def warm_up(name: str, effort: Effort) -> float:
    return effort.java_warm_up_s if name == "Kafka" else 2.0


# --- against Kafka and bare limits ------------------------------------------------------------------------------------


def produce(peers: Mapping[str, Peer], effort: Effort) -> Results:
    """Idempotent Produce of three sizes."""
    results: Results = {}
    for name, (batch_bytes, records, pipeline) in PRODUCE_SIZES.items():
        topic = name.replace(" ", "-")
        options = {"batch_bytes": batch_bytes, "records": records, "pipeline": pipeline, "idempotent": True}
        for system, peer in peers.items():
            make_topic(peer, topic)
            generate(peer, "produce", topic, seconds=warm_up(system, effort), warm_up=0, **options)
        runs = generators(peers, "produce", topic, seconds=effort.seconds, warm_up=0.5, **options)
        found = alternate(runs, effort.rounds)
        show(name, found)
        results |= {f"{name}, {system}": report for system, report in found.items()}
    return results


def hot_fetch(peers: Mapping[str, Peer], directory: Path, effort: Effort) -> Results:
    """Fetch of what the page cache has, beside the bare pread and write loop."""
    for system, peer in peers.items():
        make_topic(peer, "hot")
        generate(peer, "produce", "hot", batch_bytes=100_000, records=100, pipeline=3, megabytes=300, warm_up=0)
        generate(peer, "fetch", "hot", seconds=warm_up(system, effort) / 2, warm_up=0)
    path = directory / "bare-send"
    path.write_bytes(os.urandom(1 << 20) * 256)
    command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "loadtests.bare_limits", "send", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as server:
        assert server.stdout is not None
        with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as connection:
            runs = generators(peers, "fetch", "hot", max_bytes=1 << 20, seconds=effort.seconds, warm_up=0.5)
            runs["bare"] = lambda: bare_send(connection, server.pid, effort.seconds)
            bare_send(connection, server.pid, 1.0)
            found = alternate(runs, effort.rounds)
    path.unlink()
    show("hot fetch", found)
    return {f"hot fetch, {system}": report for system, report in found.items()}


def bare_send(connection: socket.socket, pid: int, seconds: float) -> Report:
    """The bare pread and write loop: MB/s and CPU seconds per GB."""
    buffer = bytearray(4 << 20)
    os.sched_setaffinity(0, {LOAD_CORE})
    before, started = cpu_seconds(pid), time.perf_counter()
    total = 0
    try:
        while time.perf_counter() - started < seconds:
            connection.sendall(b"x")
            left = 256 << 20
            while left:
                left -= connection.recv_into(buffer, min(left, len(buffer)))
            total += 256 << 20
    finally:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    elapsed = time.perf_counter() - started
    spent = cpu_seconds(pid) - before
    return {"mb_per_s": total / elapsed / 1e6, "server_cpu_s_per_gb": spent / total * 1e9}


def local_bytes(directory: Path, topic: str) -> int:
    total = 0
    for path in directory.glob(f"{topic}-*/*.log"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def fill_tier(peer: Peer, directory: Path, topic: str, partitions: int, megabytes: int) -> None:
    """A topic whose segments, but the active ones, are in the tier and nowhere else. ``directory`` has the local logs."""
    make_topic(
        peer,
        topic,
        partitions,
        segment_bytes=str(COLD_SEGMENT_BYTES),
        remote_storage_enable="true",
        local_retention_ms="1000",
        retention_ms="-1",
    )
    generate(peer, "produce", topic, batch_bytes=100_000, records=100, pipeline=3, megabytes=megabytes, warm_up=0)
    deadline = time.monotonic() + COLD_TIMEOUT_S
    while local_bytes(directory, topic) >= partitions * COLD_SEGMENT_BYTES:
        if time.monotonic() > deadline:
            print(f"{topic}: some segments are still local after {COLD_TIMEOUT_S} s", flush=True)
            return
        time.sleep(0.5)
    time.sleep(1)


def cold_fetch(peers: Mapping[str, Peer], directories: Mapping[str, Path], effort: Effort) -> Results:
    """One partition and eight, read over and over from the log start to where the local log begins."""
    results: Results = {}
    for partitions in (1, 8):
        topic = f"cold-{partitions}"
        for system, peer in peers.items():
            fill_tier(peer, directories[system], topic, partitions, effort.cold_megabytes)
            generate(peer, "fetch", topic, end="earliest-local", seconds=warm_up(system, effort) / 3, warm_up=0)
        runs = generators(peers, "fetch", topic, end="earliest-local", seconds=effort.seconds * 1.5, warm_up=0.5)
        found = alternate(runs, effort.rounds)
        name = f"cold fetch, {partitions} partition{'s' * (partitions > 1)}"
        show(name, found)
        results |= {f"{name}, {system}": report for system, report in found.items()}
    return results


# --- two things at once -----------------------------------------------------------------------------------------------


def beside_cold_replay(directory: Path, effort: Effort) -> Results:
    """Two producers at half of the saturated rate, alone and while one reader replays cold data flat out. Two cores."""
    batch_bytes, records, pipeline = PRODUCE_SIZES["produce 16 KB"]
    options = {"batch_bytes": batch_bytes, "records": records, "pipeline": pipeline, "idempotent": True, "core": -1}
    with firn_running(directory / "beside", settings=TIER_AT_ONCE) as peer:
        fill_tier(peer, directory / "beside" / "data", "replayed", 1, effort.cold_megabytes)
        topics = ("live-0", "live-1")
        for topic in topics:
            make_topic(peer, topic)

        def producers(rate: float) -> Report:
            """Both at once; rates added, latencies the worse of the two."""
            each = rate / len(topics)
            running = [
                start_generator(peer, "produce", t, seconds=effort.seconds, warm_up=1, rate=each, **options)  # type: ignore[arg-type]
                for t in topics
            ]
            reports = [finish(one) for one in running]
            return {
                "mb_per_s": sum(r["mb_per_s"] for r in reports),
                "requests_per_s": sum(r["requests_per_s"] for r in reports),
                "server_cpu_s_per_gb": max(r["server_cpu_s_per_gb"] for r in reports) / len(reports),
                **{k: max(r[k] for r in reports) for k in ("p50_ms", "p99_ms", "p999_ms")},
            }

        producers(0)
        saturated = median([producers(0) for _ in range(effort.rounds)])
        half = saturated["requests_per_s"] / 2
        reads = []

        def with_reader() -> Report:
            reading = start_generator(
                peer, "fetch", "replayed", core=-1, end="earliest-local", seconds=effort.seconds + 1.5, warm_up=0
            )
            report = producers(half)
            reads.append(finish(reading))
            return report

        found = alternate({"alone": lambda: producers(half), "beside": with_reader}, effort.rounds)
        found = {"full": saturated, **found, "reader": median(reads)}
        for name, report in found.items():
            show("producers and a replay", {name: report})
    return {f"beside a cold replay, {name}": report for name, report in found.items()}


def upload_while_producing(directory: Path, effort: Effort) -> Results:
    """How fast a backlog of segments goes to the directory store while a producer runs at a moderate rate."""
    with firn_running(directory / "upload", settings=TIER_AT_ONCE) as peer:
        make_topic(
            peer,
            "backlog",
            4,
            segment_bytes=str(128 << 20),
            local_retention_ms="-2",
            retention_ms="-1",
            remote_log_copy_disable="true",
        )
        make_topic(peer, "live")
        generate(
            peer, "produce", "backlog", batch_bytes=500_000, records=500, pipeline=3, warm_up=0,
            megabytes=effort.backlog_megabytes,
        )  # fmt: skip
        os.sync()  # what the disk owes for the backlog itself is not the upload's
        touch_pages(directory, effort.backlog_megabytes * 1_100_000)
        bucket, data = directory / "upload" / "bucket", directory / "upload" / "data"
        rolled = sum(
            path.stat().st_size for folder in data.glob("backlog-*") for path in sorted(folder.glob("*.log"))[:-1]
        )
        store_process = children(peer.pid)[0]
        producer = start_generator(
            peer, "produce", "live", core=-1, batch_bytes=16_384, records=140, pipeline=10, rate=2000, seconds=30,
            warm_up=0, idempotent=True,
        )  # fmt: skip
        before = cpu_seconds(store_process), cpu_seconds(peer.pid)
        _set_config(peer, "backlog", "remote.log.copy.disable", "false")
        started = time.perf_counter()
        copied = 0
        while copied < rolled and time.perf_counter() - started < 60:
            time.sleep(0.05)
            copied = sum(path.stat().st_size for path in bucket.glob("data/**/*.seg"))
        elapsed = time.perf_counter() - started
        spent = cpu_seconds(store_process) - before[0], cpu_seconds(peer.pid) - before[1]
        producer.send_signal(signal.SIGINT)
        producer.wait()
    report: Report = {
        "mb_per_s": copied / elapsed / 1e6,
        "megabytes": copied / 1e6,
        "server_cpu_s_per_gb": spent[0] / max(copied, 1) * 1e9,
        "broker_cpu_s": spent[1],
        "whole": copied >= rolled,
    }
    print(
        f"upload while producing     {report['mb_per_s']:.0f} MB/s of {report['megabytes']:.0f} MB, "
        f"{report['server_cpu_s_per_gb']:.2f} s CPU/GB in the store process",
        flush=True,
    )
    return {"upload while producing": report}


def _set_config(peer: FirnPeer, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})  # must live until the answer is there
    admin.incremental_alter_configs([resource])[resource].result(10)


# --- starting, and memory ---------------------------------------------------------------------------------------------


def start_up(directory: Path, effort: Effort) -> Results:
    """From exec to the first answers: empty, with many partitions after a clean stop and after a kill, and over slow S3."""
    results: Results = {}

    def times(name: str, reports: list[Report]) -> None:
        found = results[f"start, {name}"] = median(reports)
        print(
            f"start to first answers     {name:<34} Metadata {found['metadata_s']:.2f} s, Produce "
            f"{found['produce_s']:.2f} s, Fetch {found['fetch_s']:.2f} s, broker {found['broker_cpu_s']:.2f} s CPU, "
            f"then {found['broker_mb']:.0f} MB and {found['store_process_mb']:.0f} MB in the store process",
            flush=True,
        )

    reports = []
    for _ in range(effort.starts):
        with tempfile.TemporaryDirectory(dir=directory) as empty:
            reports.append(first_answers(Path(empty), [("first", 1)]))
    times("empty", reports)
    many = directory / "many"
    many_segments.build(many, effort.partitions, effort.segments)
    os.sync()
    topics = many_segments.topic_names(effort.partitions)
    size = f"{effort.partitions:,} partitions"
    first_answers(many, topics)
    times(f"{size}, stopped in order", [first_answers(many, topics) for _ in range(effort.starts)])
    killed = []
    for _ in range(effort.starts):
        first_answers(many, topics, stop=signal.SIGKILL)
        killed.append(first_answers(many, topics))
    times(f"{size}, after kill -9", killed)
    with slow_s3(many / "bucket", 50) as endpoint:
        far = s3_url(endpoint)
        times(
            f"{size}, S3 at 50 ms a request",
            [first_answers(many, topics, store=far, environment=S3_ENVIRONMENT) for _ in range(effort.starts)],
        )
    shutil.rmtree(many)
    return results


def idle_memory(directory: Path) -> Results:
    """Resident memory of a broker that does nothing, and with a thousand connections that do nothing."""
    with firn_running(directory / "idle") as peer:
        time.sleep(3)
        idle = memory_mb(peer.pid)
        store_process = sum(memory_mb(child) for child in children(peer.pid))
        connections = []
        for _ in range(CONNECTIONS):
            connection = socket.create_connection((peer.host, peer.port), 10)
            connection.sendall(API_VERSIONS)
            connection.recv(4096)
            connections.append(connection)
        time.sleep(1)
        connected = memory_mb(peer.pid)
        for connection in connections:
            connection.close()
    report: Report = {"idle_mb": idle, "store_process_mb": store_process, "connections_mb": connected - idle}
    print(
        f"memory                     {idle:.0f} MB idle (and {store_process:.0f} MB in the store process), "
        f"{connected - idle:.1f} MB more with {CONNECTIONS} connections",
        flush=True,
    )
    return {"memory, idle": report}


def loaded_memory(peers: Mapping[str, Peer]) -> Results:
    """The highest resident memory that each system had, after all else has run on it."""
    found = {system: {"peak_mb": memory_mb(peer.pid, "VmHWM")} for system, peer in peers.items()}
    for system, report in found.items():
        print(f"memory at its highest      {system:<6} {report['peak_mb']:.0f} MB", flush=True)
    return {f"memory, loaded, {system}": report for system, report in found.items()}
