"""``kill -9`` while producers run and segments move to the store: what was acknowledged is there, once, in order, unchanged.

The page cache survives the kill of a process, so this holds under ``firn.durability=memory``, too.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from app.records.builder import build_batch
from tests.faults.producing import EARLIEST_LOCAL, LATEST, Link, Producer, check_all_kept, link
from tests.faults.served import CLEANER_PROCESS, HTTP_PROCESS, SMALL_SEGMENTS, STORE_PROCESS, Served, firn, serving
from tests.support.ports import free_port
from tests.support.waiting import block_until

TOPIC = "kept"
PARTITIONS = 3
FEW = 3
MANY = 50
STORE_KILLS_PER_START = 5
CLEANED = "firn_log_cleaner_rounds_total"
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
    """Every record is there; some come from the store; and the bucket is sound."""
    async with link(broker.port) as connection, asyncio.timeout(90):
        while not sum([await connection.offset(TOPIC, n, EARLIEST_LOCAL) for n in range(PARTITIONS)]):
            await asyncio.sleep(0.1)  # a busy machine copies later than it acknowledges
    for producer in producers:
        assert await check_all_kept(broker.port, producer) == producer.records
        assert not producer.refusals
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
                await asyncio.to_thread(block_until, told, "the end of the store process is noticed")
                await more_acknowledged(producers, 1)
                assert [producer.reconnects for producer in producers] == reconnects, "producing was disturbed"
            assert len(killed) == kills
            await more_acknowledged(producers, 300)
        assert broker.text.count(STORE_ENDED) == kills
        await asyncio.to_thread(
            block_until, lambda: len(list((path / "store" / "data").rglob("*.seg"))) > PARTITIONS, "copies go on"
        )
        await check(broker, producers)


async def test_a_killed_broker_has_lost_doubled_and_reordered_nothing(tmp_path: Path) -> None:
    await kill_brokers(tmp_path, FEW, 1)


@pytest.mark.ci
async def test_a_killed_store_process_disturbs_no_producer_and_loses_nothing(tmp_path: Path) -> None:
    await kill_store_processes(tmp_path, FEW, 2)


def runs(process: psutil.Process) -> bool:
    """Whether a process still runs. One that has ended stays as a zombie until whoever it was handed to looks at it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
async def test_a_restart_right_after_kill_9_is_served_though_children_were_at_work(tmp_path: Path) -> None:
    """The cleaner, the store and the HTTP process stand still: they would notice nothing but that Linux ends them."""
    http_port = free_port()
    compacted = {"cleanup.policy": "compact", "remote.storage.enable": "false", "segment.bytes": "1048576"}
    settings = {"log.cleaner.backoff.ms": 10}
    with serving(tmp_path, http=f"127.0.0.1:{http_port}", settings=settings) as broker:
        for round_ in range(2):
            async with link(broker.port) as connection:
                if round_ == 0:
                    await connection.create_topic(TOPIC, 1, {"min.cleanable.dirty.ratio": "0.01", **compacted})
                await asyncio.to_thread(block_until, lambda: answers(http_port), "HTTP is served")
                await produce_keyed(connection)
                async with asyncio.timeout(240):  # numba may have to compile the kernels first
                    while not await connection.metric(CLEANED):
                        await asyncio.sleep(0.05)
                children = [broker.child(module) for module in (CLEANER_PROCESS, STORE_PROCESS, HTTP_PROCESS)]
                for child in children:
                    child.suspend()
                await produce_keyed(connection)  # work that the cleaner does not get done
                kept = await connection.offset(TOPIC, 0, LATEST)
            assert broker.process is not None
            broker.process.kill()
            broker.process.wait()
            await asyncio.to_thread(broker.start)
            assert not [child for child in children if runs(child)]
            async with link(broker.port) as connection:
                assert await connection.offset(TOPIC, 0, LATEST) == kept


async def produce_keyed(connection: Link) -> None:
    for n in range(4):
        batch = build_batch([(int(time.time() * 1000), b"key", b"%d" % n + bytes(400_000), ())])
        assert (await connection.produce(TOPIC, 0, batch)).error_code == 0


def answers(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
async def test_fifty_kills_of_the_broker(tmp_path: Path) -> None:
    await kill_brokers(tmp_path, MANY, 3)


@pytest.mark.slow
async def test_fifty_kills_of_the_store_process(tmp_path: Path) -> None:
    await kill_store_processes(tmp_path, MANY, 4)
