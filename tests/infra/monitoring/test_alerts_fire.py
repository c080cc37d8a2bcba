"""Alerts fire when what they are for really happens to brokers, and not before.

The metrics are those that the HTTP process serves. Only the times of the scrapes are made up, so that nothing waits for minutes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from app.broker.peers.control_link import LANES, KafkaControlLink
from app.client.connection import KafkaConnection
from app.core.errors import ErrorCode, StorageUnavailable
from app.core.metrics import Registry, Sample
from app.core.turns import whole
from app.core.units import BrokerId
from app.http.metrics import render_steps
from app.machine.files import PosixFile
from app.machine.runtime import SystemClock, ThreadPool
from app.metadata.changes.quotas import QuotaOperation, alter_quotas
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import SECURITY_LEVEL, QuotaEntity
from app.metadata.peers.control import NotSent
from app.objectstore.directory import DirectoryStore
from app.objectstore.health import StoreHealth
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.objectstore.metered import MeteredStore
from tests.broker.three import three
from tests.handlers.conversation import batch, produce_one, talk
from tests.support import scraping
from tests.support.broker import RunningBroker, running_broker
from tests.support.ports import free_port
from tests.support.promql import RULES, Scrapes
from tests.support.scraping import Prometheus, minutes
from tests.support.secured import add_certificate, certificates, listener, security
from tests.support.several import member, unfenced
from tests.support.talking import fetch_all, produce, tier_everything
from tests.support.waiting import until

T = TypeVar("T")
TIERED = {"segment_bytes": "16777216", "local_retention_ms": "0", "retention_ms": "-1"}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics of a broker that a slow machine holds up are waited for."""
    for name in ("METRICS_TIMEOUT_S", "RESPONSE_TIMEOUT_S"):
        monkeypatch.setattr(f"app.http.gateway.{name}", 60.0)


def scraped(*brokers: RunningBroker) -> AbstractAsyncContextManager[Prometheus]:
    return scraped_at(*[one.port for one in brokers])


def scraped_at(*ports: int) -> AbstractAsyncContextManager[Prometheus]:
    return scraping.scraped_at(*ports, read=RULES.read_text())


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """A port where connections are accepted, and nothing is answered."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for one in writers:
            one.close()


async def until_counted(prometheus: Prometheus, name: str) -> None:
    """Until a counter that was 0 has counted something."""
    async with asyncio.timeout(60):
        while not await prometheus.value(name):
            await asyncio.sleep(0)


class Storing:
    """A store in memory that can fail, metered and watched as the store process does it."""

    def __init__(self) -> None:
        self.memory = MemoryStore(clock=SystemClock())
        self.registry = Registry()
        self.store = MeteredStore(self.memory, self.registry)

    def broker(self, path: Path, **settings: Any) -> Any:
        return running_broker(path, store=self.store, store_registry=self.registry, **settings)


class Cut(KafkaControlLink):
    """The way from a broker to the others, where nothing passes on some lanes."""

    cut: Collection[str] = ()

    async def connection(self, to: BrokerImage, lane: str) -> KafkaConnection:
        if lane in self.cut:
            raise NotSent(f"Broker {to.broker_id} is cut off.")
        return await super().connection(to, lane)


class CutThreads(ThreadPool):
    """The threads of a store of one broker, which does not reach it while ``cut`` is set."""

    cut = False

    async def run(self, work: Callable[[], T]) -> T:
        if self.cut:
            raise StorageUnavailable("The store is cut off.")
        return await super().run(work)


# --- availability -----------------------------------------------------------------------------------------------------


async def test_a_broker_that_is_gone_is_down(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running_broker(tmp_path))
        prometheus = await stack.enter_async_context(scraped(broker))
        await prometheus.scrape(0)
        assert prometheus.firing("FirnNoController", 0) == []
        broker.node.request_stop()
        await broker.ended.wait()
        await prometheus.scrape(*minutes(16, 19))
        assert [one["address"] for one in prometheus.firing("FirnBrokerDown", 19 * 60)] == [broker.bootstrap]


async def test_a_broker_that_serves_and_whose_metrics_take_too_long_is_not_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = asyncio.Event()

    async def gathered(context: Any) -> list[Sample]:
        await quick.wait()
        return []

    monkeypatch.setattr("app.handlers.apis.firn_api.room_samples", gathered)
    async with running_broker(tmp_path) as broker, scraped(broker) as prometheus:
        with monkeypatch.context() as patch:
            patch.setattr("app.http.gateway.METRICS_TIMEOUT_S", 0.05)
            await prometheus.scrape(*minutes(0, 10))
        assert prometheus.firing("FirnBrokerDown", 600) == []
        assert prometheus.firing("FirnMetricsMissing", 600) == [{"address": broker.bootstrap}]
        quick.set()
        await prometheus.scrape(660)
        assert prometheus.firing("FirnMetricsMissing", 660) == prometheus.firing("FirnBrokerDown", 660) == []


async def test_a_broker_that_accepts_connections_and_never_responds_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("METRICS_TIMEOUT_S", "RESPONSE_TIMEOUT_S"):
        monkeypatch.setattr(f"app.http.gateway.{name}", 0.05)
    async with silent_server() as port, scraped_at(port) as prometheus:
        await prometheus.scrape(*minutes(0, 2))
        assert [one["address"] for one in prometheus.firing("FirnBrokerDown", 120)] == [f"127.0.0.1:{port}"]
        assert prometheus.firing("FirnMetricsMissing", 120) == []


async def test_a_broker_of_three_that_ends_is_fenced_and_its_partitions_lack_replicas_and_leaders(
    tmp_path: Path,
) -> None:
    async with three(tmp_path) as cluster, scraped(*cluster.brokers) as prometheus:
        for one in cluster.brokers:
            await until(lambda one=one: set(cluster.partition(one).in_sync) == {1, 2, 3})
        alerts = ("FirnBrokersFenced", "FirnUnderReplicated", "FirnPartitionsWithoutLeader", "FirnNoController")
        await prometheus.scrape(*minutes(0, 10))
        assert [prometheus.firing(one, 600) for one in alerts] == [[], [], [], []]
        watching = cluster.brokers[0]
        last = [one for one in cluster.followers if one is not watching][-1]
        gone = last.node.config.node_id
        await watching.node.membership.controller.create_topic("alone", assignments={0: (BrokerId(gone),)})
        last.node.request_stop()
        await last.ended.wait()
        await until(lambda: watching.node.cluster.image.brokers[gone].fenced)
        await until(lambda: gone not in cluster.partition(cluster.leader).in_sync)
        await prometheus.scrape(*minutes(30, 41))
        assert prometheus.firing("FirnBrokersFenced", 41 * 60) == [{}]
        leader = str(cluster.leader.node.config.node_id)
        assert [one["node_id"] for one in prometheus.firing("FirnUnderReplicated", 41 * 60)] == [leader]
        assert prometheus.firing("FirnPartitionsWithoutLeader", 41 * 60) == [{}]
        assert prometheus.firing("FirnNoController", 41 * 60) == []
        assert prometheus.firing("FirnUnderMinIsr", 41 * 60) == []


@pytest.mark.ci
async def test_partitions_with_too_few_replicas_in_sync_are_told_of_until_their_broker_is_back(tmp_path: Path) -> None:
    async with member(tmp_path, 1) as leader, scraped(leader) as prometheus:
        in_sync = lambda: leader.node.cluster.image.topics_by_name["t"].partitions[0].isr  # noqa: E731
        async with member(tmp_path, 2):
            await until(lambda: unfenced(leader) == [1, 2])
            await leader.node.membership.controller.create_topic(
                "t", configs={"min.insync.replicas": "2"}, assignments={0: (BrokerId(1), BrokerId(2))}
            )
            await until(lambda: leader.node.partitions.table.led("t", 0) is not None)
            await prometheus.scrape(*minutes(0, 2))
            assert prometheus.firing("FirnUnderMinIsr", 120) == []
        await until(lambda: tuple(in_sync()) == (1,))
        async with talk(leader.port) as client:
            answer = await client.produce(9, [("t", [(0, batch())])], acks=-1)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        await prometheus.scrape(*minutes(3, 5))
        assert [one["node_id"] for one in prometheus.firing("FirnUnderMinIsr", 300)] == ["1"]
        async with member(tmp_path, 2):
            await until(lambda: set(in_sync()) == {1, 2})
            await until(lambda: set(leader.node.partitions.table.require("t", 0).in_sync) == {1, 2})
            await prometheus.scrape(360)
            assert prometheus.firing("FirnUnderMinIsr", 360) == []


@pytest.mark.ci
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_an_election_of_a_leader_that_was_not_in_sync_is_told_of(tmp_path: Path, how: str) -> None:
    link = Cut()
    settings = {"replica_lag_time_max_ms": 500}
    async with member(tmp_path, 1, new_link=lambda: link, **settings) as behind, scraped(behind) as prometheus:
        partition = lambda: behind.node.cluster.image.topics_by_name["t"].partitions[0]  # noqa: E731
        async with member(tmp_path, 2, **settings) as leader:
            await until(lambda: unfenced(behind) == [1, 2])
            link.cut = {"fetch"}
            await behind.node.membership.controller.create_topic(
                "t",
                configs={"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
                assignments={0: (BrokerId(2), BrokerId(1))},
            )
            await until(lambda: leader.node.partitions.table.led("t", 0) is not None)
            async with talk(leader.port) as client:
                await until(lambda: tuple(partition().isr) == (2,))
                await produce(client, "t", batch(10))
            await prometheus.scrape(*minutes(0, 1))
            assert prometheus.firing("FirnUncleanElection", 60) == []
            if how == "killed":
                await leader.kill()
        await until(lambda: partition().leader == 1)
        await until_counted(prometheus, "firn_unclean_leader_elections_total")
        await prometheus.scrape(120)
        assert [one["node_id"] for one in prometheus.firing("FirnUncleanElection", 120)] == ["1"]
        await prometheus.scrape(*minutes(17, 19))
        assert prometheus.firing("FirnUncleanElection", 19 * 60) == []


@pytest.mark.ci
async def test_a_broker_that_hears_neither_others_nor_the_store_is_isolated_until_it_does(tmp_path: Path) -> None:
    link, threads = Cut(), CutThreads(2)
    store = DirectoryStore(tmp_path / "store", threads)
    async with AsyncExitStack() as stack:
        stack.callback(threads.close)
        first = await stack.enter_async_context(member(tmp_path, 1, advertised_host="127.0.0.1"))
        alone = await stack.enter_async_context(
            running_broker(
                tmp_path / "broker-2",
                store=store,
                seed=8,
                node_id=2,
                advertised_host="localhost",
                new_link=lambda: link,
            )
        )
        for broker in (first, alone):
            await until(lambda broker=broker: unfenced(broker) == [1, 2])
        prometheus = await stack.enter_async_context(scraped(alone))
        await prometheus.scrape(*minutes(0, 1))
        assert prometheus.firing("FirnBrokerIsolated", 60) == []

        link.cut, threads.cut = LANES, True
        await until(lambda: any("is isolated" in line for line in alone.lines))
        await prometheus.scrape(*minutes(2, 3))
        assert [one["node_id"] for one in prometheus.firing("FirnBrokerIsolated", 180)] == ["2"]

        link.cut, threads.cut = (), False
        await until(lambda: any("is not isolated any more" in line for line in alone.lines))
        await prometheus.scrape(240)
        assert prometheus.firing("FirnBrokerIsolated", 240) == []


async def test_a_partition_whose_manifest_is_damaged_is_offline(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", 1, **TIERED)
        await produce(client, "t", batch(10))
        await tier_everything(broker, "t")
        topic_id = broker.log("t").topic_id
    entry = sorted((tmp_path / "store" / "topics" / str(topic_id) / "0" / "log").iterdir())[1]
    data = bytearray(entry.read_bytes())
    data[-3] ^= 1
    entry.write_bytes(data)
    shutil.rmtree(tmp_path / "data")
    async with running_broker(tmp_path, take_over=True, seed=8) as broker, scraped(broker) as prometheus:
        await until(lambda: broker.node.partitions.table.offline)
        await prometheus.scrape(*minutes(0, 1))
        assert [one["node_id"] for one in prometheus.firing("FirnPartitionsOffline", 60)] == ["1"]


# --- disk -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("least_of_free", "alerts"), [(0.0, []), (0.75, ["nearly"]), (2.0, ["nearly", "full"])])
async def test_a_disk_below_its_reserve_is_full(tmp_path: Path, least_of_free: float, alerts: list[str]) -> None:
    usage = shutil.disk_usage(tmp_path)
    least = int(usage.free * least_of_free)
    async with running_broker(tmp_path, firn_log_dir_free_bytes_min=least) as broker, scraped(broker) as prometheus:
        await prometheus.scrape(*minutes(0, 10))
        nearly = bool(prometheus.firing("FirnDiskNearlyFull", 600))
        if usage.free > usage.total // 5:
            assert nearly is ("nearly" in alerts)
        assert bool(prometheus.firing("FirnDiskFull", 600)) is ("full" in alerts)


async def test_a_directory_that_cannot_be_synced_is_offline_until_the_broker_has_started_on_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    port = free_port()
    async with scraped_at(port) as prometheus:
        async with running_broker(tmp_path, listen_port=port) as broker, talk(port) as client:
            await broker.create_topic("t", retention_ms="-1", firn_durability="disk")
            assert await produce_one(client) is ErrorCode.NONE
            await prometheus.scrape(0)
            assert prometheus.firing("FirnLogDirectoryOffline", 0) == []
            with monkeypatch.context() as broken:
                broken.setattr(PosixFile, "fdatasync", fail)
                assert await produce_one(client) is ErrorCode.KAFKA_STORAGE_ERROR
            assert await produce_one(client) is ErrorCode.KAFKA_STORAGE_ERROR
            await prometheus.scrape(60)
            assert [one["node_id"] for one in prometheus.firing("FirnLogDirectoryOffline", 60)] == ["1"]
        async with running_broker(tmp_path, listen_port=port), talk(port) as client:
            assert await produce_one(client) is ErrorCode.NONE
            await prometheus.scrape(120)
            assert prometheus.firing("FirnLogDirectoryOffline", 120) == []


# --- store ------------------------------------------------------------------------------------------------------------


@pytest.mark.ci
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


async def test_a_store_that_does_not_respond_is_unreachable(tmp_path: Path) -> None:
    now_s = [0.0]
    health = StoreHealth(lambda: now_s[0])
    async with (
        running_broker(tmp_path, store_trouble=health.trouble) as broker,
        scraped(broker) as prometheus,
    ):
        await prometheus.scrape(*minutes(0, 2))
        assert prometheus.firing("FirnStoreUnreachable", 120) == []
        for now_s[0] in (1.0, 20.0):
            health.failed(health.begin(), "It is away.")
        await prometheus.scrape(*minutes(3, 5))
        assert [one["node_id"] for one in prometheus.firing("FirnStoreUnreachable", 5 * 60)] == ["1"]


# --- integrity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alert", "fault"), [("FirnRemoteCorruption", "flipped"), ("FirnRemoteMissing", "missing")])
async def test_bytes_in_the_store_that_are_damaged_or_missing_are_told(tmp_path: Path, alert: str, fault: str) -> None:
    storing = Storing()
    async with storing.broker(tmp_path) as broker, scraped(broker) as prometheus, talk(broker.port) as client:
        await broker.create_topic("t", 1, **TIERED)
        await produce(client, "t", *[batch(10, value=b"v" * 3000) for _ in range(4)])
        await tier_everything(broker, "t")
        log = broker.log("t")
        await until(lambda: log.local_log_start_offset == 40)
        await prometheus.scrape(0)
        if fault == "flipped":
            storing.memory.faults.append(Fault(FaultKind.FLIPPED_BYTE, key_prefix="data/"))
        else:
            for one in await storing.memory.list_objects("data/"):
                await storing.memory.delete(one.key)
        reading = asyncio.ensure_future(fetch_all(client, "t", end=40))
        name = {"flipped": "firn_remote_corruptions_total", "missing": "firn_remote_missing_objects_total"}[fault]
        await until_counted(prometheus, name)
        reading.cancel()
        await asyncio.wait([reading])
        await prometheus.scrape(60)
        assert prometheus.firing(alert, 60)
        assert not prometheus.firing(alert, 0)


async def test_a_damaged_segment_on_the_disk_is_told_of_when_it_is_uploaded(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, scraped(broker) as prometheus, talk(broker.port) as client:
        await broker.create_topic("t", 1, **TIERED)
        await produce(client, "t", batch(10))
        await prometheus.scrape(0)
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
        assert prometheus.firing("FirnLocalCorruption", 0) == []
        await prometheus.scrape(*minutes(61, 62))
        assert prometheus.firing("FirnLocalCorruption", 62 * 60) == []


# --- load and security ------------------------------------------------------------------------------------------------


@pytest.mark.ci
async def test_a_client_beyond_its_quota_is_told_of(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=SECURITY_LEVEL) as broker, scraped(broker) as prometheus:
        await broker.create_topic("t")
        entity = QuotaEntity("ANONYMOUS", None, None)
        await broker.node.membership.controller.submit(
            lambda draft, around: alter_quotas(draft, around, entity, [QuotaOperation("producer_byte_rate", 100.0)])
        )
        await prometheus.scrape(0)
        for at_s in minutes(1, 12):
            async with talk(broker.port) as client:
                answer = await client.produce(9, [("t", [(0, batch(1, value=b"x" * 50_000))])])
                assert answer.throttle_time_ms > 0
            await prometheus.scrape(at_s)
        assert [one["quota"] for one in prometheus.firing("FirnQuotaBreached", 12 * 60)] == ["producer_byte_rate"]


@pytest.mark.parametrize(("days", "told"), [(5, True), (90, False)])
async def test_a_certificate_that_ends_soon_is_told_of(tmp_path: Path, days: int, told: bool) -> None:
    folder = certificates(tmp_path / "tls")
    add_certificate(folder, "broker", "localhost", "127.0.0.1", days=days)
    async with running_broker(tmp_path / "b", **security(listener("SSL", folder))) as broker:
        page = b"".join(whole(render_steps(broker.node.registry.samples()))).decode()
    scrapes = Scrapes()
    now_s = datetime.now(UTC).timestamp()
    scrapes.add(page, now_s)
    assert [one["listener"] for one in scrapes.firing("FirnCertificateExpires", now_s)] == ["SSL"] * told
