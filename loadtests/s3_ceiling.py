"""What a replay from S3 could reach at most on this machine: a loop without a broker beside Firn and beside the bare client.

    python -m loadtests.s3_ceiling [--server MinIO --server s3s-fs] [--rounds 5] [--seconds 2] [--megabytes 500]

All read the same objects in turns, from the same S3 server. The server and the reader have one core, everything else has the other,
as in ``python -m loadtests --only s3-servers``.

- ``bare obstore`` reads ranges of 8 MiB, 16 at a time, and throws the bytes away. It has no reader.
- ``send`` reads ranges of 4 MiB (a chunk) and sends them from memory to a reader that asks for 1 MiB at a time. It does not check
  them, keeps no cache and speaks no protocol.
- ``chunk file`` checks each range with its CRC, writes it over a file of a cache, and sends what it reads from there. That is what
  Firn does with each byte.
- ``Firn`` is a broker with its store process.

CPU is of the core that Firn has. ``of S3`` and ``of the reader`` is the CPU of the S3 server and of a loop's reader, which share
the other core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import obstore
import uvloop
from crc32c import crc32c
from obstore.store import S3Store

from loadtests.bare_s3 import BUCKET, PREFIX
from loadtests.firn_peer import firn_running
from loadtests.lab import FULL, TIER_AT_ONCE, Lab, python_on
from loadtests.measuring import LOAD_CORE, SERVER_CORE, LoadFailed, Report, alternate, children, cpu_seconds, generate
from loadtests.s3_servers import SERVERS, s3_server_running
from loadtests.start_up import S3_ENVIRONMENT, s3_url
from loadtests.system import ROOT
from loadtests.workloads.cold import SEGMENT_BYTES, fill_tier
from loadtests.workloads.s3 import CACHE_SHARE, WARM_UP_S_MAX, bare_client

CHUNK_BYTES = 4 << 20
ANSWER_BYTES = 1 << 20
REQUEST = b"read".ljust(64)
WARM_UP_S = 1.0
THREADS = 8
WAYS = ("send", "chunk file")


# --- the loop without a broker ----------------------------------------------------------------------------------------------


def read_from(port: int) -> None:
    """The reader: asks for the next bytes until the connection ends."""
    os.sched_setaffinity(0, {LOAD_CORE})
    buffer = memoryview(bytearray(ANSWER_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as wire:
        while True:
            wire.sendall(REQUEST)
            filled = 0
            while filled < ANSWER_BYTES:
                got = wire.recv_into(buffer[filled:])
                if not got:
                    return
                filled += got


async def hand_on(way: str, store_url: str, seconds: float, ahead: int, directory: Path) -> Report:
    """Read chunks, ``ahead`` of them at a time, and hand them on to a reader in order."""
    [endpoint] = parse_qs(urlsplit(store_url).query)["endpoint"]
    store = S3Store(BUCKET, endpoint=endpoint, region="us-east-1", client_options={"allow_http": True})
    sizes = {one["path"]: one["size"] for page in obstore.list(store, PREFIX) for one in page}
    places = [
        (key, start)
        for key, size in sorted(sizes.items())
        for start in range(0, size - CHUNK_BYTES + 1, CHUNK_BYTES)
    ]  # fmt: skip
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(THREADS)
    files = deque(os.open(directory / str(number), os.O_RDWR | os.O_CREAT) for number in range(2 * ahead))

    async def fetch(turn: int, file: int) -> tuple[memoryview, int]:
        key, start = places[turn % len(places)]
        data = memoryview(await obstore.get_range_async(store, key, start=start, length=CHUNK_BYTES))
        if way == "chunk file":
            await loop.run_in_executor(pool, lambda: (crc32c(data), os.pwrite(file, data, 0)))
        return data, file

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        command = [sys.executable, "-m", "loadtests.s3_ceiling", "--read-from", str(listener.getsockname()[1])]
        reader = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        try:
            wire, _ = await loop.sock_accept(listener)
            with wire:
                wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                under_way: deque[asyncio.Task[tuple[memoryview, int]]] = deque()
                answer = memoryview(bytearray(ANSWER_BYTES))
                turn = total = 0
                started, spent_s, reader_s, measures = time.perf_counter(), 0.0, 0.0, False
                while True:
                    while len(under_way) < ahead:
                        under_way.append(asyncio.create_task(fetch(turn, files[0])))
                        files.rotate(-1)
                        turn += 1
                    data, file = await under_way.popleft()
                    for start in range(0, CHUNK_BYTES, ANSWER_BYTES):
                        await loop.sock_recv(wire, len(REQUEST))
                        piece = data[start : start + ANSWER_BYTES]
                        if way == "chunk file":
                            os.preadv(file, [answer], start)
                            piece = answer
                        await loop.sock_sendall(wire, piece)
                    total += CHUNK_BYTES
                    now = time.perf_counter()
                    if measures and now - started >= seconds:
                        break
                    if not measures and now - started >= WARM_UP_S:
                        spent_s, reader_s = time.process_time(), cpu_seconds(reader.pid)
                        started, total, measures = now, 0, True
                elapsed, spent_s = now - started, time.process_time() - spent_s
                reader_s = cpu_seconds(reader.pid) - reader_s
                await asyncio.gather(*under_way)
        finally:
            await reader.wait()
    pool.shutdown()
    return {
        "mb_per_s": total / elapsed / 1e6,
        "server_cpu_s_per_gb": spent_s / total * 1e9,
        "reader_cpu_s_per_gb": reader_s / total * 1e9,
    }


def loop_without_broker(way: str, store: str, seconds: float, ahead: int, directory: Path) -> Report:
    """Run ``hand_on`` in a process of its own, on the core that Firn has. Raises: LoadFailed."""
    command = python_on(SERVER_CORE, "-m", "loadtests.s3_ceiling", "--hand-on", way, "--ahead", str(ahead))
    command += ["--store", store, "--seconds", str(seconds), "--directory", str(directory)]
    environment = dict(os.environ) | S3_ENVIRONMENT
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=environment)
    if done.returncode:
        raise LoadFailed(f"{way}: {done.stderr.strip()[-300:]}")
    report: Report = json.loads(done.stdout)
    return report


# --- all of them in turns -----------------------------------------------------------------------------------------------------


def with_server_cpu(run: Callable[[], Report], server: int, seconds: float) -> Report:
    """The report of a run with the CPU of the S3 server, which it had for the warm-up, too."""
    before = cpu_seconds(server)
    report = run()
    spent_s = cpu_seconds(server) - before
    return report | {"s3_cpu_s_per_gb": spent_s / (report["mb_per_s"] * (seconds + WARM_UP_S)) * 1000}


def compare(name: str, base: Path, rounds: int, seconds: float, megabytes: int) -> None:
    """Print what each has from one S3 server. Raises: ServerMissing, SystemFailed, LoadFailed."""
    cache_bytes = int(megabytes * 1_000_000 * CACHE_SHARE)
    settings = TIER_AT_ONCE | {"firn.chunk.cache.bytes": str(cache_bytes)}
    files = base / "chunks"
    files.mkdir(parents=True)
    with s3_server_running(name, base / "server", pin=("taskset", "-c", str(LOAD_CORE))) as endpoint:
        [server] = children(os.getpid())
        store = s3_url(endpoint)
        with firn_running(
            base, cores=str(SERVER_CORE), settings=settings, store=store, environment=S3_ENVIRONMENT
        ) as peer:
            lab = Lab(base, FULL)
            fill_tier(lab, peer, "far", 1, SEGMENT_BYTES, megabytes=megabytes, firn_tier_compression="none")
            generate(peer, "fetch", "far", end="earliest-local", seconds=WARM_UP_S_MAX, warm_up=0, once=True)
            ahead = cache_bytes // 2 // CHUNK_BYTES
            runs = {"bare obstore": partial(bare_client, "obstore", store, seconds)}
            runs |= {way: partial(loop_without_broker, way, store, seconds, ahead, files) for way in WAYS}
            runs["Firn"] = partial(
                generate, peer, "fetch", "far", end="earliest-local", seconds=seconds, warm_up=WARM_UP_S
            )
            found = alternate(
                {way: partial(with_server_cpu, run, server, seconds) for way, run in runs.items()}, rounds
            )
    for way, report in found.items():
        least, most = report.get("spread", {}).get("mb_per_s", [report["mb_per_s"]] * 2)
        print(
            f"{name}, {way:<12} {report['mb_per_s']:5.0f} MB/s ({least:.0f} to {most:.0f}), "
            f"{report['mb_per_s'] / found['bare obstore']['mb_per_s']:.2f} of the bare client, "
            f"CPU s per GB: {report['server_cpu_s_per_gb']:.2f}, of S3 {report['s3_cpu_s_per_gb']:.2f}"
            + (f", of the reader {report['reader_cpu_s_per_gb']:.2f}" if "reader_cpu_s_per_gb" in report else ""),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", choices=tuple(SERVERS), help="several times for several")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--read-from", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hand-on", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--ahead", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read_from is not None:
        read_from(options.read_from)
    elif options.hand_on is not None:
        way = hand_on(options.hand_on, options.store, options.seconds, options.ahead, options.directory)
        print(json.dumps(uvloop.run(way)))
    else:
        with tempfile.TemporaryDirectory(prefix="firn-s3-ceiling-") as base:
            for name in options.server or ("MinIO", "s3s-fs"):
                compare(name, Path(base) / name, options.rounds, options.seconds, options.megabytes)


if __name__ == "__main__":
    main()
