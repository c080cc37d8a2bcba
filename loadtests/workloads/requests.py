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
COUNTED = re.compile(r'^firn_store_requests_total\{.*operation="(\w+)".*\} (\S+)$', re.MULTILINE)
HTTP_TIMEOUT_S = 30


def issued(lab: Lab) -> list[Case]:
    """Four partitions with segments of 16 MiB go to a local S3 server, and are read once from there. What the broker counted by
    operation, beside the model of `firn cost` for as many segments, as many bytes and as long a time. The model has an entry of
    the manifest for the start and one for the end of each copy; where a segment waits already, they are one."""
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
        before, started = _counted(port), time.monotonic()
        fill_tier(lab, peer, "counted", PARTITIONS, SEGMENT_BYTES, megabytes=megabytes, firn_tier_compression="none")
        generate(peer, "fetch", "counted", end="earliest-local", seconds=60, warm_up=0, once=True)
        found = _counted(port) - before
        said = _model(bucket, time.monotonic() - started)
    cases = []
    for operation in sorted(found.keys() | said.keys()):
        reports: dict[str, Report] = {
            "counted": {"store_requests": found[operation]},
            "model": {"store_requests": said.get(operation, 0.0)},
        }
        print(f"{operation:<20} counted {found[operation]:>8,}   model {said.get(operation, 0.0):>8,.0f}", flush=True)
        cases.append(Case(operation, reports))
    return cases


def _model(bucket: Path, seconds: float) -> Mapping[str, float]:
    """What ``app.cost.requests`` says of the segments in ``bucket``, each copied and read once, in
    partitions that are new."""
    sizes = [path.stat().st_size for path in bucket.glob("**/*.seg")]
    return model.add(
        *(model.copy_segment(size) for size in sizes),
        *(model.replay_segment(size, BATCH_BYTES) for size in sizes),
        model.times(model.take_over(), PARTITIONS),
        model.snapshots(2 * len(sizes), len(sizes) / PARTITIONS),
        model.heartbeats(seconds),
    )


def _counted(port: int) -> Counter[str]:
    """The broker's counters by operation, whatever came of each; asked until its HTTP process answers."""
    deadline = time.monotonic() + HTTP_TIMEOUT_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        finally:
            connection.close()
        found: Counter[str] = Counter()
        for operation, count in COUNTED.findall(text):
            found[operation] += int(float(count))
        return found
