"""Keyed requests over three brokers, of which one is killed (ADR 0043)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.client.cluster import EARLIEST, LATEST, ClusterClient
from app.client.consumer import Consumer
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.exactly_once.records import TOPIC, Result
from app.http.errors import RestError
from app.http.keyed.producing import KeyedProducer, KeyedRecord
from app.machine.runtime import SystemClock
from app.metadata.image.records import REQUESTS_LEVEL
from tests.support.several import cluster_on

KEYS = 12
PARTITIONS = 3
DIGEST = b"d" * 32
AGAIN = {409, 503}


@asynccontextmanager
async def process_of(bootstrap: list[tuple[str, int]], seed: int) -> AsyncIterator[KeyedProducer]:
    async with ClusterClient(bootstrap, rng=random.Random(seed), retry_budget_ms=20_000) as cluster:
        producer = KeyedProducer(cluster, SystemClock())
        yield producer
        await producer.close(1.0)


async def stored(process: KeyedProducer, number: int) -> Result:
    """The result of a key, as a client that repeats its request until it is answered gets it."""
    records = [KeyedRecord((number + place) % PARTITIONS, None, b"%d-%d" % (number, place)) for place in range(2)]
    while True:
        try:
            result = await process.produce(b"key-%d" % number, DIGEST, "t", records, 200)
        except RestError as error:
            if error.answer.status not in AGAIN:
                raise
            await asyncio.sleep(0.05)
            continue
        return result._replace(appended_ms=0)


async def committed(cluster: ClusterClient) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for index in range(PARTITIONS):
        partition = TopicPartition("t", PartitionIndex(index))
        end = (await cluster.list_offsets({partition: LATEST}))[partition].offset
        start = (await cluster.list_offsets({partition: EARLIEST}))[partition].offset
        async with Consumer(cluster, read_committed=True) as consumer:
            consumer.assign({partition: Offset(start)})
            while consumer.position(partition) < end:
                for batch in await consumer.poll(5_000):
                    found.update(record.value or b"" for record in batch.records())
    return found


async def test_two_processes_store_each_key_once_though_a_leader_of_results_is_killed(tmp_path: Path) -> None:
    settings = {"new_level": REQUESTS_LEVEL, "default_replication_factor": 3}
    async with cluster_on(tmp_path, 3, **settings) as brokers:
        await brokers[0].node.membership.controller.create_topic("t", PARTITIONS, {"min.insync.replicas": "2"}, 3)
        bootstrap = [("127.0.0.1", broker.port) for broker in brokers]
        async with process_of(bootstrap, 1) as one, process_of(bootstrap, 2) as other:
            results: dict[tuple[int, int], Result] = {}

            async def ask(name: int, process: KeyedProducer) -> None:
                for number in range(KEYS):
                    results[name, number] = await stored(process, number)

            work = asyncio.gather(ask(1, one), ask(2, other))
            while len(results) < KEYS // 2:
                assert not work.done()
                await asyncio.sleep(0.01)
            topic = brokers[0].node.cluster.image.topic(TOPIC)
            assert topic is not None
            assert {len(partition.replicas) for partition in topic.partitions} == {3}
            leader = topic.partitions[0].leader
            (victim,) = [broker for broker in brokers if broker.node.context.node_id == leader]
            await victim.kill()
            async with asyncio.timeout(300):
                await work
            assert [number for number in range(KEYS) if results[1, number] != results[2, number]] == []
        left = [("127.0.0.1", broker.port) for broker in brokers if broker is not victim]
        async with ClusterClient(left, rng=random.Random(3), retry_budget_ms=120_000) as cluster:
            assert await committed(cluster) == Counter(b"%d-%d" % (n, place) for n in range(KEYS) for place in range(2))
