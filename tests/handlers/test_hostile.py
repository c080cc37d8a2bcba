"""Bytes that no client sends: whatever comes, others are served, and nothing is kept."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import psutil

from app.transport.frame_memory import CLAIM_BYTES_MIN
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from tests.handlers.fakes import Bench

HELLO = ApiVersionsRequest("test", "1.0")


async def survives(bench: Bench, connect: Any) -> None:
    """The broker serves a well-behaved client, and keeps nothing of those that were not."""
    client = await connect(bench)
    assert (await client.ask(ApiKey.API_VERSIONS, 3, HELLO)).error_code == 0
    await client.close()


async def test_random_bytes_do_no_harm(start, connect):
    bench = await start()
    rng = random.Random(5)
    for _ in range(100):
        client = await connect(bench)
        client.writer.write(rng.randbytes(rng.randrange(1, 3000)))
        client.writer.write_eof()
        assert await client.closed()
    assert bench.server.frames.bytes == 0
    await survives(bench, connect)


async def test_a_frame_that_is_promised_and_never_sent_costs_no_memory(start, connect):
    bench = await start(queued_max_request_bytes=1 << 20)
    clients = [await connect(bench) for _ in range(8)]
    before = psutil.Process().memory_info().rss
    for client in clients:
        client.writer.write((100 << 20).to_bytes(4, "big") + b"\0\0\0\x09\0\0\0\1" + b"\0" * 100)
    async with asyncio.timeout(60):
        while bench.server.frames.bytes < 8 * CLAIM_BYTES_MIN:
            await asyncio.sleep(0)
    assert bench.server.frames.bytes == 8 * CLAIM_BYTES_MIN
    assert psutil.Process().memory_info().rss - before < 50 << 20
    for client in clients:
        await client.close()
    async with asyncio.timeout(60):
        while bench.server.frames.bytes:
            await asyncio.sleep(0)
    await survives(bench, connect)
