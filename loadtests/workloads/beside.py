"""Two things at once: producers beside a cold replay, and an upload beside a producer."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from loadtests.bare_limits import touch_pages
from loadtests.firn_peer import firn_running
from loadtests.lab import NOT_TIERED, TIER_AT_ONCE, Lab, show
from loadtests.measuring import Report, admin_of, alternate, finish, generate, make_topic, median, start_generator
from loadtests.processes import children, cpu_seconds, family_memory_mb
from loadtests.results import Case
from loadtests.system import System
from loadtests.workloads.cold import fill_tier, segment_bytes_of
from loadtests.workloads.produce import TOUCHED_BYTES, options_of

UPLOAD_TIMEOUT_S = 60
LIVE = ("live-0", "live-1")
LIVE_WARM_UP_S = 1.0
HELD_ROUNDS = {"Firn": 7, "Kafka": 3}
"""With a reader and without: what new pages and write-back cost just then moves the p99 of a single round tenfold, both ways. Firn
is what is judged."""


def cold_replay(lab: Lab) -> list[Case]:
    """Two producers of 16 KB requests at half of the saturated rate, alone and while one reader replays cold data flat out. Two
    cores. The pages that the producers need were touched before each run, and the history was read once before the first. While
    producers keep Firn busy, its readers of the tier rest after each answer: what a reader gets then is what they leave it."""
    cases = []
    with lab.systems(tiered=True, pinned=False) as systems:
        for name, peer in systems.items():
            fill_tier(lab, peer, "replayed", 1, segment_bytes_of(lab, 1))
            for topic in LIVE:
                make_topic(peer, topic, **NOT_TIERED.get(name, {}))
            found = _beside(lab, peer)
            for how, report in found.items():
                show(f"producers and a replay: {how}", {name: report})
            cases.append(Case(f"beside a cold replay, {name}", found, {"system": name}))
    return cases


def _beside(lab: Lab, peer: System) -> dict[str, Report]:
    effort = lab.effort
    options = options_of("produce 16 KB") | {"core": -1}

    def read(seconds: float) -> subprocess.Popen[str]:
        return start_generator(peer, "fetch", "replayed", core=-1, end="earliest-local", seconds=seconds, warm_up=0)

    def producers(rate: float, seconds: float = effort.seconds) -> Report:
        """Both at once; rates added, latencies the worse of the two."""
        each = rate / len(LIVE)
        running = [
            start_generator(peer, "produce", topic, seconds=seconds, warm_up=LIVE_WARM_UP_S, rate=each, **options)
            for topic in LIVE
        ]
        reports = [finish(one) for one in running]
        return {
            "mb_per_s": sum(r["mb_per_s"] for r in reports),
            "requests_per_s": sum(r["requests_per_s"] for r in reports),
            "server_cpu_s_per_gb": max(r["server_cpu_s_per_gb"] for r in reports) / len(reports),
            **{k: max(r[k] for r in reports) for k in ("p50_ms", "p99_ms", "p999_ms")},
        }

    finish(read(effort.seconds))
    lab.warm(peer, lambda: float(producers(0)["mb_per_s"]))
    touch = lab.touching(TOUCHED_BYTES)
    full = alternate({"full": lambda: producers(0)}, effort.variant_rounds, touch, servers={"full": peer})
    half = full["full"]["requests_per_s"] / 2
    reads = []

    def with_reader() -> Report:
        reading = read(effort.seconds + LIVE_WARM_UP_S + 0.5)
        report = producers(half)
        reads.append(finish(reading))
        return report

    runs = {"alone": lambda: producers(half), "beside": with_reader}
    held = alternate(runs, 1 if lab.quick else HELD_ROUNDS[peer.name], touch, servers=dict.fromkeys(runs, peer))
    return full | held | {"reader": median(reads)}


def upload(lab: Lab) -> list[Case]:
    """How fast a backlog of segments goes to the directory store while a producer runs at a moderate rate."""
    directory = lab.base / "upload"
    with firn_running(directory, settings=TIER_AT_ONCE) as peer:
        make_topic(
            peer,
            "backlog",
            4,
            segment_bytes=str((16 if lab.quick else 128) << 20),  # some are to be full
            local_retention_ms="-2",
            retention_ms="-1",
            remote_log_copy_disable="true",
        )
        make_topic(peer, "live")
        backlog = lab.effort.backlog_megabytes
        generate(peer, "produce", "backlog", batch_bytes=500_000, records=500, pipeline=3, warm_up=0, megabytes=backlog)
        os.sync()  # what the disk owes for the backlog itself is not the upload's
        touch_pages(directory, backlog * 1_100_000)
        bucket = directory / "bucket"
        rolled = sum(
            path.stat().st_size for folder in peer.logs.glob("backlog-*") for path in sorted(folder.glob("*.log"))[:-1]
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
        while copied < rolled and time.perf_counter() - started < UPLOAD_TIMEOUT_S:
            time.sleep(0.05)
            copied = sum(path.stat().st_size for path in bucket.glob("data/**/*.seg"))
        elapsed = time.perf_counter() - started
        spent = cpu_seconds(store_process) - before[0], cpu_seconds(peer.pid) - before[1]
        peak_memory_mb = family_memory_mb(peer.pid, "VmHWM")
        producer.send_signal(signal.SIGINT)
        producer.communicate()
    report: Report = {
        "mb_per_s": copied / elapsed / 1e6,
        "megabytes": copied / 1e6,
        "server_cpu_s_per_gb": spent[0] / max(copied, 1) * 1e9,
        "broker_cpu_s": spent[1],
        "peak_memory_mb": peak_memory_mb,
        "whole": copied >= rolled,
    }
    print(
        f"upload while producing     {report['mb_per_s']:.0f} MB/s of {report['megabytes']:.0f} MB, "
        f"{report['server_cpu_s_per_gb']:.2f} s CPU/GB in the store process",
        flush=True,
    )
    return [Case("upload while producing", {"Firn": report})]


def _set_config(peer: System, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_of(peer)
    admin.incremental_alter_configs([resource])[resource].result(10)
