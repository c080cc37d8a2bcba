"""Alerts on availability and disks fire when their faults happen to brokers, and only then.

The metrics are those that the HTTP process serves. Only the times of the scrapes are made up, so that nothing waits for minutes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app.broker.peers.control_link import LANES
from app.core.errors import ErrorCode
from app.core.limits import GIB
from app.core.metrics import Sample
from app.core.units import BrokerId
from app.machine.files import PosixFile, PosixFileSystem
from app.objectstore.directory import DirectoryStore
from tests.handlers.conversation import batch, produce_one, talk
from tests.support.alerts import TIERED, Cut, CutThreads, causes, scraped, scraped_at, silent_server, until_counted
from tests.support.broker import running_broker
from tests.support.ports import free_port
from tests.support.scraping import minutes
from tests.support.several import member, unfenced
from tests.support.talking import produce, tier_everything
from tests.support.waiting import until


@causes("FirnBrokerDown")
async def test_a_broker_that_is_gone_is_down_until_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    async with scraped_at(port) as prometheus:
        async with running_broker(tmp_path, listen_port=port):
            await prometheus.scrape(0)
            assert prometheus.firing("FirnBrokerDown", 0) == []
        await prometheus.scrape(*minutes(16, 19))
        assert [one["address"] for one in prometheus.firing("FirnBrokerDown", 19 * 60)] == [f"127.0.0.1:{port}"]
        async with running_broker(tmp_path, listen_port=port):
            await until_counted(prometheus, "firn_broker_up")  # the HTTP process pauses between attempts
            await prometheus.scrape(20 * 60)
            assert prometheus.firing("FirnBrokerDown", 20 * 60) == []


@causes("FirnMetricsMissing")
async def test_a_broker_that_serves_and_whose_metrics_take_too_long_is_not_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = asyncio.Event()

    async def gathered(context: Any) -> list[Sample]:
        await quick.wait()
        return []

    monkeypatch.setattr("app.handlers.apis.firn_api.room_samples", gathered)
    async with running_broker(tmp_path) as broker, scraped(broker) as prometheus:
        quick.set()
        await prometheus.scrape(0)
        assert prometheus.firing("FirnMetricsMissing", 0) == []
        quick.clear()
        with monkeypatch.context() as patch:
            patch.setattr("app.http.gateway.METRICS_TIMEOUT_S", 0.05)
            await prometheus.scrape(*minutes(1, 11))
        assert prometheus.firing("FirnBrokerDown", 660) == []
        assert prometheus.firing("FirnMetricsMissing", 660) == [{"address": broker.bootstrap}]
        quick.set()
        await prometheus.scrape(720)
        assert prometheus.firing("FirnMetricsMissing", 720) == prometheus.firing("FirnBrokerDown", 720) == []


async def test_a_broker_that_accepts_connections_and_never_responds_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("METRICS_TIMEOUT_S", "RESPONSE_TIMEOUT_S"):
        monkeypatch.setattr(f"app.http.gateway.{name}", 0.05)
    async with silent_server() as port, scraped_at(port) as prometheus:
        await prometheus.scrape(*minutes(0, 2))
        assert [one["address"] for one in prometheus.firing("FirnBrokerDown", 120)] == [f"127.0.0.1:{port}"]
        assert prometheus.firing("FirnMetricsMissing", 120) == []


@pytest.mark.ci
@causes("FirnBrokersFenced", "FirnUnderReplicated", "FirnPartitionsWithoutLeader")
async def test_while_a_broker_of_three_is_gone_it_is_fenced_and_partitions_lack_replicas_and_leaders(
    tmp_path: Path,
) -> None:
    alerts = ("FirnBrokersFenced", "FirnUnderReplicated", "FirnPartitionsWithoutLeader", "FirnUnderMinIsr")
    async with member(tmp_path, 1) as first, member(tmp_path, 2) as second, scraped(first, second) as prometheus:
        partition = lambda name: first.node.cluster.image.topics_by_name[name].partitions[0]  # noqa: E731
        in_sync = lambda: set(first.node.partitions.table.require("t", 0).in_sync)  # noqa: E731
        async with member(tmp_path, 3):
            await until(lambda: unfenced(first) == [1, 2, 3])
            create_topic = first.node.membership.controller.create_topic
            everywhere = (BrokerId(1), BrokerId(2), BrokerId(3))
            await create_topic("t", configs={"min.insync.replicas": "2"}, assignments={0: everywhere})
            await create_topic("alone", assignments={0: (BrokerId(3),)})
            await until(lambda: first.node.partitions.table.led("t", 0) is not None and in_sync() == {1, 2, 3})
            await until(lambda: partition("alone").leader == 3)
            await prometheus.scrape(*minutes(0, 10))
            assert [prometheus.firing(one, 600) for one in alerts] == [[], [], [], []]
        await until(lambda: first.node.cluster.image.brokers[3].fenced and in_sync() == {1, 2})
        await until(lambda: partition("alone").leader < 0)
        await prometheus.scrape(*minutes(30, 41))
        fenced, lacking, leaderless, refusing = (prometheus.firing(one, 41 * 60) for one in alerts)
        assert (fenced, leaderless, refusing) == ([{}], [{}], [])
        assert [one["node_id"] for one in lacking] == ["1"]
        async with member(tmp_path, 3):
            await until(lambda: unfenced(first) == [1, 2, 3] and in_sync() == {1, 2, 3})
            await until(lambda: partition("alone").leader == 3)
            await prometheus.scrape(50 * 60)
            assert [prometheus.firing(one, 50 * 60) for one in alerts] == [[], [], [], []]


@pytest.mark.ci
@causes("FirnNoController")
async def test_a_cluster_whose_controller_dies_while_the_store_is_away_has_none_until_the_store_is_back(
    tmp_path: Path,
) -> None:
    threads = CutThreads(2)
    store = DirectoryStore(tmp_path / "store", threads)
    async with AsyncExitStack() as stack:
        stack.callback(threads.close)
        controller = await stack.enter_async_context(member(tmp_path, 1))
        other = await stack.enter_async_context(
            running_broker(tmp_path / "broker-2", store=store, seed=8, node_id=2, new_level=1)
        )
        await until(lambda: unfenced(other) == [1, 2])
        assert controller.node.membership.controller.active
        prometheus = await stack.enter_async_context(scraped(controller, other))
        await prometheus.scrape(*minutes(0, 1))
        assert prometheus.firing("FirnNoController", 60) == []

        threads.cut = True
        await controller.kill()
        await prometheus.scrape(*minutes(10, 12))
        assert prometheus.firing("FirnNoController", 12 * 60) == [{}]

        threads.cut = False
        await until(lambda: other.node.membership.controller.active)
        await prometheus.scrape(13 * 60)
        assert prometheus.firing("FirnNoController", 13 * 60) == []


@pytest.mark.ci
@causes("FirnUnderMinIsr")
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
@causes("FirnUncleanElection")
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
@causes("FirnBrokerIsolated")
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


@causes("FirnPartitionsOffline")
async def test_a_partition_whose_manifest_is_damaged_is_offline_until_the_object_is_restored(tmp_path: Path) -> None:
    port = free_port()
    async with scraped_at(port) as prometheus:
        async with running_broker(tmp_path, listen_port=port) as broker, talk(port) as client:
            await broker.create_topic("t", 1, **TIERED)
            await produce(client, "t", batch(10))
            await tier_everything(broker, "t")
            topic_id = broker.log("t").topic_id
            await prometheus.scrape(*minutes(0, 1))
            assert prometheus.firing("FirnPartitionsOffline", 60) == []
        entry = sorted((tmp_path / "store" / "topics" / str(topic_id) / "0" / "log").iterdir())[1]
        data = entry.read_bytes()
        entry.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        shutil.rmtree(tmp_path / "data")
        async with running_broker(tmp_path, listen_port=port, take_over=True, seed=8) as broker:
            await until(lambda: broker.node.partitions.table.offline)
            await prometheus.scrape(*minutes(10, 11))
            assert [one["node_id"] for one in prometheus.firing("FirnPartitionsOffline", 660)] == ["1"]
            entry.write_bytes(data)
            await until(lambda: not broker.node.partitions.table.offline)
            await prometheus.scrape(720)
            assert prometheus.firing("FirnPartitionsOffline", 720) == []


# --- disk -------------------------------------------------------------------------------------------------------------


class SharedDisk(PosixFileSystem):
    """A disk of 100 GiB on which something else writes, too."""

    free = 50 * GIB

    def free_bytes(self, path: str) -> int:
        return self.free

    def total_bytes(self, path: str) -> int:
        return 100 * GIB


@causes("FirnDiskNearlyFull", "FirnDiskFull")
async def test_a_disk_is_nearly_full_and_then_full_until_there_is_space_again(tmp_path: Path) -> None:
    disk = SharedDisk()
    async with (
        running_broker(tmp_path, fs=disk, firn_log_dir_free_bytes_min=8 * GIB) as broker,
        scraped(broker) as prometheus,
    ):
        for start, free, alerts in (
            (0, 17, []), (100, 15, ["FirnDiskNearlyFull"]), (200, 7, ["FirnDiskNearlyFull", "FirnDiskFull"]), (300, 50, []),
        ):  # fmt: skip
            disk.free = free * GIB
            await until(lambda: (broker.node.context.no_room is not None) is ("FirnDiskFull" in alerts))  # noqa: B023
            await prometheus.scrape(*minutes(start, start + 10))
            at_s = (start + 10) * 60
            assert [one for one in ("FirnDiskNearlyFull", "FirnDiskFull") if prometheus.firing(one, at_s)] == alerts


@causes("FirnDiskNearlyFull")
async def test_a_large_disk_is_nearly_full_when_a_tenth_of_it_is_left(tmp_path: Path) -> None:
    disk = SharedDisk()
    async with (
        running_broker(tmp_path, fs=disk, firn_log_dir_free_bytes_min=1 * GIB) as broker,
        scraped(broker) as prometheus,
    ):
        for start, free in ((0, 11), (100, 9), (200, 11)):
            disk.free = free * GIB
            await prometheus.scrape(*minutes(start, start + 10))
            assert bool(prometheus.firing("FirnDiskNearlyFull", (start + 10) * 60)) is (free == 9)


@causes("FirnLogDirectoryOffline")
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
