"""What a broker asks of its object store, by operation, beside what the cost model says of the same work."""

from __future__ import annotations

import http.client
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from app.cost import requests as model
from loadtests.firn_peer import firn_running
from loadtests.lab import TIER_AT_ONCE, Lab
from loadtests.measuring import SERVER_CORE, Report, generate
from loadtests.results import Case
from loadtests.start_up import S3_ENVIRONMENT
from loadtests.system import free_port
from loadtests.workloads.cold import fill_tier
from loadtests.workloads.s3 import slow_server

PARTITIONS = 4
SEGMENT_BYTES = 16 << 20
BATCH_BYTES = 100_000
"""Of ``fill_tier``'s batches, about."""
MEGABYTES_FULL, MEGABYTES_QUICK = 1_000, 200
MODELS = {"model": False, "model of a backlog": True}
"""Name to whether every segment waits already when the one before it is copied."""
COUNTED = re.compile(r'^firn_store_requests_total\{.*operation="(\w+)".*\} (\S+)$', re.MULTILINE)
HTTP_TIMEOUT_S = 30


def issued(lab: Lab) -> list[Case]:
    """Four partitions with segments of 16 MiB go to a local S3 server, and are read once from there. What the broker counted by
    operation, beside the model of `firn cost` for as many segments, as many bytes and as long a time: as it bills, with an entry
    of the manifest for the start and one for the end of each copy, and for a backlog, where the end of a copy and the start of
    the next share one. What was counted lies between the two, but for what comes by the clock (heartbeats) or once in many
    entries (snapshots)."""
    megabytes = MEGABYTES_QUICK if lab.quick else MEGABYTES_FULL
    directory, port = lab.base / "requests", free_port()
    bucket = directory / "bucket"
    with (
        slow_server(bucket, 0) as store,
        firn_running(
            directory,
            cores=str(SERVER_CORE),
            settings=TIER_AT_ONCE,
            store=store,
            environment=S3_ENVIRONMENT,
            http=f"127.0.0.1:{port}",
        ) as peer,
    ):
        before, started = counted(port), time.monotonic()
        fill_tier(lab, peer, "counted", PARTITIONS, SEGMENT_BYTES, megabytes=megabytes, firn_tier_compression="none")
        generate(peer, "fetch", "counted", end="earliest-local", seconds=60, warm_up=0, once=True)
        found = counted(port) - before
        seconds = time.monotonic() - started
        said = {name: _model(bucket, seconds, backlog=backlog) for name, backlog in MODELS.items()}
    cases = []
    for operation in sorted({*found, *(name for operations in said.values() for name in operations)}):
        reports: dict[str, Report] = {"counted": {"store_requests": found[operation]}}
        reports |= {name: {"store_requests": operations.get(operation, 0.0)} for name, operations in said.items()}
        figures = "   ".join(f"{name} {report['store_requests']:>8,.0f}" for name, report in reports.items())
        print(f"{operation:<20} {figures}", flush=True)
        cases.append(Case(operation, reports))
    return cases


def _model(bucket: Path, seconds: float, *, backlog: bool) -> Mapping[str, float]:
    """What ``app.cost.requests`` says of the segments in ``bucket``, each copied and read once, in partitions that are new. With a
    ``backlog`` the first copy of each partition alone has an entry for its start."""
    sizes = [path.stat().st_size for path in bucket.glob("**/*.seg")]
    first_starts = {"put_if_absent": PARTITIONS * backlog}
    entries = len(sizes) + PARTITIONS if backlog else 2 * len(sizes)
    return model.add(
        *(model.copy_segment(size, backlog=backlog) for size in sizes),
        first_starts,
        *(model.replay_segment(size, BATCH_BYTES) for size in sizes),
        model.times(model.take_over(), PARTITIONS),
        model.snapshots(entries, len(sizes) / PARTITIONS),
        model.heartbeats(seconds),
    )


def counted(port: int) -> Counter[str]:
    """The broker's counters of store requests by operation, whatever came of each."""
    found: Counter[str] = Counter()
    for operation, count in COUNTED.findall(metrics_of(port)):
        found[operation] += int(float(count))
    return found


def metrics_of(port: int) -> str:
    """A broker's metrics as text; asked until its HTTP process answers."""
    deadline = time.monotonic() + HTTP_TIMEOUT_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        finally:
            connection.close()
