"""``kill -9`` while producers run and segments move to the store: what was acknowledged is there, once, in order, unchanged.

The page cache survives the kill of a process, so this holds under ``firn.durability=memory``, too.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.producing import EARLIEST_LOCAL, Producer, check_all_kept, link
from tests.faults.served import SMALL_SEGMENTS, STORE_PROCESS, Served, firn, serving, until

TOPIC = "kept"
PARTITIONS = 3
FEW = 3
MANY = 50
STORE_KILLS_PER_START = 5
STORE_ENDED = "the store process ended (killed by signal 9); starting it again"


@asynccontextmanager
async def producing(broker: Served, rng: random.Random) -> AsyncIterator[list[Producer]]:
    """A producer for each partition; when the block is left they have got an answer to everything."""
    async with link(broker.port) as connection:
        await connection.create_topic(TOPIC, PARTITIONS, SMALL_SEGMENTS)
    producers = [
        Producer(lambda: broker.port, TOPIC, partition, random.Random(rng.random()), value_bytes=8_000)
        for partition in range(PARTITIONS)
    ]
    async with asyncio.TaskGroup() as group:
        for producer in producers:
            group.create_task(producer.run())
        yield producers
        for producer in producers:
            producer.stopping = True


async def more_acknowledged(producers: list[Producer], batches: int) -> None:
    wanted = sum(len(producer.acknowledged) for producer in producers) + batches
    async with asyncio.timeout(60):
        while sum(len(producer.acknowledged) for producer in producers) < wanted:
            await asyncio.sleep(0.001)


async def check(broker: Served, producers: list[Producer]) -> None:
    """Every record is there; most of them come from the store; and the bucket is sound."""
    for producer in producers:
        assert await check_all_kept(broker.port, producer) == producer.records
        assert not producer.refusals
    async with link(broker.port) as connection:
        local = [await connection.offset(TOPIC, n, EARLIEST_LOCAL) for n in range(PARTITIONS)]
    assert sum(local) > 0, "nothing was tiered"
    await asyncio.to_thread(broker.stop)
    verified = await asyncio.to_thread(firn, "verify", "--store", broker.store, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["sound"]


async def kill_brokers(path: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    with serving(path) as broker:
        async with producing(broker, rng) as producers:
            for _ in range(kills):
                if rng.random() < 0.2:
                    # While it starts.
                    await asyncio.to_thread(broker.kill)
                    broker.spawn()
                    await asyncio.sleep(rng.uniform(0, 1))
                else:
                    await more_acknowledged(producers, rng.randrange(1, 200))
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            await more_acknowledged(producers, 300)
        await check(broker, producers)
        assert broker.starts > kills


async def kill_store_processes(path: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    with serving(path) as broker:
        async with producing(broker, rng) as producers:
            killed = set()
            for number in range(kills):
                if number and number % STORE_KILLS_PER_START == 0:
                    # The pause before a store process is started again doubles; that of a new broker is short.
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
                    await more_acknowledged(producers, 1)
                reconnects = [producer.reconnects for producer in producers]
                await more_acknowledged(producers, rng.randrange(1, 100))
                killed.add(await asyncio.to_thread(broker.kill_child, STORE_PROCESS))
                told = lambda: broker.text.count(STORE_ENDED) > number  # noqa: E731, B023
                await asyncio.to_thread(until, told, "the end of the store process is noticed")
                await more_acknowledged(producers, 1)
                assert [producer.reconnects for producer in producers] == reconnects, "producing was disturbed"
            assert len(killed) == kills
            await more_acknowledged(producers, 300)
        assert broker.text.count(STORE_ENDED) == kills
        await asyncio.to_thread(
            until, lambda: len(list((path / "store" / "data").rglob("*.seg"))) > PARTITIONS, "copies go on"
        )
        await check(broker, producers)


async def test_a_killed_broker_has_lost_doubled_and_reordered_nothing(tmp_path: Path) -> None:
    await kill_brokers(tmp_path, FEW, 1)


async def test_a_killed_store_process_disturbs_no_producer_and_loses_nothing(tmp_path: Path) -> None:
    await kill_store_processes(tmp_path, FEW, 2)


@pytest.mark.slow
async def test_fifty_kills_of_the_broker(tmp_path: Path) -> None:
    await kill_brokers(tmp_path, MANY, 3)


@pytest.mark.slow
async def test_fifty_kills_of_the_store_process(tmp_path: Path) -> None:
    await kill_store_processes(tmp_path, MANY, 4)
