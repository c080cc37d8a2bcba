"""Brokers without disks: what they lead, what is refused, and how they come and go (ADR 0037, J47 to J50)."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest

from app.broker.peers.control_link import KafkaControlLink
from app.core.errors import ErrorCode, RequestRejected
from app.metadata.image.image import BrokerImage, PartitionImage
from app.metadata.image.records import LEVEL_MAX
from app.metadata.image.wal_ranges import PartitionDurability
from app.metadata.peers.control import ChangeRequest, ChangeResponse
from tests.broker.ephemeral import SETTINGS, in_cluster
from tests.broker.object_topics import led, objects, produce_count, records_read
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker
from tests.support.several import broker_on, image_of, unfenced
from tests.support.waiting import until


async def test_an_empty_store_becomes_a_cluster_whose_new_topics_are_in_the_bucket(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a", **SETTINGS) as broker:
        await in_cluster(broker)
        image = broker.node.cluster.image
        assert image.level == LEVEL_MAX
        assert image.brokers[1].ephemeral
        await broker.create_topic("t", 2)
        partitions = broker.node.cluster.image.topics_by_name["t"].partitions
        assert {one.durability for one in partitions} == {PartitionDurability.OBJECT}


@pytest.mark.parametrize("configs", [{"remote_storage_enable": "false"}, {"firn_durability": "disk"}])
async def test_a_topic_of_another_durability_is_refused_where_nobody_has_a_disk(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    async with broker_on(tmp_path, "a", **SETTINGS) as broker:
        await in_cluster(broker)
        with pytest.raises(RequestRejected, match="All brokers are ephemeral") as refused:
            await broker.create_topic("t", 1, **configs)
        assert refused.value.code is ErrorCode.INVALID_CONFIG


async def test_topics_of_other_durabilities_go_to_brokers_with_disks(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a", **SETTINGS) as first:
        await in_cluster(first)
        async with broker_on(tmp_path, "b", broker_heartbeat_interval_ms=50) as second:
            await until(lambda: unfenced(first) == [1, 2])
            await first.create_topic("d", 4, firn_durability="disk")
            assert {one.replicas for one in first.node.cluster.image.topics_by_name["d"].partitions} == {(2,)}
            with pytest.raises(RequestRejected, match="ephemeral"):
                await first.node.membership.controller.create_topic(
                    "e", configs={"firn.durability": "disk"}, assignments={0: [1]}
                )
            assert second.node.config.node_id == 2


async def test_a_broker_with_replicas_on_its_disk_cannot_become_ephemeral(tmp_path: Path) -> None:
    from app.metadata.view.registration import StartRefused

    async with broker_on(tmp_path, "a", **SETTINGS) as first:
        await in_cluster(first)
        async with broker_on(tmp_path, "b", broker_heartbeat_interval_ms=50) as second:
            await until(lambda: unfenced(first) == [1, 2])
            await first.create_topic("d", 1, firn_durability="disk")
            assert second.node.config.node_id == 2
        with pytest.raises(StartRefused, match="cannot become ephemeral"):
            async with broker_on(tmp_path, "b", **SETTINGS):
                pass


@pytest.mark.parametrize("stop", ["clean", "killed"])
async def test_a_cluster_goes_to_zero_and_comes_back_on_an_empty_disk(tmp_path: Path, stop: str) -> None:
    async with broker_on(tmp_path, "a", **SETTINGS) as broker:
        await in_cluster(broker)
        await broker.create_topic("t", 3)
        await led(broker, "t", 3)
        async with talk(broker.port) as client:
            for index in range(3):
                assert await produce_count(client, 5, index=index) == (ErrorCode.NONE, 0)
        if stop == "killed":
            await broker.kill()
    shutil.rmtree(tmp_path / "a")
    async with broker_on(tmp_path, "b", **SETTINGS) as broker:
        assert broker.node.config.node_id == 2
        await led(broker, "t", 3)
        assert await records_read(broker, 5) == 5
        async with talk(broker.port) as client:
            assert await produce_count(client, 1, index=2) == (ErrorCode.NONE, 5)


async def test_a_broker_that_stops_in_order_is_forgotten_if_others_go_on(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a", **SETTINGS) as first:
        await in_cluster(first)
        async with broker_on(tmp_path, "b", **SETTINGS):
            await until(lambda: unfenced(first) == [1, 2])
        await until(lambda: list(first.node.cluster.image.brokers) == [1])
        async with broker_on(tmp_path, "c", **SETTINGS) as third:
            assert third.node.config.node_id == 3


async def test_a_broker_that_hears_that_it_is_forgotten_has_stopped_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is gone before its process: nobody has taken its place."""
    change = KafkaControlLink.change

    async def change_slowly(link: KafkaControlLink, to: BrokerImage, asked: ChangeRequest) -> ChangeResponse:
        answer = await change(link, to, asked)
        await asyncio.sleep(0.5)
        return answer

    monkeypatch.setattr(KafkaControlLink, "change", change_slowly)
    async with broker_on(tmp_path, "a", **SETTINGS) as first:
        await in_cluster(first)
        async with broker_on(tmp_path, "b", **SETTINGS) as second:
            await until(lambda: unfenced(first) == [1, 2])
        assert list(second.node.cluster.image.brokers) == [1], "it has heard"
        assert second.fenced is None


async def test_a_broker_that_stops_gives_its_partitions_to_others_by_one_change(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a", **SETTINGS) as first:
        await in_cluster(first)
        await first.create_topic("t", 20)
        async with broker_on(tmp_path, "b", **SETTINGS) as second:
            await until(lambda: unfenced(second) == [1, 2])
            await second.create_topic("u", 20)
            mine = [one.partition_index for one in partitions(second, "u") if one.leader == 2]
            assert len(mine) == 10
            async with talk(second.port) as client:
                for index in mine:
                    assert await produce_count(client, 3, topic="u", index=index) == (ErrorCode.NONE, 0)
            before = first.node.cluster.image.sequence
        assert {one.leader for one in partitions(first, "u")} == {1}
        assert not [line for line in first.lines if "has ended" in line], "nobody had to seal"
        changed = first.node.cluster.image.sequence - before
        assert changed < 8, "one change for all releases"
        await led(first, "u", 20)
        async with talk(first.port) as client:
            for index in mine:
                assert await produce_count(client, 1, topic="u", index=index) == (ErrorCode.NONE, 3)


async def test_the_last_broker_that_stops_closes_all_ranges_and_its_own_log(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a", **SETTINGS) as broker:
        await in_cluster(broker)
        await broker.create_topic("t", 3)
        await led(broker, "t", 3)
        async with talk(broker.port) as client:
            assert await produce_count(client, 5) == (ErrorCode.NONE, 0)
    image = await image_of(tmp_path)
    found = image.topics_by_name["t"].partitions
    assert [one.leader for one in found] == [-1, -1, -1]
    assert not [each for one in found for each in one.wal_ranges if each.is_open]
    assert len(objects(tmp_path)) == 2, "the records, and the seal"


def partitions(broker: RunningBroker, topic: str) -> tuple[PartitionImage, ...]:
    return broker.node.cluster.image.topics_by_name[topic].partitions


@pytest.mark.ci
async def test_a_broker_that_comes_gets_its_share_of_the_leaders_while_producers_write(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a", **SETTINGS) as first:
        await in_cluster(first)
        await first.create_topic("t", 30)
        await led(first, "t", 30)
        async with talk(first.port) as client:
            for index in range(30):
                assert await produce_count(client, 3, index=index) == (ErrorCode.NONE, 0)
        async with broker_on(tmp_path, "b", **SETTINGS) as second, broker_on(tmp_path, "c", **SETTINGS) as third:
            by_id = {1: first, 2: second, 3: third}

            def leads() -> dict[int, int]:
                return dict(Counter(one.leader for one in partitions(first, "t")))

            await until(lambda: leads() == {1: 10, 2: 10, 3: 10})
            for index in range(30):
                leader = partitions(first, "t")[index].leader
                table = by_id[leader].node.partitions.table
                await until(lambda table=table, index=index: table.led("t", index) is not None)
                async with talk(by_id[leader].port) as client:
                    assert await produce_count(client, 1, index=index) == (ErrorCode.NONE, 3)
            assert not [line for line in first.lines if "has ended" in line], "nobody had to seal"
