"""Alerts on the object store and on integrity fire when their faults happen to brokers, and only then.

The metrics are those that the HTTP process serves. Only the times of the scrapes are made up, so that nothing waits for minutes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from app.cli import main
from app.core.errors import StorageUnavailable
from app.core.limits import GIB, MIB
from app.core.units import Buffer
from app.machine.rpc import RpcClient, RpcServer
from app.machine.runtime import SystemClock
from app.metadata.image.records import OBJECT_LEVEL
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.objectstore.proxy import StoreProxy, store_handlers
from app.tiering.upload.remote_log_manager import RemoteLogManager
from tests.broker.object_topics import create
from tests.handlers.conversation import Talk, batch, talk
from tests.support.alerts import TIERED, Storing, causes, scraped, scraped_at, until_counted
from tests.support.broker import RunningBroker, running_broker
from tests.support.ports import free_port
from tests.support.promql import RULES, Scrapes
from tests.support.scraping import Prometheus, minutes
from tests.support.several import unfenced
from tests.support.talking import fetch_all, produce, tier_everything
from tests.support.waiting import until

NO_SETTINGS: Final[Mapping[str, Any]] = {}


class Held(MemoryStore):
    """A store that keeps some requests waiting."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.opened = asyncio.Event()
        self.opened.set()
        self.waiting = 0

    async def _wait(self, key: str, prefix: str) -> None:
        if key.startswith(prefix):
            self.waiting += 1
            await self.opened.wait()
            self.waiting -= 1

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        await self._wait(key, "wal/")
        await super().put_if_absent(key, data)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self._wait(key, "data/")
        return await super().get_range(key, start, end)


@pytest.mark.ci
@causes("FirnTieringFails", "FirnStoreErrors")
async def test_a_store_that_refuses_uploads_is_told_of_by_its_errors_and_by_tiering(tmp_path: Path) -> None:
    storing = Storing()
    async with (
        storing.broker(tmp_path, remote_log_manager_task_interval_ms=20) as broker,
        scraped(broker) as prometheus,
        talk(broker.port) as client,
    ):
        await broker.create_topic("t", 1, **TIERED)
        await produce(client, "t", batch(10))
        await prometheus.scrape(*minutes(0, 10))
        assert prometheus.firing("FirnStoreErrors", 600) == prometheus.firing("FirnTieringFails", 600) == []
        away = Fault(FaultKind.UNAVAILABLE, key_prefix="data/")
        storing.memory.faults.append(away)
        broker.log("t").roll()
        for at_s in minutes(11, 32):
            struck = away.struck

            def failed_again(struck: int = struck) -> bool:
                broker.node.remote_log_manager.kick()
                return away.struck > struck

            if at_s % 120 == 0:
                await until(failed_again)
            await prometheus.scrape(at_s)
        for alert in ("FirnTieringFails", "FirnStoreErrors"):
            assert [one["node_id"] for one in prometheus.firing(alert, 32 * 60)] == ["1"], alert
        storing.memory.faults.clear()
        await tier_everything(broker, "t")
        await prometheus.scrape(*minutes(60, 80))
        assert prometheus.firing("FirnTieringFails", 80 * 60) == prometheus.firing("FirnStoreErrors", 80 * 60) == []


@asynccontextmanager
async def over_rpc(store: MemoryStore) -> AsyncIterator[StoreProxy]:
    """A proxy of a store, as a broker has one of its store process; both ends are in this loop."""
    ours, theirs = socket.socketpair()
    client = RpcClient()
    async with asyncio.TaskGroup() as group:
        group.create_task(RpcServer(store_handlers(store)).serve(theirs))
        await client.connect(ours)
        proxy = StoreProxy(client, part_bytes_min=1)
        try:
            yield proxy
        finally:
            await proxy.close()
            await client.close()


@causes("FirnStoreUnreachable")
async def test_a_store_that_fails_every_request_is_unreachable_until_it_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.objectstore.health.SILENT_S", 0.05)
    memory = MemoryStore(clock=SystemClock())
    async with (
        over_rpc(memory) as store,
        running_broker(tmp_path, store=store, store_trouble=store.health.trouble) as broker,
        scraped(broker) as prometheus,
    ):
        await prometheus.scrape(*minutes(0, 2))
        assert prometheus.firing("FirnStoreUnreachable", 120) == []
        memory.faults.append(Fault(FaultKind.UNAVAILABLE))

        async def until_responds(responds: bool) -> None:
            async with asyncio.timeout(60):
                while bool(store.health.trouble()) is responds:
                    with suppress(StorageUnavailable):
                        await store.list_objects("data/")

        await until_responds(False)
        await prometheus.scrape(*minutes(10, 12))
        assert [one["node_id"] for one in prometheus.firing("FirnStoreUnreachable", 12 * 60)] == ["1"]
        memory.faults.clear()
        await until_responds(True)
        await prometheus.scrape(13 * 60)
        assert prometheus.firing("FirnStoreUnreachable", 13 * 60) == []


@causes("FirnUploadsStall")
async def test_uploads_that_hang_stall_until_the_store_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RemoteLogManager.__init__.__kwdefaults__, "stall_s", 0.02)
    storing = Storing()
    async with storing.broker(tmp_path) as broker, scraped(broker) as prometheus, talk(broker.port) as client:
        await broker.create_topic("t", 1, **TIERED)
        await produce(client, "t", batch(10))
        await prometheus.scrape(0)
        assert prometheus.firing("FirnUploadsStall", 0) == []
        hangs = Fault(FaultKind.HANG, operation="put_if_absent", key_prefix="data/")
        storing.memory.faults.append(hangs)
        broker.log("t").roll()
        for struck in range(1, 4):

            def hung(struck: int = struck) -> bool:
                broker.node.remote_log_manager.kick()
                return hangs.struck >= struck

            await until(hung)
            await until_counted(prometheus, "firn_tier_stalled_uploads_total", struck)
        await prometheus.scrape(600)
        assert [one["node_id"] for one in prometheus.firing("FirnUploadsStall", 600)] == ["1"]
        storing.memory.faults.clear()
        await tier_everything(broker, "t")
        await prometheus.scrape(*minutes(45, 46))
        assert prometheus.firing("FirnUploadsStall", 46 * 60) == []


@pytest.mark.ci
@causes("FirnTieringLag")
async def test_a_partition_lags_whose_segments_do_not_reach_the_store(tmp_path: Path) -> None:
    storing = Storing()
    rules = tmp_path / "firn.rules.yaml"
    # As the runbook says for another segment.bytes.
    rules.write_text(RULES.read_text().replace(f"4 * {GIB}", f"4 * {TIERED['segment_bytes']}"))
    async with storing.broker(tmp_path / "b") as broker, scraped(broker) as prometheus, talk(broker.port) as client:
        prometheus.scrapes = Scrapes(rules)
        await broker.create_topic("t", 1, **TIERED)
        storing.memory.faults.append(Fault(FaultKind.UNAVAILABLE, key_prefix="data/"))
        large = batch(1, value=bytes(MIB - 1024))
        await produce(client, "t", *[large] * 60)
        await prometheus.scrape(*minutes(0, 30))
        assert prometheus.firing("FirnTieringLag", 30 * 60) == []
        await produce(client, "t", *[large] * 8)
        await prometheus.scrape(*minutes(31, 61))
        (found,) = prometheus.firing("FirnTieringLag", 61 * 60)
        assert (found["node_id"], found["topic"], found["partition"]) == ("1", "t", "0")
        storing.memory.faults.clear()
        await tier_everything(broker, "t")
        await prometheus.scrape(62 * 60)
        assert prometheus.firing("FirnTieringLag", 62 * 60) == []


@asynccontextmanager
async def writing_ahead(
    storing: Storing, path: Path, more: Mapping[str, Any] = NO_SETTINGS, **configs: str
) -> AsyncIterator[RunningBroker]:
    """A broker with topic ``t``, whose records are in the store when they are acknowledged."""
    settings: dict[str, Any] = {"node_id": 1, "broker_heartbeat_interval_ms": 50, **more}
    async with storing.broker(path, new_level=OBJECT_LEVEL, **settings) as broker:
        await until(lambda: unfenced(broker) == [1])
        await create(broker, "t", **configs)
        yield broker


@causes("FirnWriteAheadBacklog")
async def test_write_ahead_logs_that_the_store_does_not_take_are_a_backlog(tmp_path: Path) -> None:
    held = Held()
    async with AsyncExitStack() as stack:
        small = {"wal_bytes": MIB, "wal_buffer_bytes": 4 * MIB}
        broker = await stack.enter_async_context(writing_ahead(Storing(held), tmp_path, small))
        prometheus = await stack.enter_async_context(scraped(broker))
        await prometheus.scrape(*minutes(0, 3))
        assert prometheus.firing("FirnWriteAheadBacklog", 180) == []
        held.opened.clear()
        producers: list[Talk] = [await stack.enter_async_context(talk(broker.port)) for _ in range(3)]
        one = batch(1, value=bytes(1_000_000))
        for producer in producers:
            producer.send_produce(9, [("t", [(0, one)])])
        async with asyncio.timeout(60):
            while await prometheus.value("firn_wal_held_bytes") < 3_000_000:
                await asyncio.sleep(0.01)
        await prometheus.scrape(*minutes(10, 13))
        assert [one["node_id"] for one in prometheus.firing("FirnWriteAheadBacklog", 13 * 60)] == ["1"]
        held.opened.set()
        for producer in producers:
            _, answer = await producer.answer(0, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
        await prometheus.scrape(*minutes(14, 15))
        assert prometheus.firing("FirnWriteAheadBacklog", 15 * 60) == []


@causes("FirnColdReadStarvation")
async def test_readers_of_history_starve_while_others_fill_the_chunk_cache(tmp_path: Path) -> None:
    held = Held()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Storing(held).broker(tmp_path, firn_chunk_cache_bytes=300_000))
        prometheus = await stack.enter_async_context(scraped(broker))
        await broker.create_topic("t", 4, **TIERED)
        async with talk(broker.port) as client:
            for partition in range(4):
                await produce(client, "t", batch(10, value=bytes(20_000)), partition=partition)
                await tier_everything(broker, "t", partition)
                log = broker.log("t", partition)
                await until(lambda log=log: log.local_log_start_offset == 10)
                await fetch_all(client, "t", partition=partition, end=10)  # so that footers are known
        await prometheus.scrape(*minutes(0, 6))
        assert prometheus.firing("FirnColdReadStarvation", 360) == []
        held.opened.clear()
        readers = [await stack.enter_async_context(talk(broker.port)) for _ in range(4)]
        reading = [asyncio.ensure_future(fetch_all(one, "t", partition=at, end=10)) for at, one in enumerate(readers)]
        await until_counted(prometheus, "firn_chunk_cache_queued_chunks")
        await prometheus.scrape(*minutes(10, 16))
        assert [one["node_id"] for one in prometheus.firing("FirnColdReadStarvation", 16 * 60)] == ["1"]
        held.opened.set()
        await asyncio.gather(*reading)
        await prometheus.scrape(17 * 60)
        assert prometheus.firing("FirnColdReadStarvation", 17 * 60) == []


@pytest.mark.ci
@causes("FirnRequestBudget")
async def test_many_requests_to_the_store_are_beyond_the_budget_until_there_are_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("app.broker.spending.loop_time_s", lambda: now_s)
    async with (
        writing_ahead(Storing(), tmp_path, firn_wal_linger_ms="1") as broker,
        scraped(broker) as prometheus,
        talk(broker.port) as client,
    ):
        await until(lambda: broker.node.spending is not None)
        spending = broker.node.spending
        assert spending is not None
        await spending.read()
        now_s = 20.0
        await spending.read()
        await prometheus.scrape(*minutes(0, 30))
        assert prometheus.firing("FirnRequestBudget", 30 * 60) == []
        # Each makes an object. 800 of them in 30 seconds cost some 350 dollars a month, at 5 dollars for a million.
        for _ in range(800):
            await produce(client, "t", batch())
        now_s = 30.0
        await spending.read()
        await prometheus.scrape(*minutes(31, 61))
        assert prometheus.firing("FirnRequestBudget", 61 * 60) == [{}]
        now_s = 3600.0
        await spending.read()
        await prometheus.scrape(62 * 60)
        assert prometheus.firing("FirnRequestBudget", 62 * 60) == []


# --- integrity --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def with_history(path: Path) -> AsyncIterator[tuple[RunningBroker, MemoryStore]]:
    """A broker with 40 records of topic ``t``, all in the store alone."""
    storing = Storing()
    async with storing.broker(path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", 1, **TIERED)
        await produce(client, "t", *[batch(10, value=b"v" * 3000) for _ in range(4)])
        await tier_everything(broker, "t")
        await until(lambda: broker.log("t").local_log_start_offset == 40)
        yield broker, storing.memory


async def read_until_counted(broker: RunningBroker, prometheus: Prometheus, name: str) -> None:
    async with talk(broker.port) as client:
        reading = asyncio.ensure_future(fetch_all(client, "t", end=40))
        await until_counted(prometheus, name)
        reading.cancel()
        await asyncio.wait([reading])


@causes("FirnRemoteCorruption")
async def test_bytes_of_the_store_that_differ_from_those_written_are_told_of(tmp_path: Path) -> None:
    async with with_history(tmp_path) as (broker, memory), scraped(broker) as prometheus:
        await prometheus.scrape(0)
        assert not prometheus.firing("FirnRemoteCorruption", 0)
        memory.faults.append(Fault(FaultKind.FLIPPED_BYTE, key_prefix="data/"))
        await read_until_counted(broker, prometheus, "firn_remote_corruptions_total")
        await prometheus.scrape(60)
        assert prometheus.firing("FirnRemoteCorruption", 60)
        memory.faults.clear()
        await prometheus.scrape(*minutes(61, 62))
        assert not prometheus.firing("FirnRemoteCorruption", 62 * 60)


@causes("FirnRemoteMissing")
async def test_objects_that_are_missing_in_the_store_are_told_of_until_they_are_restored(tmp_path: Path) -> None:
    async with with_history(tmp_path) as (broker, memory), scraped(broker) as prometheus:
        await prometheus.scrape(0)
        assert not prometheus.firing("FirnRemoteMissing", 0)
        objects = {one.key: await memory.get(one.key) for one in await memory.list_objects("data/")}
        await memory.delete_many(list(objects))
        await read_until_counted(broker, prometheus, "firn_remote_missing_objects_total")
        await prometheus.scrape(60)
        assert prometheus.firing("FirnRemoteMissing", 60)
        for key, data in objects.items():
            await memory.put(key, data)
        await prometheus.scrape(*minutes(61, 62))
        assert not prometheus.firing("FirnRemoteMissing", 62 * 60)


@causes("FirnLocalCorruption")
async def test_a_damaged_segment_on_the_disk_is_told_of_when_it_is_uploaded(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, scraped(broker) as prometheus, talk(broker.port) as client:
        await broker.create_topic("t", 1, **TIERED)
        await produce(client, "t", batch(10))
        await prometheus.scrape(0)
        assert prometheus.firing("FirnLocalCorruption", 0) == []
        log = broker.log("t")
        log.roll()
        path = Path(log.segments()[0].path)
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        broker.node.remote_log_manager.kick()
        await until_counted(prometheus, "firn_tier_corrupt_segments_total")
        await prometheus.scrape(60)
        assert [one["node_id"] for one in prometheus.firing("FirnLocalCorruption", 60)] == ["1"]
        await prometheus.scrape(*minutes(61, 62))
        assert prometheus.firing("FirnLocalCorruption", 62 * 60) == []


@causes("FirnCoverageFault")
async def test_segments_that_were_removed_before_they_were_uploaded_are_a_coverage_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.tiering.upload.remote_log_manager.RECONCILE_S", 0.05)
    port = free_port()
    async with scraped_at(port) as prometheus:
        async with running_broker(tmp_path, listen_port=port) as broker, talk(port) as client:
            copied_later = {"remote_log_copy_disable": "true", "local_retention_ms": "-2"}
            await broker.create_topic("t", 1, **{**TIERED, **copied_later})
            for _ in range(3):
                await produce(client, "t", batch(10))
                broker.log("t").roll()
            paths = [Path(one.path) for one in broker.log("t").segments()[:2]]
            await prometheus.scrape(0)
            assert prometheus.firing("FirnCoverageFault", 0) == []
            await broker.kill()
        for path in (*paths, tmp_path / "data" / ".kafka_cleanshutdown", tmp_path / "data" / ".firn_log_state"):
            path.unlink(missing_ok=True)  # nothing is known of a clean end after a crash
        async with running_broker(tmp_path, listen_port=port, seed=8) as broker:
            await until_counted(prometheus, "firn_tier_coverage_faults_total")
            await prometheus.scrape(60)
            assert [one["node_id"] for one in prometheus.firing("FirnCoverageFault", 60)] == ["1"]
            (status,) = broker.node.remote_log_manager.status()
            assert status.faults == ("no segment covers [0, 20)",)
            past = ["topic", "delete-records", "t", "--partition", "0", "--before", "20", "--yes"]
            assert await asyncio.to_thread(main, [*past, "--bootstrap", broker.bootstrap]) == 0
            await until(lambda: not broker.node.remote_log_manager.status()[0].faults)
            await prometheus.scrape(*minutes(70, 71))
            assert prometheus.firing("FirnCoverageFault", 71 * 60) == []
