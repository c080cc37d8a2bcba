"""Write-ahead logs in a store of their own (ADR 0037, J61 to J64), on real brokers in one loop, with stores that fail apart."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.broker.write_ahead.sweep import sweep_ended
from app.cli.doctor import store_checks
from app.core.errors import ErrorCode
from app.core.metrics import Registry
from app.machine.runtime import SystemClock, ThreadPool
from app.metadata.image.records import OBJECT_LEVEL
from app.metadata.log import layout
from app.metadata.view.registration import StartRefused
from app.metadata.view.wal_store import decode_marker
from app.objectstore.api import ObjectStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.objectstore.metered import MeteredStore
from app.objectstore.opening import open_store
from app.objectstore.split import SplitStore
from tests.broker.object_topics import CONFIGS, create, led, produce_count, records_read
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.several import unfenced
from tests.support.talking import tier_everything
from tests.support.waiting import until

RNG = random.Random(61)
URL = "file:///fast"
WITH_DISK = {**CONFIGS, "firn.durability": "memory"}


class Stores:
    """The two stores of a cluster, which fail apart from each other."""

    def __init__(self) -> None:
        self.main = MemoryStore()
        self.wal = MemoryStore()

    @property
    def both(self) -> SplitStore:
        return SplitStore(self.main, self.wal)


def keys(store: MemoryStore, prefix: str) -> list[str]:
    return sorted(key for key in store._objects if key.startswith(prefix))


def numbered(store: MemoryStore) -> list[str]:
    return [key for key in keys(store, layout.WAL_PREFIX) if key != layout.WAL_STORE_KEY]


@asynccontextmanager
async def broker_on(
    path: Path, store: ObjectStore, node_id: int = 1, *, url: str = URL, **settings: Any
) -> AsyncIterator[RunningBroker]:
    settings = {
        "new_level": OBJECT_LEVEL,
        "broker_heartbeat_interval_ms": 50,
        "broker_session_timeout_ms": 1_000,
        "remote_log_manager_task_interval_ms": 50,
        **settings,
    }
    rng = random.Random(RNG.random())
    async with running_broker(
        path / f"broker-{node_id}", store=store, rng=rng, node_id=node_id, wal_store_url=url, **settings
    ) as broker:
        yield broker


@asynccontextmanager
async def alone(path: Path, store: ObjectStore, **settings: Any) -> AsyncIterator[RunningBroker]:
    async with broker_on(path, store, **settings) as broker:
        await until(lambda: unfenced(broker) == [1])
        yield broker


async def test_write_ahead_logs_are_wholly_in_their_store_and_outlive_a_lost_disk(tmp_path: Path) -> None:
    stores = Stores()
    end = 0
    for run in range(2):
        async with alone(tmp_path, stores.both, take_over=run > 0) as broker:
            await (led(broker, "t") if run else create(broker, "t"))
            async with talk(broker.port) as client:
                for _ in range(3):
                    assert await produce_count(client, 2) == (ErrorCode.NONE, end)
                    end += 2
            await broker.kill()
        shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, stores.both, take_over=True) as broker:
        await led(broker, "t")
        assert await records_read(broker, end) == end
        image = broker.node.cluster.image
        marker = decode_marker(await stores.wal.get(layout.WAL_STORE_KEY))
        assert marker == (image.cluster_id, image.wal_store)
        assert {key.split("/")[0] for key in stores.wal._objects} == {"wal"}
        assert keys(stores.main, layout.WAL_PREFIX) == []
        # What is tiered is in the main store, and is deleted from ended logs in the other one.
        async with talk(broker.port) as client:
            assert await produce_count(client, 1) == (ErrorCode.NONE, end)
        await tier_everything(broker, "t")
        await until(lambda: len(broker.node.cluster.image.topics_by_name["t"].partitions[0].wal_ranges) == 1)
        before = len(numbered(stores.wal))
        deleted = await sweep_ended(
            stores.both, lambda: broker.node.cluster.image, sealer=1, clock=SystemClock(), rng=RNG
        )
        assert deleted == 6
        assert len(numbered(stores.wal)) == before - 6
        assert keys(stores.main, "data/")


async def test_another_broker_takes_over_from_the_wal_store(tmp_path: Path) -> None:
    stores = Stores()
    async with AsyncExitStack() as stack:
        brokers = {
            node_id: await stack.enter_async_context(broker_on(tmp_path, stores.both, node_id)) for node_id in (1, 2)
        }
        for broker in brokers.values():
            await until(lambda broker=broker: unfenced(broker) == [1, 2])
        assert brokers[1].node.cluster.image.wal_store
        await brokers[1].node.membership.controller.create_topic("t", 2, CONFIGS, replication_factor=1)
        partitions = lambda: brokers[1].node.cluster.image.topics_by_name["t"].partitions  # noqa: E731
        lost = next(one.partition_index for one in partitions() if one.leader == 2)
        await until(lambda: brokers[2].node.partitions.table.led("t", lost) is not None)
        async with talk(brokers[2].port) as client:
            assert await produce_count(client, 4, index=lost) == (ErrorCode.NONE, 0)
        await brokers[2].kill()
        await until(lambda: partitions()[lost].leader == 1)
        await until(lambda: brokers[1].node.partitions.table.led("t", lost) is not None)
        async with talk(brokers[1].port) as client:
            assert await produce_count(client, 1, index=lost) == (ErrorCode.NONE, 4)
        assert keys(stores.main, layout.WAL_PREFIX) == []


async def test_j62_j64_a_broker_with_another_store_neither_joins_nor_seals(tmp_path: Path) -> None:
    stores = Stores()
    async with alone(tmp_path, stores.both) as broker:
        await create(broker, "t")
        async with talk(broker.port) as client:
            assert await produce_count(client, 3) == (ErrorCode.NONE, 0)
        cluster_id = broker.node.cluster.image.cluster_id
        await broker.kill()  # its range is left open: whoever is the controller next wants to seal its log
    held = dict(stores.main._objects), dict(stores.wal._objects)
    other = Stores()
    await other.wal.put(
        layout.WAL_STORE_KEY,
        f'{{"format":1,"cluster":"{cluster_id}","store":"7c9e6679-7425-40de-944b-e07fc1f90ae7"}}'.encode(),
    )
    strangers = Stores()
    await strangers.wal.put(
        layout.WAL_STORE_KEY, b'{"format":1,"cluster":"stranger","store":"7c9e6679-7425-40de-944b-e07fc1f90ae7"}'
    )
    refusals = (
        (stores.main, "", "this broker names none: start it with the --wal-store"),
        (SplitStore(stores.main, MemoryStore()), URL, "has no marker of a WAL store"),
        (SplitStore(stores.main, other.wal), URL, "that of this broker is 7c9e6679"),
        (SplitStore(stores.main, strangers.wal), URL, "has the write-ahead logs of cluster stranger"),
    )
    for store, url, why in refusals:
        with pytest.raises(StartRefused, match=why):
            async with broker_on(tmp_path, store, url=url, take_over=True):
                pass
        wrong = store.wal if isinstance(store, SplitStore) else store
        assert numbered(wrong) == []
    assert dict(stores.wal._objects) == held[1]
    async with alone(tmp_path, stores.both, take_over=True) as broker:
        await led(broker, "t")
        assert await records_read(broker, 3) == 3


async def test_j62_a_controller_that_does_not_know_the_wal_store_seals_nothing(tmp_path: Path) -> None:
    stores = Stores()
    async with alone(tmp_path, stores.both) as broker:
        await create(broker, "t")
        async with talk(broker.port) as client:
            assert await produce_count(client, 3) == (ErrorCode.NONE, 0)
        await broker.kill()
    # The next process is alone, so it would be the controller at once, and fence the one that was killed. It cannot read the
    # marker of its WAL store, which is another one.
    other = MemoryStore(faults=[Fault(FaultKind.UNAVAILABLE, key_prefix=layout.WAL_STORE_KEY)])
    lines: list[str] = []

    async def start() -> None:
        async with broker_on(tmp_path, SplitStore(stores.main, other), log_line=lines.append):
            raise AssertionError("it is not registered")

    starting = asyncio.create_task(start())
    await until(lambda: numbered(other) or any("waits for its WAL store" in line for line in lines))
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert numbered(other) == []
    async with alone(tmp_path, stores.both) as broker:
        await led(broker, "t")
        assert await records_read(broker, 3) == 3


async def test_j63_the_store_is_changed_while_nothing_is_in_it(tmp_path: Path) -> None:
    stores = Stores()
    async with alone(tmp_path, stores.main, url="") as broker:
        assert broker.node.cluster.image.wal_store == ""
        assert keys(stores.main, layout.WAL_PREFIX) == []
    async with alone(tmp_path, stores.both) as broker:
        assert broker.node.cluster.image.wal_store == decode_marker(await stores.wal.get(layout.WAL_STORE_KEY)).store_id
        await create(broker, "t")
        async with talk(broker.port) as client:
            assert await produce_count(client, 1) == (ErrorCode.NONE, 0)
        assert len(numbered(stores.wal)) == 1
        with pytest.raises(StartRefused, match="start it with the --wal-store"):
            async with broker_on(tmp_path, stores.main, 2, url=""):
                pass
    with pytest.raises(StartRefused, match="cannot be changed while a topic has records in them"):
        async with broker_on(tmp_path, stores.main, url=""):
            pass


async def test_without_the_wal_store_all_other_topics_and_tiering_go_on(tmp_path: Path) -> None:
    stores = Stores()
    async with alone(tmp_path, stores.both) as broker:
        await create(broker, "t")
        await broker.node.membership.controller.create_topic("local", 1, WITH_DISK)
        await led(broker, "local")
        async with talk(broker.port) as client:
            assert await produce_count(client, 3) == (ErrorCode.NONE, 0)
            stores.wal.faults.append(Fault(FaultKind.UNAVAILABLE))
            assert (await produce_count(client, 2, timeout_ms=300))[0] is ErrorCode.REQUEST_TIMED_OUT
            assert await produce_count(client, 5, topic="local") == (ErrorCode.NONE, 0)
            await tier_everything(broker, "local")
            assert await records_read(broker, 5, "local") == 5
            assert broker.log("t").high_watermark == 3
            assert await records_read(broker, 3) == 3
            stores.wal.faults.clear()
            await until(lambda: broker.log("t").high_watermark == 5)
            assert await produce_count(client, 1) == (ErrorCode.NONE, 5)


async def test_without_the_main_store_what_the_wal_store_has_is_acknowledged(tmp_path: Path) -> None:
    stores = Stores()
    async with alone(tmp_path, stores.both) as broker:
        await create(broker, "t")
        async with talk(broker.port) as client:
            assert await produce_count(client, 3) == (ErrorCode.NONE, 0)
            stores.main.faults.append(Fault(FaultKind.UNAVAILABLE))
            for end in (3, 5, 7):
                assert await produce_count(client, 2) == (ErrorCode.NONE, end)
            broker.log("t").roll()
            objects = numbered(stores.wal)
            assert await produce_count(client, 1) == (ErrorCode.NONE, 9)
            assert await records_read(broker, 10) == 10
            assert numbered(stores.wal)[: len(objects)] == objects  # nothing of it is tiered
            stores.main.faults.clear()
            await tier_everything(broker, "t")
        await broker.kill()
    shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, stores.both, take_over=True) as broker:
        await led(broker, "t")
        assert broker.log("t").log_end_offset >= 10


async def test_a_start_waits_for_the_wal_store(tmp_path: Path) -> None:
    stores = Stores()
    stores.wal.faults.append(Fault(FaultKind.UNAVAILABLE, times=2))
    async with alone(tmp_path, stores.both) as broker:
        assert any("waits for its WAL store, file:///fast" in line for line in broker.lines)


async def findings(url: str, wal_url: str) -> dict[str, str]:
    """What the doctor finds wrong, with what to do."""
    return {one.name: one.mend for one in await store_checks(url, wal_url=wal_url) if not one.passed}


async def test_the_doctor_checks_the_wal_store_and_that_it_is_the_clusters(tmp_path: Path) -> None:
    pool = ThreadPool(2)
    main, wal, other = (f"file://{tmp_path}/{name}" for name in ("main", "wal", "other"))
    assert await findings(main, wal) == {}
    assert not (tmp_path / "wal").exists()
    store = await open_store(main, pool=pool, rng=RNG, wal=wal)
    async with alone(tmp_path, store, url=wal) as broker:
        await create(broker, "t")
        async with talk(broker.port) as client:
            assert await produce_count(client, 1) == (ErrorCode.NONE, 0)
        names = [one.name for one in await store_checks(main, wal_url=wal) if one.passed]
        assert {"store: conditional write", "WAL store: conditional write", "WAL store: cluster"} <= set(names)
        assert "WAL store: multipart upload" not in names
        assert await findings(main, wal) == {}
        start = "start it with the --wal-store (firn.wal.store.url) of the other brokers"
        assert await findings(main, "") == {"store: WAL store": start}
        named = "mount the file system, or name the WAL store of the brokers"
        assert await findings(main, other) == {"WAL store: cluster": named}
    stranger = await open_store(other, pool=pool, rng=RNG)
    await stranger.put(
        layout.WAL_STORE_KEY, b'{"format":1,"cluster":"stranger","store":"7c9e6679-7425-40de-944b-e07fc1f90ae7"}'
    )
    assert await findings(main, other) == {"WAL store: cluster": "give each cluster a WAL store or a prefix of its own"}
    pool.close()


async def test_what_the_wal_store_costs_is_counted_apart(tmp_path: Path) -> None:
    registry, stores = Registry(), Stores()
    store = SplitStore(MeteredStore(stores.main, registry), MeteredStore(stores.wal, registry, of_wal=True))
    async with alone(tmp_path, store, url="s3://fast--use1-az4--x-s3", store_registry=registry) as broker:
        await until(lambda: broker.node.spending is not None)
        spending = broker.node.spending
        assert spending is not None
        await create(broker, "t")
        await spending.read()
        async with talk(broker.port) as client:
            assert await produce_count(client, 1) == (ErrorCode.NONE, 0)
        await spending.read()
        spent = spending.spent
        assert spent is not None
        assert spent.wal_store == "express"
        assert spent.requests["put_if_absent", "wal"] == 1
        [key] = numbered(stores.wal)
        assert spent.wal_bytes["up", "express"] == len(await stores.wal.get(key))
