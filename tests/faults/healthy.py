"""A client that must be served while others are hostile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.records.batch import iter_headers
from tests.faults.producing import link, plain_batch

ANSWER_S_MAX = 60.0
"""Longer than a topic of 8,192 partitions takes, which is what a changed byte of a CreateTopics may ask for."""


@asynccontextmanager
async def healthy_client(port: int) -> AsyncIterator[None]:
    """Somebody who produces and reads back all the time and must always be answered in time."""
    done = asyncio.Event()
    served = 0

    async def go_on() -> None:
        nonlocal served
        async with link(port) as connection:
            offset = await connection.offset("healthy", 0, -1)
            while not done.is_set():
                batch = plain_batch(2, b"%d" % offset)
                answer = await connection.produce("healthy", 0, batch)
                assert answer.error_code == 0
                found = await connection.fetch("healthy", 0, answer.base_offset)
                assert found.error_code == 0
                _, header = next(iter_headers(found.records))
                assert header.base_offset == answer.base_offset
                served += 1
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(go_on())
        try:
            yield
            before = served
            async with asyncio.timeout(ANSWER_S_MAX):
                while served < before + 3:
                    await asyncio.sleep(0.01)
        finally:
            done.set()
