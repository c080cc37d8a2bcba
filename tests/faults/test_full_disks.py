"""A full disk, for real: file systems of a few MiB. Producers are told, readers are served, and room is enough to go on."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

import pytest

from app.core.errors import ErrorCode
from app.core.limits import MIB
from tests.faults.producing import LATEST_TIERED, Producer, check_all_kept, link, plain_batch, read_log
from tests.faults.served import SMALL_SEGMENTS, firn, serving
from tests.support.small_disk import fill, put_ballast, small_file_system
from tests.support.waiting import block_until

LOCAL_ONLY = {"remote.storage.enable": "false", "segment.bytes": "1048576", "retention.ms": "-1"}


@pytest.mark.ci
@pytest.mark.parametrize(
    "least_bytes",
    [
        pytest.param(0, id="refused by the kernel"),
        pytest.param(4 * MIB, id="refused below a set minimum", marks=pytest.mark.slow),
    ],
)
async def test_producers_are_told_reads_go_on_and_room_is_enough_to_go_on(tmp_path: Path, least_bytes: int) -> None:
    with small_file_system(tmp_path / "disk") as disk:
        settings = {"firn.log.dir.free.bytes.min": least_bytes}
        with serving(tmp_path, data_dir=disk / "data", settings=settings) as broker:
            async with link(broker.port) as connection:
                await connection.create_topic("t", 1, LOCAL_ONLY)
                await connection.create_topic("u", 1, LOCAL_ONLY)
            ballast = put_ballast(disk, 12 * MIB)
            producer = Producer(lambda: broker.port, "t", 0, random.Random(1), value_bytes=60_000)
            async with asyncio.TaskGroup() as group:
                group.create_task(producer.run())
                async with asyncio.timeout(30):
                    while not producer.refusals:
                        await asyncio.sleep(0.01)
                assert set(producer.refusals) == {"KAFKA_STORAGE_ERROR"}
                acknowledged = producer.records
                # All of it is there for readers, and other requests are answered.
                records = await read_log(broker.port, "t", 0)
                assert len(records) >= acknowledged > 100
                async with link(broker.port) as connection:
                    refused = await connection.produce("u", 0, plain_batch(1, bytes(900_000)))
                    assert refused.error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
                    assert await connection.offset("u", 0, -1) in (0, 1)
                ballast.unlink()
                async with asyncio.timeout(30):
                    while producer.records < acknowledged + 100:
                        await asyncio.sleep(0.01)
                producer.stopping = True
            await check_all_kept(broker.port, producer)
            assert broker.starts == 1


@pytest.mark.slow
async def test_a_broker_starts_on_a_full_disk_serves_reads_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk") as disk, serving(tmp_path, data_dir=disk / "data") as broker:
        async with link(broker.port) as connection:
            await connection.create_topic("t", 1, LOCAL_ONLY)
            answers = [await connection.produce("t", 0, plain_batch(1, bytes(700_000))) for _ in range(5)]
            assert [answer.base_offset for answer in answers] == [0, 1, 2, 3, 4]
        for end in (broker.kill, broker.stop):
            ballast = put_ballast(disk, 0)
            fill(ballast)
            await asyncio.to_thread(end)
            await asyncio.to_thread(broker.start)
            before = await read_log(broker.port, "t", 0)
            assert len(before) >= 5
            async with link(broker.port) as connection:
                refused = await connection.produce("t", 0, plain_batch(1, bytes(900_000)))
                assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                ballast.unlink()
                served = await connection.produce("t", 0, plain_batch(1, bytes(900_000)))
                assert (served.error_code, served.base_offset) == (0, len(before))


@pytest.mark.slow
async def test_a_full_bucket_stops_copies_alone_and_they_go_on_when_there_is_room(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk") as disk, serving(tmp_path, store=(disk / "store").as_uri()) as broker:
        async with link(broker.port) as connection:
            await connection.create_topic("t", 1, SMALL_SEGMENTS)
        ballast = put_ballast(disk, 6 * MIB)
        producer = Producer(lambda: broker.port, "t", 0, random.Random(2), value_bytes=60_000)

        def bytes_left() -> int:
            stats = os.statvfs(disk)
            return int(stats.f_bavail * stats.f_frsize)

        async def tiered_end() -> int:
            async with link(broker.port) as connection:
                return await connection.offset("t", 0, LATEST_TIERED)

        async with asyncio.TaskGroup() as group:
            group.create_task(producer.run())
            await asyncio.to_thread(block_until, lambda: bytes_left() < 2 * MIB, "the bucket is full")
            at_full, acknowledged = await tiered_end(), producer.records
            async with asyncio.timeout(30):
                while producer.records < acknowledged + 300:
                    await asyncio.sleep(0.01)
            producer.stopping = True
        assert not producer.refusals
        assert producer.reconnects == 0
        await read_log(broker.port, "t", 0)
        ballast.unlink()
        async with asyncio.timeout(60):
            while await tiered_end() < at_full + 300:
                await asyncio.sleep(0.1)
        await check_all_kept(broker.port, producer)
        await asyncio.to_thread(broker.stop)
        verified = firn("verify", "--store", broker.store, "--json")
        assert json.loads(verified.stdout)["sound"], verified.stdout
