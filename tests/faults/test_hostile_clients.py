"""Clients that hold on to what they were given: memory is bounded whatever they do, and others are served.

``firn_request_memory_bytes`` is bounded by ``queued.max.request.bytes``; answers that nobody reads by one send buffer and
1 MiB a connection; a connection itself by a few KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.core.limits import MIB
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataRequest
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from app.wire.framing import request_frame
from tests.faults.healthy import healthy_client
from tests.faults.producing import FETCH_VERSION, link, plain_batch, produce_frame
from tests.faults.served import serving
from tests.support.waiting import block_until

FRAMES_BYTES_MAX = 32 * MIB
"""``queued.max.request.bytes`` of these brokers."""
IDLE_CONNECTIONS = 1_000
IDLE_GROWTH_BYTES_MAX = 50 * MIB


@asynccontextmanager
async def connections(port: int, count: int) -> AsyncIterator[list[socket.socket]]:
    made = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.close()


@pytest.mark.ci
async def test_a_thousand_idle_connections_cost_little_and_disturb_nobody(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        async with link(broker.port) as connection:
            await connection.create_topic("healthy")
        async with healthy_client(broker.port):
            before = broker.resident_bytes
            async with connections(broker.port, IDLE_CONNECTIONS):
                async with link(broker.port) as connection:  # accepted behind all of them
                    assert (await connection.produce("healthy", 0, plain_batch())).error_code == 0
                assert broker.resident_bytes - before < IDLE_GROWTH_BYTES_MAX


@pytest.mark.ci
async def test_half_sent_requests_take_no_more_memory_than_is_set_for_them(tmp_path: Path) -> None:
    """Eight clients send all but the last byte of a request of 20 MB, of which there is room for one at a time."""
    settings = {"queued.max.request.bytes": FRAMES_BYTES_MAX, "message.max.bytes": 32 * MIB}
    frame = produce_frame("healthy", 0, plain_batch(1, b"x" * 20_000_000))
    with serving(tmp_path, settings=settings) as broker:
        async with link(broker.port) as connection:
            await connection.create_topic("healthy")
        async with healthy_client(broker.port):
            before = broker.resident_bytes
            async with connections(broker.port, 8) as clients:
                loop = asyncio.get_running_loop()
                stuck = set(clients)

                async def send(client: socket.socket) -> None:
                    client.setblocking(False)
                    await loop.sock_sendall(client, frame[:-1])
                    stuck.discard(client)

                sending = {client: asyncio.create_task(send(client)) for client in clients}
                # One after the other is let in, and ends its request when it is: all are served at last.
                for _ in range(len(clients)):
                    async with asyncio.timeout(30):
                        while not set(clients) - stuck:
                            await asyncio.sleep(0.01)
                    assert broker.resident_bytes - before < 2 * FRAMES_BYTES_MAX
                    (client,) = set(clients) - stuck
                    clients.remove(client)
                    await sending[client]
                    async with asyncio.timeout(30):
                        await loop.sock_sendall(client, frame[-1:])
                        (size,) = struct.unpack(">i", await loop.sock_recv(client, 4))
                    assert size > 0
                    client.close()


@pytest.mark.ci
async def test_a_client_that_never_reads_is_not_read_either_and_costs_one_buffer(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        async with link(broker.port) as connection:
            await connection.create_topic("healthy")
            await connection.create_topic("large")
            for _ in range(16):
                assert (await connection.produce("large", 0, plain_batch(1, b"x" * 900_000))).error_code == 0
        fetch = FetchRequest(
            max_bytes=1 << 26, topics=[("large", [FetchPartition(0, -1, 0, partition_max_bytes=1 << 26)])]
        )
        requests = (
            encode_fetch_request(FETCH_VERSION, 1, "never", fetch),
            request_frame(ApiKey.METADATA, 9, 2, "never", MetadataRequest(topics=None)),
            # Small, so that 64 MiB of them ask for far more bytes of answers than the kernel's buffers take (4 MiB and more).
            produce_frame("healthy", 0, plain_batch(1, b"y")),
        )
        async with healthy_client(broker.port):
            before = broker.resident_bytes
            async with connections(broker.port, 9) as clients:
                loop = asyncio.get_running_loop()

                async def flood(client: socket.socket, request: bytes) -> None:
                    """Send until the broker stops reading: 64 MiB would be far more than any buffer on the way."""
                    client.setblocking(False)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    many = request * max(1, 65_536 // len(request))
                    for _ in range(64 * MIB // len(many)):
                        try:
                            async with asyncio.timeout(1):
                                await loop.sock_sendall(client, many)
                        except TimeoutError:
                            return
                    pytest.fail("the broker goes on reading a client that reads nothing")

                floods = [flood(client, requests[number % len(requests)]) for number, client in enumerate(clients)]
                await asyncio.gather(*floods)
                assert broker.resident_bytes - before < len(clients) * 3 * MIB + 16 * MIB


@pytest.mark.ci
async def test_idle_and_stuck_clients_are_let_go(tmp_path: Path) -> None:
    """Those that say nothing, that sent half a request, and that do not read."""
    with serving(tmp_path, settings={"connections.max.idle.ms": 6_000}) as broker:
        async with link(broker.port) as connection:
            await connection.create_topic("healthy")
        async with healthy_client(broker.port), connections(broker.port, 9) as clients:
            half = produce_frame("healthy", 0, plain_batch(1, b"x" * 100_000))[:50_000]
            for client in clients[3:6]:
                client.sendall(half)
            asking = request_frame(ApiKey.METADATA, 9, 2, "never", MetadataRequest(topics=None)) * 5_000
            for client in clients[6:]:
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while client.send(asking):
                        continue

            def gone(client: socket.socket) -> bool:
                client.setblocking(False)
                try:
                    while client.recv(1 << 20):
                        continue
                except BlockingIOError:
                    return False
                except ConnectionError:
                    return True
                return True

            for client in clients[:6]:
                await asyncio.to_thread(block_until, lambda client=client: gone(client), "let go of")
            # Reading from the last ones would wake them: whether they are gone is seen by what they cannot send.
            for client in clients[6:]:
                await asyncio.to_thread(block_until, lambda client=client: _broken(client), "let go of")
        assert not [line for line in broker.lines if "closing the connection" in line]


def _broken(client: socket.socket) -> bool:
    error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        return True
    try:
        client.send(b"\0")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False
