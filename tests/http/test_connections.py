"""Connections that say nothing, too little or too much: each is ended, and none takes the place of a health check."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn

from app.core.limits import MIB
from app.core.metrics import Registry
from app.http import connections
from app.http.application import create_app
from app.http.connections import (
    HEAD_BYTES_MAX,
    RESERVED,
    ConnectionLimits,
    HttpConnection,
    OpenConnections,
    connection_class,
)
from app.http.gateway import HttpSettings
from app.http.quick_records import Accepted, QuickRecords, Target
from app.machine.runtime import SystemClock, raise_descriptor_limit
from tests.http.processes import head, http_process
from tests.support.broker import running_broker
from tests.support.ports import free_port

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LONG_MS = 3_600_000


class Server:
    def __init__(self, port: int, registry: Registry, door: OpenConnections) -> None:
        self.port = port
        self._registry = registry
        self._door = door
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    def set_header_ms(self, header_ms: int) -> None:
        """Limit heads that begin from now on."""
        self._door.limits = replace(self._door.limits, header_timeout_ms=header_ms)

    async def connect_and_ask(self, *, header_ms: int) -> Streams:
        """A connection on which a request was answered, so that the time of the next head begins with its first bytes.

        That of the first head begins with the connection: a machine that stands still takes it for one that says nothing.
        """
        reader, writer = await self.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await head(reader))[0] == 200
        await reader.readexactly(len('{"status":"ok"}'))
        self.set_header_ms(header_ms)
        return reader, writer

    async def ask(self, path: str) -> int:
        """The status of a request on a connection of its own."""
        reader, writer = await self.connect()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        status, _ = await head(reader)
        await reader.read()
        writer.close()
        return status

    def value(self, name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(
            one.value for one in self._registry.samples() if one.name == name and wanted <= dict(one.labels).items()
        )

    async def until(self, name: str, value: float, **labels: str) -> None:
        async with asyncio.timeout(60):
            while self.value(name, **labels) != value:
                await asyncio.sleep(0.01)

    async def closed_for(self, reason: str) -> None:
        await self.until("firn_http_connections_closed_total", 1, reason=reason)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def serving(
    broker_port: int, *, connections_max: int = 100, header_ms: int = LONG_MS, body_ms: int = LONG_MS
) -> AsyncIterator[Server]:
    registry = Registry()
    settings = HttpSettings(bootstrap=(("127.0.0.1", broker_port),), body_idle_timeout_ms=body_ms)
    app = create_app(settings, clock=SystemClock(), rng=random.Random(2), registry=registry)
    limits = ConnectionLimits(connections_max=connections_max, header_timeout_ms=header_ms, transfer_timeout_ms=body_ms)
    door = OpenConnections(limits, registry, quick=app.state.quick_records)
    port = free_port()
    config = uvicorn.Config(app, host="127.0.0.1", port=port, http=connection_class(door), log_level="error")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    running = Server(port, registry, door)
    try:
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.01)
        yield running
    finally:
        running.close()
        server.should_exit = True
        await task


@pytest.fixture
async def broker_port() -> int:
    """Where no broker is: what these tests ask for needs none."""
    return free_port()


@pytest.mark.ci
async def test_readiness_is_told_beside_a_thousand_silent_connections(tmp_path: Path) -> None:
    raise_descriptor_limit()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running_broker(tmp_path))
        http = await stack.enter_async_context(http_process(broker))
        silent = [await http.connect() for _ in range(1_050)]
        reader, writer = await http.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 10.9.9.9\r\n\r\n")
        assert (await head(reader))[0] == 200
        writer.close()
        await http.until_ready("10.9.9.9")
        for _, writer in silent:
            writer.transport.abort()


async def test_a_connection_that_says_nothing_is_closed(broker_port: int) -> None:
    async with serving(broker_port, header_ms=50) as server:
        reader, _ = await server.connect()
        assert await reader.read() == b""
        await server.closed_for("header_timeout")


async def test_a_head_that_comes_by_drops_is_answered_408(broker_port: int) -> None:
    async with serving(broker_port) as server:
        reader, writer = await server.connect_and_ask(header_ms=300)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")

        async def drip() -> None:
            while True:
                writer.write(b"a: b\r\n")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        try:
            assert (await head(reader))[0] == 408
        finally:
            dripping.cancel()
        await server.closed_for("header_timeout")


REFUSED_WHILE_IT_SENDS = {
    "a head too late": (408, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"),
    "a head too large": (431, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\na: " + b"a" * HEAD_BYTES_MAX),
    "no head": (400, b"\0"),
    "a body that nobody reads": (
        421,
        b"POST / HTTP/1.1\r\nHost: elsewhere\r\nContent-Length: 1000000000\r\n\r\n" + b"a" * 100_000,
    ),
}


@pytest.mark.parametrize(("status", "start"), REFUSED_WHILE_IT_SENDS.values(), ids=REFUSED_WHILE_IT_SENDS)
async def test_a_client_that_is_still_sending_can_read_its_refusal(
    broker_port: int, status: int, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 120.0)  # a slow machine must not end it sooner than this client
    loop = asyncio.get_running_loop()
    async with serving(broker_port) as server:
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", server.port))
            if status == 408:  # the time of a head that is not the first begins with its first bytes
                await loop.sock_sendall(client, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                while not answer.endswith(b'{"status":"ok"}'):
                    got = await loop.sock_recv(client, 4096)
                    assert got, answer
                    answer += got
                server.set_header_ms(200)
            answered = asyncio.Event()
            loop.add_reader(client, answered.set)
            async with asyncio.timeout(60):
                await loop.sock_sendall(client, start)
                await answered.wait()
                loop.remove_reader(client)
                await loop.sock_sendall(client, b"a" * (16 * MIB))  # more than the kernel holds
            assert (await loop.sock_recv(client, 4096)).startswith(b"HTTP/1.1 %d " % status)
        await server.until("firn_http_connections", 0)


async def test_a_client_that_does_not_close_its_end_is_not_waited_for_for_ever(
    broker_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 0.05)
    async with serving(broker_port) as server:
        reader, writer = await server.connect()
        writer.write(b"\0")
        assert (await head(reader))[0] == 400
        await server.until("firn_http_connections", 0)


async def test_the_next_head_on_a_connection_has_the_same_time(broker_port: int) -> None:
    async with serving(broker_port) as server:
        reader, writer = await server.connect_and_ask(header_ms=50)
        writer.write(b"GET /health")
        assert (await head(reader))[0] == 408


@pytest.mark.parametrize("line", [b"a: ", b"GET /"], ids=["header", "path"])
async def test_a_head_without_end_is_refused(broker_port: int, line: bytes) -> None:
    async with serving(broker_port) as server:
        reader, writer = await server.connect()
        start = b"" if line.startswith(b"GET") else b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        writer.write(start + line + b"a" * 70_000)
        assert (await head(reader))[0] == 431
        await server.closed_for("head_too_large")


async def test_what_frames_a_body_has_an_end_too(broker_port: int) -> None:
    async with serving(broker_port) as server:
        _, writer = await server.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        for _ in range(250):
            writer.write(b"trailer: " + b"a" * 4_000 + b"\r\n")
        await server.closed_for("head_too_large")
        writer.transport.abort()


async def test_a_body_that_nobody_waits_for_must_come_soon(broker_port: int) -> None:
    async with serving(broker_port) as server:
        reader, writer = await server.connect()
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert (await head(reader))[0] == 404
        server.set_header_ms(100)

        async def drip() -> None:
            while True:
                writer.write(b"a")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        try:
            await server.closed_for("header_timeout")
        finally:
            dripping.cancel()


async def test_a_connection_whose_rest_of_a_body_came_serves_the_next_request(broker_port: int) -> None:
    async with serving(broker_port, header_ms=LONG_MS) as server:
        reader, writer = await server.connect()
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        _, text = await head(reader)
        await reader.readexactly(int(text.partition("content-length: ")[2].partition("\r\n")[0]))
        writer.write(b"a" * 100_000 + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await head(reader))[0] == 200


async def test_a_body_that_comes_by_drops_is_given_up(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, serving(broker.port, body_ms=300) as server:
        await broker.create_topic("t", 1)
        cluster_id = broker.node.cluster.image.cluster_id
        for path in ("topics", "topics/t/records"):
            reader, writer = await server.connect()
            request = f"POST /v3/clusters/{cluster_id}/{path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(request.encode())

            async def drip(writer: asyncio.StreamWriter = writer) -> None:
                while True:
                    writer.write(b"1\r\n \r\n")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            try:
                await reader.readuntil(b'"error_code":408')
            finally:
                dripping.cancel()


async def test_a_response_that_nobody_reads_ends_its_connection(broker_port: int) -> None:
    async with serving(broker_port, body_ms=100) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.port))
            asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000
            with suppress(ConnectionError):  # it may have ended before all of them were sent
                await asyncio.get_running_loop().sock_sendall(client, asked)
            await server.closed_for("not_read")


async def test_a_new_connection_takes_the_place_of_one_without_a_request(
    broker_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SETTLING_S", 120.0)  # a slow machine must not make old what has just come
    async with serving(broker_port, connections_max=2) as server:
        idle_reader, idle = await server.connect()
        idle.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await head(idle_reader))[0] == 200
        await idle_reader.readexactly(len('{"status":"ok"}'))
        streaming_reader, streaming = await server.connect()
        streaming.write(b"POST /v3/clusters HTTP/1.1\r\nHost: localhost\r\n")
        await server.until("firn_http_connections", 2)
        assert await server.ask("/openapi.json") == 200
        assert await idle_reader.read() == b"", "it had no request under way"
        await server.closed_for("evicted")
        streaming.write(b"\r\n")
        assert (await head(streaming_reader))[0] == 405


async def test_past_the_limit_health_is_told_and_all_else_is_unavailable(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, serving(broker.port, connections_max=2) as server:
        await broker.create_topic("t", 1)
        path = f"/v3/clusters/{broker.node.cluster.image.cluster_id}/topics/t/records"
        for _ in range(2):
            reader, writer = await server.connect()
            writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            record = b'{"value":{"data":1}}'
            writer.write(b"%x\r\n%s\r\n" % (len(record), record))
            assert (await head(reader))[0] == 200, "its request is under way"
        assert await server.ask("/healthz") == 200
        assert await server.ask("/readyz") == 200
        assert await server.ask("/v3/clusters") == 503
        for _ in range(3 * RESERVED):
            await server.connect()
        assert await server.ask("/readyz") == 200


async def test_a_connection_that_has_ended_leaves_nothing_to_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly = 0
    original = QuickRecords.accept

    def accept(self: QuickRecords, target: Target, body: bytes, began_s: float) -> Accepted | None:
        nonlocal quickly
        accepted = original(self, target, body, began_s)
        quickly += accepted is not None
        return accepted

    monkeypatch.setattr(QuickRecords, "accept", accept)
    async with running_broker(tmp_path) as broker, serving(broker.port) as server:
        await broker.create_topic("t", 1)
        path = f"/v3/clusters/{broker.node.cluster.image.cluster_id}/topics/t/records"

        async def ask() -> None:
            assert await server.ask("/healthz") == 200
            reader, writer = await server.connect()
            writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n".encode())
            writer.write(b'{"value":{"data":1}}')
            assert (await head(reader))[0] == 200
            writer.close()
            await server.until("firn_http_connections", 0)

        await ask()
        gc.collect()
        gc.disable()
        try:
            await ask()
            assert quickly == 1
            assert not any(isinstance(one, HttpConnection) for one in gc.get_objects())
        finally:
            gc.enable()
