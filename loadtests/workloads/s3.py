"""Replay from an S3 server on this machine, with latency added before the first byte, beside the bare client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from loadtests.firn_peer import firn_running
from loadtests.lab import TIER_AT_ONCE, Lab, python_on, show
from loadtests.measuring import LOAD_CORE, SERVER_CORE, LoadFailed, Report, alternate, generate
from loadtests.results import Case
from loadtests.start_up import S3_ENVIRONMENT, s3_url
from loadtests.system import ROOT, System
from loadtests.workloads.cold import SEGMENT_BYTES, fill_tier

FIRST_BYTE_MS = (0, 20, 100)
MB_PER_S = 400
"""Of the server, over all connections."""
SETTINGS = TIER_AT_ONCE | {"firn.chunk.cache.bytes": str(384 << 20)}
"""A cache of a quarter of what is read, so that every pass reads it from S3 again."""
PARTITIONS_MORE = (8, 64)


@contextmanager
def s3_server(bucket: Path, delay_ms: float) -> Iterator[str]:
    """The URL of a store on the fixture, which runs on the load's core."""
    command = python_on(LOAD_CORE, "-m", "loadtests.slow_s3", str(bucket), "--delay-ms", str(delay_ms))
    with subprocess.Popen([*command, "--mb-per-s", str(MB_PER_S)], stdout=subprocess.PIPE, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            yield s3_url(f"http://127.0.0.1:{int(server.stdout.readline())}")
        finally:
            server.terminate()


def replay(lab: Lab) -> list[Case]:
    """One partition from the log start to where the local log begins, the server limited to 400 MB/s, 0, 20 and 100 ms before the
    first byte; at 0 ms also 8 and 64 partitions in each request. The bare client reads the same objects through aiobotocore,
    ranged GETs of 8 MiB, 16 at a time. All of Firn's processes on one core, the S3 server and the reader on the other. Kafka
    has no S3 tier of its own."""
    cases = []
    directory = lab.base / "s3"
    bucket = directory / "bucket"
    counts = (1, *PARTITIONS_MORE) if not lab.quick else (1,)
    with s3_server(bucket, 0) as store, _firn(directory, store) as peer:
        for count in counts:
            segment_bytes = SEGMENT_BYTES if count <= 8 else 4 << 20
            # The generator repeats one batch of random bytes, which only a compressor with a window finds small.
            fill_tier(lab, peer, f"far-{count}", count, segment_bytes, firn_tier_compression="none")
    for delay_ms in FIRST_BYTE_MS:
        with s3_server(bucket, delay_ms) as store, _firn(directory, store) as peer:
            for count in counts if not delay_ms else (1,):
                runs = {
                    "Firn": partial(
                        generate, peer, "fetch", f"far-{count}", end="earliest-local", seconds=lab.effort.seconds * 1.5
                    ),
                    "bare client": partial(bare_client, store, lab.effort.seconds),
                }
                found = alternate(runs, lab.effort.variant_rounds)
                name = f"S3 at {delay_ms} ms" + (f", {count} partitions" if count > 1 else "")
                show(name, found)
                parameters = {"partitions": count}
                if count == 1:
                    parameters["first_byte_ms"] = delay_ms
                cases.append(Case(name, found, parameters))
    return cases


@contextmanager
def _firn(directory: Path, store: str) -> Iterator[System]:
    with firn_running(
        directory, cores=str(SERVER_CORE), settings=SETTINGS, store=store, environment=S3_ENVIRONMENT
    ) as peer:
        yield peer


def bare_client(store: str, seconds: float) -> Report:
    """What the S3 client alone reads, in a process on the server's core. Raises: LoadFailed."""
    command = python_on(SERVER_CORE, "-m", "loadtests.bare_s3", store, str(seconds))
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise LoadFailed(f"bare client: {done.stderr.strip()[-300:]}")
    report: Report = json.loads(done.stdout)
    return report
