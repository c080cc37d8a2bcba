"""A disk that is nearly full: producers are refused while the file system still has what everything else needs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.broker.watching import room as room_watch
from app.core.errors import ErrorCode
from app.hot.manager import LogManager
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.handlers.conversation import Talk, batch, produce_one, talk
from tests.support.broker import RunningBroker, running_broker

FETCH = 1
LEAST = 1000


async def fetched_bytes(client: Talk) -> int:
    client.correlation_id += 1
    request = FetchRequest(max_wait_ms=0, topics=[("t", [FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)])])
    client.writer.write(encode_fetch_request(12, client.correlation_id, "test", request))
    _, answer = await client.answer(FETCH, 12)
    found = answer.responses[0].partitions[0]
    assert found.error_code == 0
    return len(found.records or b"")


async def told(broker: RunningBroker, lines: int) -> None:
    async with asyncio.timeout(60):
        while len(broker.lines) < lines:
            await asyncio.sleep(0.002)


async def test_producers_are_refused_below_the_least_room_and_served_again_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = LEAST
    looks = 0

    def look(_logs: LogManager) -> int:
        nonlocal looks
        looks += 1
        return room

    async def looked() -> None:
        end = looks + 2
        async with asyncio.timeout(60):
            while looks < end:
                await asyncio.sleep(0.002)

    monkeypatch.setattr(LogManager, "free_bytes", look)
    monkeypatch.setattr(room_watch, "ROOM_CHECK_S", 0.002)
    async with running_broker(tmp_path, firn_log_dir_free_bytes_min=LEAST) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1")
        said = len(broker.lines)
        for _ in range(3):  # the later ones look like the first, and are served by what is remembered of it
            assert await produce_one(client) is ErrorCode.NONE
        await looked()
        assert len(broker.lines) == said

        room = LEAST - 1
        await told(broker, said + 1)
        assert "999 bytes left, below firn.log.dir.free.bytes.min=1000; producers are refused" in broker.lines[said]
        for _ in range(3):
            assert await produce_one(client) is ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.log("t").log_end_offset == 3
        assert await fetched_bytes(client) == 3 * len(batch())
        await looked()
        assert len(broker.lines) == said + 1

        room = LEAST
        await told(broker, said + 2)
        assert "has enough space again" in broker.lines[said + 1]
        assert await produce_one(client) is ErrorCode.NONE
        assert broker.log("t").log_end_offset == 4


async def test_a_least_room_of_none_looks_at_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_logs: LogManager) -> int:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(LogManager, "free_bytes", look)
    async with running_broker(tmp_path, firn_log_dir_free_bytes_min=0) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        assert await produce_one(client) is ErrorCode.NONE
