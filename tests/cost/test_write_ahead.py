"""The model of the write-ahead log against what a broker really asks of its store.

A whole broker runs on a virtual clock, on a store whose requests take 30 ms: minutes of it pass in a second or two.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from app.broker.composing.node_seams import NodeSeams
from app.broker.node import Node
from app.broker.peers.control_link import KafkaControlLink
from app.broker.write_ahead import write_ahead
from app.configs import BrokerConfig, TopicConfig
from app.core.metrics import Registry
from app.core.units import Buffer
from app.cost import requests
from app.cost.workload import WriteAhead
from app.metadata.image.records import OBJECT_LEVEL
from app.objectstore.memory import MemoryStore
from app.objectstore.metered import WAL, MeteredStore
from app.records.builder import build_batch
from app.tiering.store.store_work import InlineStoreWork
from app.wal import format as wal_format
from tests.support.simfs import SimFileSystem
from tests.support.virtual_loop import VirtualClock, VirtualLoop, VirtualPool, run_virtual

REQUEST_S = 0.03
BATCH_BYTES = 4_000
TOLERANCE = 0.05


class SlowStore(MemoryStore):
    """Every object takes as long to put as one of S3."""

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        await asyncio.sleep(REQUEST_S)
        await super().put_if_absent(key, data)


class Run:
    """A broker at work, and its counted requests."""

    def __init__(self, node: Node, registry: Registry, loop: VirtualLoop) -> None:
        self.node = node
        self._registry = registry
        self._loop = loop
        self._rng = random.Random(5)

    def counted(self) -> Counter[tuple[str, str]]:
        """Requests so far by (operation, kind), whatever came of them."""
        found: Counter[tuple[str, str]] = Counter()
        for sample in self._registry.samples():
            if sample.name == "firn_store_requests_total":
                labels = dict(sample.labels)
                found[labels["operation"], labels["kind"]] += int(sample.value)
        return found

    async def topic(self, partitions: int, linger_ms: int) -> None:
        configs = {
            "firn.durability": "object",
            "firn.wal.linger.ms": str(linger_ms),
            "segment.bytes": "1048576",
            "remote.storage.enable": "true",
            "firn.tier.compression": "none",
        }
        await self.node.membership.controller.create_topic("t", partitions, configs)
        while any(self.node.partitions.table.led("t", index) is None for index in range(partitions)):
            await asyncio.sleep(0.1)

    async def produce(self, partitions: int, *, appends_per_s: float, seconds: float) -> int:
        """Appends at random times to random partitions. Returns: bytes."""
        now_ms = VirtualClock(self._loop).now_ms
        batch = build_batch([(now_ms(), None, self._rng.randbytes(BATCH_BYTES), ())])
        due_s = end_s = self._loop.time()
        end_s += seconds
        total = 0
        while (due_s := due_s + self._rng.expovariate(appends_per_s)) < end_s:
            await asyncio.sleep(due_s - self._loop.time())
            led = self.node.partitions.table.led("t", self._rng.randrange(partitions))
            assert led is not None
            led.log.append_as_leader(memoryview(bytearray(batch)), now_ms=now_ms())
            total += len(batch)
        return total


def run_broker(*scenarios: Callable[[Run], Awaitable[None]], **settings: int) -> None:
    """A broker alone in a cluster of level 3, for as long as the scenario. It is killed then. Each further scenario has a new
    broker on an empty disk, which takes its place over."""

    async def main(loop: VirtualLoop) -> None:
        registry, rng = Registry(), random.Random(3)
        store = MeteredStore(SlowStore(), registry)
        for number, scenario in enumerate(scenarios):
            await run(loop, store, registry, rng, scenario, take_over=number > 0)

    async def run(
        loop: VirtualLoop,
        store: MeteredStore,
        registry: Registry,
        rng: random.Random,
        scenario: Callable[[Run], Awaitable[None]],
        take_over: bool,
    ) -> None:
        pool = VirtualPool(lambda: 0.0001)
        fs: Any = SimFileSystem(rng)
        config = BrokerConfig(
            node_id=1,
            data_dir="/data",
            listen_port=0,
            http_address="off",
            topic_defaults=TopicConfig(),
            firn_log_dir_free_bytes_min=0,
            take_over=take_over,
            **settings,
        )
        around = NodeSeams(
            clock=VirtualClock(loop),
            rng=rng,
            pool=pool,
            fs=fs,
            store=store,
            work=InlineStoreWork(store, fs, pool, rng),
            log_line=lambda line: None,
            boot_s=loop.time,
            new_link=KafkaControlLink,
            new_level=OBJECT_LEVEL,
        )
        node = Node(config, around)
        ready = asyncio.Event()
        await node.start(listen=False)
        serving = asyncio.create_task(node.run(ready.set))
        try:
            await ready.wait()
            while not any(not one.fenced for one in node.cluster.image.brokers.values()):
                await asyncio.sleep(0.1)
            await scenario(Run(node, registry, loop))
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            await node.stop()

    run_virtual(main)


@pytest.mark.parametrize(
    ("partitions", "appends_per_s", "linger_ms", "wal_bytes", "seconds"),
    [
        (10, 200.0, 50, 8 << 20, 10.0),
        (100, 200.0, 50, 8 << 20, 10.0),
        (3, 5.0, 250, 8 << 20, 200.0),
        (10, 200.0, 5_000, 64 << 10, 10.0),
    ],
    ids=["linger", "many partitions", "few requests", "size"],
)
def test_objects_of_the_log_are_as_many_as_the_model_says(
    partitions: int, appends_per_s: float, linger_ms: int, wal_bytes: int, seconds: float
) -> None:
    async def scenario(run: Run) -> None:
        await run.topic(partitions, linger_ms)
        before = run.counted()
        total = await run.produce(partitions, appends_per_s=appends_per_s, seconds=seconds)
        found = run.counted()["put_if_absent", WAL] - before["put_if_absent", WAL]
        model = requests.write_ahead(
            seconds, total / seconds, linger_ms=linger_ms, object_bytes=wal_bytes, appends_per_s=appends_per_s
        )
        assert found == pytest.approx(model["put_if_absent"], rel=TOLERANCE)

    run_broker(scenario, wal_bytes=wal_bytes, wal_buffer_bytes=18 * wal_bytes)


@pytest.mark.ci
def test_all_requests_of_a_broker_are_as_many_as_the_model_says() -> None:
    partitions, appends_per_s, linger_ms, seconds = 4, 20.0, 250, 200.0

    async def scenario(run: Run) -> None:
        await run.topic(partitions, linger_ms)
        before = run.counted()
        total = await run.produce(partitions, appends_per_s=appends_per_s, seconds=seconds)
        found: Counter[str] = Counter()
        for (operation, _), count in (run.counted() - before).items():
            found[operation] += count
        copied = sum(one.copied_segments for one in run.node.remote_log_manager.status())
        assert copied == pytest.approx(total / (1 << 20), abs=partitions)
        model = requests.add(
            requests.write_ahead(
                seconds, total / seconds, linger_ms=linger_ms, object_bytes=8 << 20, appends_per_s=appends_per_s
            ),
            requests.times(requests.copy_segment(1 << 20), copied),
            requests.heartbeats(seconds),
            requests.times(requests.take_over(), partitions),
        )
        assert requests.billed(found)[0] == pytest.approx(requests.billed(model)[0], rel=TOLERANCE)

    run_broker(scenario, remote_log_manager_task_interval_ms=1_000)


def test_a_take_over_asks_for_what_the_model_says() -> None:
    partitions = 5
    before: Counter[tuple[str, str]] = Counter()

    async def fill(run: Run) -> None:
        await run.topic(partitions, 50)
        await run.produce(partitions, appends_per_s=100.0, seconds=3.0)
        await asyncio.sleep(1)
        before.update(run.counted())

    async def look(run: Run) -> None:
        while any(run.node.partitions.table.led("t", index) is None for index in range(partitions)):
            await asyncio.sleep(0.1)
        found = Counter(
            {operation: count for (operation, kind), count in (run.counted() - before).items() if kind == WAL}
        )
        objects = before["put_if_absent", WAL]
        model = Counter(requests.take_over_write_ahead(objects, partitions))
        assert found["get_range"] >= objects > 30
        for operation in ("get_range", "get"):
            assert found[operation] == pytest.approx(model[operation], rel=TOLERANCE), operation
        assert 0 < found["list_objects"] <= model["list_objects"]
        assert found["put_if_absent"] == 1, "the seal"

    run_broker(fill, look)


@pytest.mark.ci
def test_a_hundred_idle_topics_put_nothing() -> None:
    async def scenario(run: Run) -> None:
        await run.topic(100, 250)
        before = run.counted()
        await asyncio.sleep(600)
        found = {operation for operation, kind in run.counted() - before if kind == WAL}
        assert found <= {"list_objects"}, "the controller looks for logs that have ended"
        assert requests.write_ahead(600, 0.0, linger_ms=250, object_bytes=8 << 20) == {}

    run_broker(scenario)


def test_the_model_has_the_programs_defaults() -> None:
    broker, model = BrokerConfig(), WriteAhead()
    assert model.linger_ms == TopicConfig().firn_wal_linger_ms
    assert (model.object_bytes, model.retention_bytes) == (broker.wal_bytes, broker.wal_retention_bytes)
    assert requests.TRIM_INTERVAL_S == write_ahead.TRIM_S
    assert requests.SEAL_READS == wal_format.WINDOW + 1
