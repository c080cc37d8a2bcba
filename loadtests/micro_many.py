"""What a Produce request costs that comes alone, as those of many connections do, beside bare loops of the same system calls.

    python -m loadtests.micro_many [--connections 50] [--pipeline 2] [--batch-bytes 4096] [--seconds 4] [--rounds 5]

Three servers in turns, each on core 0, the load on core 1: Firn; a protocol of uvloop that appends what it reads to a file and
writes an answer of the right size; the same in C with epoll. The last is what the machine gives, the second what Python's fastest
event loop leaves of it. CPU time is that of all processes of a server. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

import uvloop

from app.records.builder import build_batch
from app.wire.produce import encode_produce_request
from loadtests.firn_peer import firn_running
from loadtests.measuring import LOAD_CORE, SERVER_CORE, make_topic
from loadtests.processes import family_cpu_seconds
from loadtests.system import ROOT

SOURCE = Path(__file__).with_name("bare_many.c")
TOPIC = "many"
SIZE = Struct(">i")
SCRATCH_BYTES = 1 << 18
WRAP_BYTES = 1 << 30
Load = Callable[[int], float]
"""Port to requests a second."""


class Bare(asyncio.BufferedProtocol):
    """Appends what comes, and answers each whole request with zeros."""

    scratch = memoryview(bytearray(SCRATCH_BYTES))
    file = -1
    position = 0
    request_bytes = 0
    answer = b""

    def __init__(self) -> None:
        self.got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.scratch

    def buffer_updated(self, nbytes: int) -> None:
        os.pwrite(Bare.file, self.scratch[:nbytes], Bare.position)
        Bare.position += nbytes
        if Bare.position > WRAP_BYTES:
            os.ftruncate(Bare.file, 0)
            Bare.position = 0
        whole, self.got = divmod(self.got + nbytes, self.request_bytes)
        if whole:
            self.transport.write(self.answer * whole)


async def _serve_bare(request_bytes: int, answer_bytes: int, path: str) -> None:
    Bare.file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    Bare.request_bytes, Bare.answer = request_bytes, bytes(answer_bytes)
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def _server(*command: str) -> Iterator[tuple[int, int]]:
    """Process id and port of a bare server."""
    with subprocess.Popen(
        ["taskset", "-c", str(SERVER_CORE), *command],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.terminate()


def _answer_bytes(port: int, request: bytes) -> int:
    """The size of the frame that answers a request."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request)
        with client.makefile("rb") as answers:
            size = answers.read(SIZE.size)
            answer = answers.read(*SIZE.unpack(size))
    error_at = 4 + 1 + 1 + 1 + len(TOPIC) + 1 + 4  # correlation id, tags, topics, topic, partitions, index
    assert answer[error_at : error_at + 2] == b"\0\0", "the broker refuses what the load sends"
    return SIZE.size + len(answer)


def _measure(pid: int, port: int, load: Load) -> tuple[float, float]:
    """Requests a second, and CPU microseconds of the server for each. The first touch of everything is not counted."""
    load(port)
    began_s = family_cpu_seconds(pid)
    rate = load(port)
    return rate, family_cpu_seconds(pid) - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--pipeline", type=int, default=2)
    parser.add_argument("--batch-bytes", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where the servers keep their data (a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firn-many-", dir=options.directory) as directory:
        _compare(options, Path(directory))


def _compare(options: argparse.Namespace, directory: Path) -> None:
    program = str(directory / "bare_many")
    subprocess.run(["cc", "-O2", "-o", program, str(SOURCE)], check=True)
    batch = build_batch([(1_700_000_000_000, None, os.urandom(options.batch_bytes - 80), ())])
    request = b"".join(
        bytes(piece)
        for piece in encode_produce_request(9, 1, "load", [(TOPIC, [(0, batch)])], acks=-1, timeout_ms=30_000)
    )
    asked = directory / "request"
    asked.write_bytes(request)
    counts = (str(options.connections), str(options.pipeline))
    found: dict[str, list[tuple[float, float]]] = {"Firn": [], "uvloop": [], "C": []}
    with firn_running(directory / "firn", cores=str(SERVER_CORE)) as peer:
        make_topic(peer, TOPIC, remote_storage_enable="false")
        answer_bytes = _answer_bytes(peer.port, request)

        def load(port: int) -> float:
            command = [program, "load", str(port), *counts, str(asked), str(answer_bytes), str(options.seconds)]
            done = subprocess.run(
                ["taskset", "-c", str(LOAD_CORE), *command], check=True, stdout=subprocess.PIPE, text=True
            )
            return float(done.stdout)

        for _ in range(options.rounds):
            found["Firn"].append(_measure(peer.pid, peer.port, load))
            bare_options = (str(len(request)), str(answer_bytes), str(directory / "bare"))
            with _server(sys.executable, "-m", "loadtests.micro_many", "--bare", *bare_options) as (pid, port):
                found["uvloop"].append(_measure(pid, port, load))
            # It serves one load and ends with it.
            with _server(program, "serve", counts[0], *bare_options) as (pid, port):
                began_s = family_cpu_seconds(pid)
                rate = load(port)
                found["C"].append((rate, family_cpu_seconds(pid) - began_s))
    for name, rounds in found.items():
        rates = statistics.median(rate for rate, _ in rounds)
        costs = [cpu_s / (rate * options.seconds) * 1e6 for rate, cpu_s in rounds]
        cost = f"{statistics.median(costs):6.2f} µs of CPU a request, least {min(costs):6.2f}"
        print(f"{name:<8} {rates:9,.0f} requests/s {cost}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        uvloop.run(_serve_bare(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
    else:
        main()
