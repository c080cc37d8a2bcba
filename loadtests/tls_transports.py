"""What TLS costs a broker: Firn's own link (``app/transport/tls.py``) beside the event loop's TLS, and beside a plain listener.

    python -m loadtests.tls_transports

The broker runs in a process of its own. For each way it prints requests a second and the broker's CPU time for each request, of
Produce with 1 KB and 16 KB and of Fetch of 1 MiB that is in the page cache (not by the
loop's TLS). The ways alternate; medians of the rounds.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from app.cli.tls import issue
from app.client.connection import KafkaConnection, open_connection
from app.core.units import TimestampMs
from app.records.builder import build_batch
from app.records.record import NewRecord
from app.transport.connection import Connection
from app.wire.apikeys import ApiKey
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_body
from app.wire.header import encode_request_header
from app.wire.produce import encode_produce_request
from tests.support.broker import running_broker
from tests.support.secured import listener, security

ROUNDS = 3
IN_FLIGHT = 16
WAYS = ("plain", "link", "loop")


async def serve(folder: Path, way: str) -> None:
    """A broker that ends with its standard input; it answers each line with its CPU time."""
    kind = listener("PLAINTEXT" if way == "plain" else "SSL", folder)
    if way == "loop":
        from app.handlers.serving.server import KafkaServer
        from app.handlers.serving.session import Session
        from app.transport import listener as listening

        def maker(self: KafkaServer, name: str) -> Any:
            certificates = self._doors[name].certificates
            assert certificates is not None
            context = certificates.context

            class Loops(listening.Listener):
                async def _open(self) -> None:
                    copy = self._socket.dup()
                    self._server = await self._loop.create_server(self._make, sock=copy, backlog=1024, ssl=context)

            from app.transport import server as serving

            serving.Listener = Loops  # type: ignore[attr-defined]
            return lambda: Connection(self, Session(self, name))

        KafkaServer.maker = maker  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory() as path:
        async with running_broker(Path(path), **security(kind)) as broker:
            await broker.create_topic("t")
            print(broker.node.ports[kind.name], flush=True)
            loop = asyncio.get_running_loop()
            while await loop.run_in_executor(None, sys.stdin.readline):
                print(time.process_time(), flush=True)


def batch(size: int) -> bytes:
    return build_batch([NewRecord(TimestampMs(1), None, b"x" * size)])


async def drive(connection: KafkaConnection, key: ApiKey, version: int, body: bytes, count: int) -> None:
    left = count

    async def lane() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await connection.exchange(key, version, body, len, timeout_ms=30_000)

    await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))


def bodies() -> dict[str, tuple[ApiKey, int, bytes, int]]:
    def produce(size: int) -> bytes:
        pieces = encode_produce_request(9, 0, None, [("t", [(0, batch(size))])], acks=1, timeout_ms=30_000)
        frame = b"".join(pieces)
        return frame[4 + len(encode_request_header(ApiKey.PRODUCE, 9, 0, None)) :]

    part = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    fetch = encode_fetch_body(12, FetchRequest(topics=[("t", [part])]))
    return {
        "produce 1 KB": (ApiKey.PRODUCE, 9, produce(1000), 5000),
        "produce 16 KB": (ApiKey.PRODUCE, 9, produce(16_000), 2500),
        "fetch 1 MiB": (ApiKey.FETCH, 12, fetch, 200),
    }


async def measure(folder: Path) -> None:
    peers = {}
    for way in WAYS:
        peer = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loadtests.tls_transports", str(folder), way,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert peer.stdout is not None
        port = int(await peer.stdout.readline())
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))

        async def dial(protocol: Any, host: str, port: int, way: str = way, context: Any = context) -> None:
            extra = {} if way == "plain" else {"ssl": context, "server_hostname": "localhost"}
            await asyncio.get_running_loop().create_connection(protocol, host, port, **extra)

        peers[way] = peer, await open_connection("127.0.0.1", port, dial=dial)

    async def cpu_s(way: str) -> float:
        peer = peers[way][0]
        assert peer.stdin is not None
        assert peer.stdout is not None
        peer.stdin.write(b"\n")
        return float(await peer.stdout.readline())

    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for round_ in range(ROUNDS + 1):
        for name, (key, version, body, count) in bodies().items():
            for way in WAYS:
                if way == "loop" and key is ApiKey.FETCH:
                    continue  # the broker sends ranges of files with sendfile, which the loop's TLS does not do
                before, began = await cpu_s(way), time.perf_counter()
                await drive(peers[way][1], key, version, body, count)
                spent, took = await cpu_s(way) - before, time.perf_counter() - began
                if round_:
                    found.setdefault(name, {}).setdefault(way, []).append((count / took, spent / count * 1e6))
    for name, ways in found.items():
        for way, rounds in ways.items():
            rate, cost = (statistics.median(each) for each in zip(*rounds, strict=True))
            print(f"{name:14} {way:6} {rate:9.0f} requests/s {cost:9.1f} us of the broker's CPU each")
    for peer, connection in peers.values():
        await connection.close()
        assert peer.stdin is not None
        peer.stdin.close()
        await peer.wait()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        uvloop.run(serve(Path(sys.argv[1]), sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            issue(Path(scratch) / "c", hosts=["localhost"], clients=[], now=datetime.now(UTC))
            uvloop.run(measure(Path(scratch) / "c"))
