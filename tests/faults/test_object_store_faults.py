"""The object store fails in every way that it can: producers and hot readers do not notice, copies resume, and corrupt
bytes never reach a client."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.core.errors import ErrorCode
from app.records.batch import iter_headers
from tests.faults.faulty_proxy import Fault, FaultyProxy, faulty_proxy
from tests.faults.producing import EARLIEST_LOCAL, Link, Producer, check_all_kept, link
from tests.faults.s3 import BUCKET, CREDENTIALS, tiered_to
from tests.faults.served import SMALL_SEGMENTS, Served, firn, serving

CORRUPTIONS = "firn_remote_corruptions_total"
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


@asynccontextmanager
async def behind_a_proxy(path: Path, s3_port: int, seed: int) -> AsyncIterator[tuple[Served, FaultyProxy]]:
    async with faulty_proxy(s3_port, random.Random(seed)) as proxy:
        endpoint = f"http://127.0.0.1:{proxy.port}"
        store = f"s3://{BUCKET}/here?endpoint={endpoint}&region=us-east-1&path_style=true"
        with serving(path, store=store, environment=CREDENTIALS, start=False) as broker:
            await asyncio.to_thread(broker.start)
            yield broker, proxy
            proxy.fault = Fault.NONE
            await asyncio.to_thread(broker.stop)
            verified = await asyncio.to_thread(lambda: firn("verify", "--store", store, "--json", **CREDENTIALS))
            assert verified.returncode == 0, verified.stdout + verified.stderr
            assert json.loads(verified.stdout)["sound"]


async def more(producer: Producer, records: int) -> None:
    wanted = producer.records + records
    async with asyncio.timeout(60):
        while producer.records < wanted:
            await asyncio.sleep(0.005)


async def produce_through(path: Path, s3_port: int, faults: list[Fault], seed: int) -> None:
    async with behind_a_proxy(path, s3_port, seed) as (broker, proxy), link(broker.port) as connection:
        await connection.create_topic("t", 1, SMALL_SEGMENTS)
        producer = Producer(lambda: broker.port, "t", 0, random.Random(seed), value_bytes=20_000, pause_s=0.01)
        async with asyncio.TaskGroup() as group:
            group.create_task(producer.run())
            await tiered_to(connection, "t", 1)
            for fault in faults:
                proxy.fault = fault
                # Long enough that requests have met it, produced and read hot all the time.
                async with asyncio.timeout(60):
                    while proxy.done[fault] < 4:
                        await more(producer, 10)
                        newest = await connection.offset("t", 0, -1) - 1
                        hot = await connection.fetch("t", 0, newest)
                        assert hot.error_code == 0
                        assert len(hot.records) > 60
                assert not producer.refusals
                assert producer.reconnects == 0
                proxy.fault = Fault.NONE
                await tiered_to(connection, "t", producer.records)
            producer.stopping = True
        await check_all_kept(broker.port, producer)
        assert await connection.offset("t", 0, EARLIEST_LOCAL) > 0


@pytest.mark.ci
async def test_producers_and_hot_readers_do_not_notice_and_copies_resume(tmp_path: Path, s3_port: int) -> None:
    await produce_through(tmp_path, s3_port, [Fault.DOWN, Fault.LOST_ANSWERS], 21)


@pytest.mark.slow
async def test_every_fault_of_the_store_one_after_the_other(tmp_path: Path, s3_port: int) -> None:
    faults = [Fault.DOWN, Fault.SLOW, Fault.SLOW_DOWN, Fault.FORBIDDEN, Fault.LOST_ANSWERS]
    await produce_through(tmp_path, s3_port, faults * 2, 22)


async def cold_partition(broker: Served, connection: Link, topic: str, seed: int, records: int = 300) -> Producer:
    """A topic whose records have left the local disk, all but the newest."""
    await connection.create_topic(topic, 1, SMALL_SEGMENTS)
    producer = Producer(lambda: broker.port, topic, 0, random.Random(seed), value_bytes=40_000)
    async with asyncio.TaskGroup() as group:
        group.create_task(producer.run())
        await more(producer, records)
        producer.stopping = True
    async with asyncio.timeout(60):
        while await connection.offset(topic, 0, EARLIEST_LOCAL) < records // 2:
            await asyncio.sleep(0.05)
    return producer


async def never_wrong(connection: Link, producer: Producer, offset: int, seconds: float = 1) -> set[int]:
    """Fetch at ``offset`` for a while: an answer with bytes has the right ones. Returns: the error codes met."""
    wanted = next(sent for sent in producer.acknowledged if sent.offset == offset)
    met = set()
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while loop.time() < until_s:
        answer = await connection.fetch(producer.topic, 0, offset)
        met.add(int(answer.error_code))
        if answer.records:
            position, header = next(iter_headers(answer.records))
            data = bytes(answer.records[position : position + header.size_bytes])
            # What the broker may change: base offset and leader epoch, outside of the checksum.
            assert data[16:] == wanted.data[16:]
    return met


@pytest.mark.ci
@pytest.mark.parametrize("fault", [Fault.FLIPPED, pytest.param(Fault.TRUNCATED, marks=pytest.mark.slow)])
async def test_damaged_answers_of_the_store_never_reach_a_client(tmp_path: Path, s3_port: int, fault: Fault) -> None:
    async with behind_a_proxy(tmp_path, s3_port, 23) as (broker, proxy), link(broker.port) as connection:
        producer = await cold_partition(broker, connection, "t", 5)
        before = await connection.metric(CORRUPTIONS)
        proxy.fault = fault
        met = await never_wrong(connection, producer, 0)
        assert proxy.done[fault] > 0
        if fault is Fault.FLIPPED:
            assert met <= {0, STORAGE_ERROR}
            assert STORAGE_ERROR in met
            assert await connection.metric(CORRUPTIONS) > before
        else:
            # A connection that ends early is no corruption: the read is tried again, and the client waits for it.
            assert met == {0}
            assert proxy.done[fault] > 1
            assert await connection.metric(CORRUPTIONS) == before
        proxy.fault = Fault.NONE
        await check_all_kept(broker.port, producer)


@pytest.mark.slow
async def test_damaged_deleted_and_half_written_objects_of_a_directory_are_retriable_errors(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        async with link(broker.port) as connection:
            producer = await cold_partition(broker, connection, "t", 6)
            objects = sorted((tmp_path / "store" / "data").rglob("*.seg"), key=lambda path: path.name)
            first, second = objects[:2]
            sound = first.read_bytes(), second.read_bytes()
            begin = int(second.name.split("-")[0])
            before = await connection.metric(CORRUPTIONS)

            flipped = bytearray(sound[0])
            flipped[len(flipped) // 3] ^= 4
            for damaged in (bytes(flipped), sound[0][: len(sound[0]) // 2], b""):
                first.write_bytes(damaged)
                met = await never_wrong(connection, producer, 0)
                assert met <= {0, int(STORAGE_ERROR)}, met
                assert STORAGE_ERROR in met
            assert await connection.metric(CORRUPTIONS) > before
            first.write_bytes(sound[0])

            second.unlink()
            met = await never_wrong(connection, producer, begin)
            assert met == {int(STORAGE_ERROR)}, met
            # Hot reads and producing go on beside it.
            assert (await connection.fetch("t", 0, await connection.offset("t", 0, -1) - 1)).error_code == 0
            damage = await asyncio.to_thread(firn, "verify", "--store", broker.store)
            assert damage.returncode == 1
            assert "DAMAGE" in damage.stdout
            second.write_bytes(sound[1])
            await check_all_kept(broker.port, producer)
        verified = await asyncio.to_thread(firn, "verify", "--store", broker.store)
        assert verified.returncode == 0, verified.stdout
