"""Replay from S3 servers on this machine beside bare clients: with latency added before the first byte, and from servers that
others wrote."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from loadtests.firn_peer import firn_running
from loadtests.lab import TIER_AT_ONCE, Lab, python_on, show
from loadtests.measuring import LOAD_CORE, SERVER_CORE, LoadFailed, Report, alternate, generate
from loadtests.results import Case
from loadtests.s3_servers import SERVERS, ServerMissing, s3_server_running
from loadtests.start_up import S3_ENVIRONMENT, s3_url
from loadtests.system import ROOT, System, SystemFailed
from loadtests.workloads.cold import fill_tier, segment_bytes_of

FIRST_BYTE_MS = (0, 20, 100)
MB_PER_S = 400
"""Of the server, over all connections."""
MANY = (8, 64)
CACHE_SHARE = 0.25
"""Of what is read, so that every pass reads it from S3 again."""
WARM_UP_S_MAX = 30
QUICK_SERVERS = ("moto",)
"""It comes with the development environment, keeps all in one Python process, and is what is measured then: for a quick run."""
BARES = {"bare obstore": "obstore", "bare aiobotocore": "aiobotocore"}
"""Column to the client that it is of. Firn is held against the first."""


@contextmanager
def slow_server(bucket: Path, delay_ms: float) -> Iterator[str]:
    """The URL of a store on the fixture, which runs on the load's core."""
    command = python_on(LOAD_CORE, "-m", "loadtests.slow_s3", str(bucket), "--delay-ms", str(delay_ms))
    with subprocess.Popen([*command, "--mb-per-s", str(MB_PER_S)], stdout=subprocess.PIPE, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            yield s3_url(f"http://127.0.0.1:{int(server.stdout.readline())}")
        finally:
            server.terminate()


def one(lab: Lab) -> list[Case]:
    """One partition from the log start to where the local log begins, the server limited to 400 MB/s, 0, 20 and 100 ms before the
    first byte. Bare clients read the same objects by ranged GETs of 8 MiB, 16 at a time: obstore, which Firn is held against, and
    aiobotocore. All of Firn's processes on one core, the S3 server and the reader on the other. Measured once the chunk cache is
    full and its pages have been touched, as they are in a broker that is not new. It has room for a quarter of what is read
    (`firn.chunk.cache.bytes`); segments are of 32 MiB, their chunks stored as they come (`firn.tier.compression=none`). Kafka has
    no S3 tier of its own."""
    return _replay(lab, (1,), FIRST_BYTE_MS)


def many(lab: Lab) -> list[Case]:
    """The same with 8 and 64 partitions in each request, and segments of 4 MiB, at 0 and 100 ms."""
    return _replay(lab, MANY, FIRST_BYTE_MS[::2])


def _replay(lab: Lab, counts: Sequence[int], delays_ms: Sequence[int]) -> list[Case]:
    counts = counts[:1] if lab.quick else counts
    directory = lab.base / "s3"
    bucket = directory / "bucket"
    megabytes = lab.effort.cold_megabytes * 2 // 3
    with slow_server(bucket, 0) as store, _firn(directory, store, megabytes) as peer:
        for count in counts:
            segment_bytes = segment_bytes_of(lab, count) if count == 1 else 4 << 20
            # The generator repeats one batch of random bytes, which only a compressor with a window finds small.
            fill_tier(
                lab, peer, f"far-{count}", count, segment_bytes, megabytes=megabytes, firn_tier_compression="none"
            )
    for delay_ms in delays_ms[1:2] if lab.quick else delays_ms:
        with slow_server(bucket, delay_ms) as store, _firn(directory, store, megabytes) as peer:
            _fill_cache(peer, f"far-{counts[0]}")
            runs = {str(count): partial(_read, lab, peer, f"far-{count}") for count in counts}
            bares = _bare_clients(lab, store, list(BARES) if counts == (1,) else list(BARES)[:1])
            found = alternate(runs | bares, lab.effort.variant_rounds, servers=dict.fromkeys(runs, peer))
            for count in counts:
                name = f"S3 at {delay_ms} ms" + (f", {count} partitions" if count > 1 else "")
                systems = {"Firn": found[str(count)]} | {bare: found[bare] for bare in bares}
                show(name, systems)
                parameters = {"partitions": count}
                if count == 1:
                    parameters["first_byte_ms"] = delay_ms
                lab.kept.append(Case(name, systems, parameters))
    return lab.kept


def others(lab: Lab) -> list[Case]:
    """One partition, from the log start to where the local log begins, from S3 servers that others wrote, as they come: MinIO and
    s3s-fs are servers on files. The bare clients read the same objects. All of Firn's processes on one core, the S3 server and the
    reader on the other."""
    megabytes = lab.effort.cold_megabytes // 3
    for name in QUICK_SERVERS if lab.quick else [name for name in SERVERS if name not in QUICK_SERVERS]:
        directory = lab.base / name
        try:
            with s3_server_running(name, directory / "server", pin=("taskset", "-c", str(LOAD_CORE))) as endpoint:
                store = s3_url(endpoint)
                with _firn(directory, store, megabytes) as peer:
                    segment_bytes = segment_bytes_of(lab, 1)
                    fill_tier(lab, peer, "far", 1, segment_bytes, megabytes=megabytes, firn_tier_compression="none")
                    _fill_cache(peer, "far")
                    runs = {"Firn": partial(_read, lab, peer, "far")} | _bare_clients(lab, store)
                    found = alternate(runs, lab.effort.variant_rounds, servers={"Firn": peer})
        except ServerMissing as missing:
            lab.note(f"{name} is left out: {missing}.")
        except (LoadFailed, SystemFailed) as failure:
            lab.note(f"{name} is left out: {str(failure)[-300:]}.")
        else:
            show(f"S3 of {name}", found)
            lab.kept.append(Case(f"S3 of {name}", found, {"partitions": 1}))
    return lab.kept


def _read(lab: Lab, peer: System, topic: str) -> Report:
    return generate(peer, "fetch", topic, end="earliest-local", seconds=lab.effort.variant_seconds * 1.5)


@contextmanager
def _firn(directory: Path, store: str, megabytes: int) -> Iterator[System]:
    settings = TIER_AT_ONCE | {"firn.chunk.cache.bytes": str(int(megabytes * 1_000_000 * CACHE_SHARE))}
    with firn_running(
        directory, cores=str(SERVER_CORE), settings=settings, store=store, environment=S3_ENVIRONMENT
    ) as peer:
        yield peer


def _fill_cache(peer: System, topic: str) -> None:
    """Read all of a topic that the chunk cache cannot hold."""
    generate(peer, "fetch", topic, end="earliest-local", seconds=WARM_UP_S_MAX, warm_up=0, once=True)


def _bare_clients(lab: Lab, store: str, names: Sequence[str] = tuple(BARES)) -> dict[str, partial[Report]]:
    return {name: partial(bare_client, BARES[name], store, lab.effort.variant_seconds) for name in names}


def bare_client(client: str, store: str, seconds: float) -> Report:
    """What an S3 client alone reads, in a process on the server's core. Raises: LoadFailed."""
    command = python_on(SERVER_CORE, "-m", "loadtests.bare_s3", client, store, str(seconds))
    environment = dict(os.environ) | S3_ENVIRONMENT
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=environment)
    if done.returncode:
        raise LoadFailed(f"bare {client}: {done.stderr.strip()[-300:]}")
    report: Report = json.loads(done.stdout)
    return report
