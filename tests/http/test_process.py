"""The HTTP process as the broker starts it: real sockets, answers while the body still comes, and an end in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.http import server
from app.http.gateway import HttpSettings
from tests.http.processes import Http, head, http_process
from tests.support.broker import RunningBroker, running_broker
from tests.support.ports import free_port


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path) as running:
        await running.create_topic("t", 1)
        yield running


@pytest.fixture
async def http(broker: RunningBroker) -> AsyncIterator[Http]:
    async with http_process(broker) as running:
        yield running


async def chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readline(), 16)
    return (await reader.readexactly(size + 2))[:-2]


def as_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def begin_stream(http: Http, broker: RunningBroker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await http.connect()
    path = f"/v3/clusters/{broker.node.cluster.image.cluster_id}/topics/t/records"
    writer.write(f"POST {path} HTTP/1.1\r\nHost: firn\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    return reader, writer


async def test_each_receipt_comes_while_the_body_is_still_open(http: Http, broker: RunningBroker) -> None:
    reader, writer = await begin_stream(http, broker)
    for number in range(3):
        writer.write(as_chunk(b'{"value":{"data":%d}}' % number))
        if not number:
            status, headers = await head(reader)
            assert (status, "transfer-encoding: chunked" in headers) == (200, True)
        receipt: dict[str, Any] = json.loads(await chunk(reader))
        assert (receipt["error_code"], receipt["offset"]) == (200, number)
    writer.write(b"0\r\n\r\n")
    assert await chunk(reader) == b""
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: firn\r\n\r\n")
    assert (await head(reader))[0] == 200, "the connection serves the next request"
    writer.close()


async def test_a_client_that_leaves_takes_back_nothing_that_was_accepted(http: Http, broker: RunningBroker) -> None:
    reader, writer = await begin_stream(http, broker)
    writer.write(as_chunk(b'{"value":{"data":1}}'))
    await head(reader)
    writer.write(as_chunk(b'{"value":{"data":2}}{"value":'))
    writer.transport.abort()
    while broker.log("t").log_end_offset < 2:
        await asyncio.sleep(0.01)
    await http.until_ready()


@pytest.mark.ci
async def test_a_client_that_never_reads_its_receipts_stops_being_read(http: Http, broker: RunningBroker) -> None:
    _, writer = await begin_stream(http, broker)
    records = as_chunk(b'{"value":{"data":1}}\n' * 500)
    writer.transport.set_write_buffer_limits(0)

    async def stored_when_taken_or_stuck() -> int | None:
        """None if what was written has been taken; else how much is stored, once that has stopped rising."""
        stored = 0
        while True:
            try:
                async with asyncio.timeout(1):
                    await writer.drain()
            except TimeoutError:
                if 0 < stored == broker.log("t").log_end_offset:
                    return stored
                stored = broker.log("t").log_end_offset
            else:
                return None

    written = 0
    stored = None
    while stored is None:
        assert written < 50_000_000
        writer.write(records)
        written += len(records)
        stored = await stored_when_taken_or_stuck()
    assert stored < written / len(b'{"value":{"data":1}}\n'), "part of the body was never read"
    writer.transport.abort()


async def test_it_ends_at_once_when_its_parent_is_gone(http: Http) -> None:
    reader, writer = await http.connect()
    http.leash.close()
    async with asyncio.timeout(60):
        assert await http.process.wait() == 0
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_it_ends_in_order_at_a_signal(http: Http, broker: RunningBroker) -> None:
    reader, writer = await begin_stream(http, broker)
    writer.write(as_chunk(b'{"value":{"data":1}}'))
    await head(reader)
    http.process.send_signal(signal.SIGTERM)
    writer.write(as_chunk(b'{"value":{"data":2}}') + b"0\r\n\r\n")
    rest = (await reader.read()).decode()
    assert rest.count('"error_code":200') == 2, "what was under way was answered"
    async with asyncio.timeout(60):
        assert await http.process.wait() in (0, -signal.SIGTERM)
    writer.close()


def test_without_logins_nothing_of_tls_and_logins_is_imported() -> None:
    modules = (
        *("app.machine.certificates", "app.client.security", "app.http.callers", "app.http.login", "app.http.tls"),
        "app.configs",  # definitions of settings are large
    )
    program = (
        f"import sys; import app.http.__main__, app.http.server; print(*sorted({{*{modules!r}}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


@pytest.mark.ci
async def test_an_address_in_use_is_said_in_one_sentence(http: Http, broker: RunningBroker) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.http", "--bootstrap", broker.bootstrap, "--listen", f"127.0.0.1:{http.port}"),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    _, stderr = await process.communicate()
    assert (process.returncode, stderr.decode()) == (
        2,
        f"HTTP cannot listen on 127.0.0.1:{http.port}: address already in use.\n",
    )


@pytest.fixture
def loggers() -> Iterator[None]:
    """The process gives them handlers of its own."""
    kept = [(one, one.handlers[:], one.propagate) for one in map(logging.getLogger, ("uvicorn.error", "asyncio"))]
    yield
    for logger, handlers, propagate in kept:
        logger.handlers[:] = handlers
        logger.propagate = propagate


async def test_that_a_fault_is_over_is_told_without_another_request(
    monkeypatch: pytest.MonkeyPatch, loggers: None
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("app.http.server.log_line", lines.append)
    monkeypatch.setattr("app.core.faults.LOOK_S", 0.001)
    monkeypatch.setattr("app.core.faults.QUIET_S", 0.01)
    settings = HttpSettings(bootstrap=(("127.0.0.1", free_port()),), retry_budget_ms=1, connections_max=10)
    port = free_port()
    leash, theirs = socket.socketpair()
    with leash, theirs:
        serving = asyncio.create_task(
            asyncio.to_thread(server.run, settings, host="127.0.0.1", port=port, parent_fd=theirs.fileno())
        )
        try:
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(ConnectionRefusedError):
                        reader, writer = await asyncio.open_connection("127.0.0.1", port)
                        break
                    assert not serving.done(), serving
                    await asyncio.sleep(0.005)
                writer.write(b"GET /v3/clusters HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
                writer.close()
                while len(lines) < 2:
                    await asyncio.sleep(0.005)
        finally:
            leash.close()
            assert await serving == 0
    assert lines[0].startswith("no broker can be reached, so HTTP requests fail: ")
    assert re.match(r"over after \d+ s: reaching a broker failed ", lines[1])


@pytest.mark.ci
async def test_every_process_of_a_broker_shows_its_cpu_and_memory(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "serve", "-d", str(tmp_path / "data"), "--listen", "127.0.0.1:0"),
        *("--http", f"127.0.0.1:{(port := free_port())}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        text = ""
        async with asyncio.timeout(60):
            while 'process="store"' not in text:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.05)
                    continue
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                text = (await reader.read()).decode()
                writer.close()
        for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "firn_build_info"):
            for family in ("broker", "store", "http"):
                assert any(line.startswith(name) and f'process="{family}"' in line for line in text.splitlines()), name
        assert "firn_log_dir_free_bytes{" in text
    finally:
        process.terminate()
        await process.wait()
