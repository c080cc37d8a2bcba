"""Instances share a group with each other and with a real consumer of the classic protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.http.rest_v2.clients import Instance, Rest
from tests.support.broker import RunningBroker, running_broker
from tests.support.waiting import until

FAST = {
    "group_consumer_heartbeat_interval_ms": 100,
    "group_consumer_min_heartbeat_interval_ms": 100,
    "group_consumer_assignment_interval_ms": 0,
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=1, group_initial_rebalance_delay_ms=0, **FAST) as running:
        yield running


async def partitions_of(made: Instance) -> set[int]:
    found = (await made.do("GET", "/assignments"))["partitions"]
    return {one["partition"] for one in found}


async def shared(*instances: Instance, of: int) -> None:
    """Wait until each of the instances has partitions, no two the same, and together all of them."""
    async with asyncio.timeout(60):
        while True:
            found = [await partitions_of(made) for made in instances]
            if all(found) and sum(map(len, found)) == of == len(set().union(*found)):
                return
            await asyncio.sleep(0.02)


class Classic:
    """A consumer of librdkafka in a thread, which counts the values that it reads."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        self.assigned: set[int] = set()
        self.values: list[bytes] = []
        self._ends = threading.Event()
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assign(self, consumer: Any, partitions: Any) -> None:
        self.assigned = {one.partition for one in partitions}

    def _revoke(self, consumer: Any, partitions: Any) -> None:
        self.assigned = set()

    def _run(self) -> None:
        while not self._ends.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.append(message.value())
        self._consumer.close()

    async def close(self) -> None:
        self._ends.set()
        await asyncio.to_thread(self._thread.join)


async def test_two_instances_share_partitions_and_the_one_that_stays_reads_on(rest: Rest) -> None:
    await rest.broker.create_topic("flights", partitions=4)
    first = await rest.instance("g", "first")
    await first.subscribe("flights")
    await shared(first, of=4)
    second = await rest.instance("g", "second")
    await second.subscribe("flights")
    await shared(first, second, of=4)
    for partition in range(4):
        await rest.produce("flights", partition, partition=partition)
    of_first = await first.read_all(len(await partitions_of(first)))
    of_second = await second.read_all(len(await partitions_of(second)))
    assert sorted(of_first + of_second) == [0, 1, 2, 3]
    await second.do("DELETE", "")
    await shared(first, of=4)
    for partition in range(4):
        await rest.produce("flights", 10 + partition, partition=partition)
    assert sorted(await first.read_all(4)) == [10, 11, 12, 13]


@pytest.mark.interop
async def test_two_instances_share_a_group_with_a_real_consumer(rest: Rest) -> None:
    await rest.broker.create_topic("flights", partitions=6)
    classic = Classic(rest.broker.bootstrap, "g", "flights")
    try:
        await until(lambda: len(classic.assigned) >= 6)
        instances = [await rest.instance("g", name) for name in ("first", "second")]
        for made in instances:
            await made.subscribe("flights")
        async with asyncio.timeout(60):
            while True:
                found = [await partitions_of(made) for made in instances] + [classic.assigned]
                if all(found) and sum(map(len, found)) == 6 == len(set().union(*found)):
                    break
                await asyncio.sleep(0.02)
        for partition in range(6):
            await rest.produce("flights", f"v{partition}", partition=partition)
        values: set[str] = set()
        while len(values) < 6:
            for made in instances:
                values |= {one["value"] for one in await made.read(timeout=100)}
            values |= {value.decode().strip('"') for value in classic.values}
        assert values == {f"v{partition}" for partition in range(6)}
    finally:
        await classic.close()
