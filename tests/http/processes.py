"""The HTTP server in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Sequence

from tests.support.broker import RunningBroker
from tests.support.ports import free_port


class Http:
    """One process and the descriptor that ends it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, leash: socket.socket) -> None:
        self.process = process
        self.port = port
        self.leash = leash

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)

    async def until_ready(self, host: str = "localhost") -> None:
        """It says so when a broker answers soon, which one on a machine that stands still does not."""
        status = 0
        async with asyncio.timeout(60):
            while status != 200:
                reader, writer = await self.connect()
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                status, _ = await head(reader)
                assert status in (200, 503)
                writer.close()


OPTIONS = ("--http-allowed-hosts", "firn")


@contextlib.asynccontextmanager
async def http_process(
    broker: RunningBroker, *options: str, port: int = 0, command: Sequence[str] = ("app.http",)
) -> AsyncIterator[Http]:
    """``port``: of one of the broker's listeners; 0 for the one between brokers. ``command``: a module, and its arguments."""
    bootstrap = f"127.0.0.1:{port}" if port else broker.bootstrap
    port = free_port()
    ours, theirs = socket.socketpair()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command, "--bootstrap", bootstrap),
        *("--listen", f"127.0.0.1:{port}", "--parent-fd", str(theirs.fileno()), *OPTIONS, *options),
        pass_fds=[theirs.fileno()],
        stderr=asyncio.subprocess.PIPE,
    )
    theirs.close()
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                assert process.returncode is None, await process.stderr.read() if process.stderr else ""
                await asyncio.sleep(0.02)
            else:
                writer.close()
                break
        yield Http(process, port, ours)
    finally:
        ours.close()
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def head(reader: asyncio.StreamReader) -> tuple[int, str]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode()
    return int(lines.split(" ", 2)[1]), lines.lower()
