"""How a cluster begins, and who gets which node id (ADR 0029): real brokers in one loop, on one directory as object store."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.broker.peers.control_link import KafkaControlLink
from app.broker.start.node_id import with_node_id
from app.configs import BrokerConfig
from app.configs.broker import NODE_ID_AUTO
from app.hot.manager import read_meta
from app.machine.files import PosixFileSystem
from app.machine.runtime import SystemClock, ThreadPool
from app.metadata.changes.features import FeatureAsked
from app.metadata.image.records import LEVEL_MAX
from app.metadata.view.registration import StartRefused
from app.objectstore.directory import DirectoryStore
from tests.support.changing import update_features
from tests.support.several import broker_on, unfenced
from tests.support.waiting import until


def kept_id(path: Path, name: str) -> int | None:
    meta = read_meta(PosixFileSystem(), str(path / name / "data"))
    return None if meta is None else int(meta.node_id)


async def test_brokers_that_begin_at_the_same_moment_are_one_cluster_and_have_different_ids(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        brokers = await asyncio.gather(
            *(stack.enter_async_context(broker_on(tmp_path, name)) for name in ("a", "b", "c"))
        )
        for broker in brokers:
            await until(lambda broker=broker: len(unfenced(broker)) == 3)
        assert len({broker.node.cluster.image.cluster_id for broker in brokers}) == 1
        assert {broker.node.cluster.image.level for broker in brokers} == {LEVEL_MAX}
        assert sorted(broker.node.config.node_id for broker in brokers) == [1, 2, 3]
        assert sorted(kept_id(tmp_path, name) or 0 for name in ("a", "b", "c")) == [1, 2, 3]


async def test_a_broker_keeps_its_id_and_a_new_one_gets_none_that_was_given(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a") as first:
        async with broker_on(tmp_path, "b") as second:
            assert (first.node.config.node_id, second.node.config.node_id) == (1, 2)
        async with broker_on(tmp_path, "b") as again:
            assert again.node.config.node_id == 2
        await first.node.membership.controller.unregister_broker(2)
        async with broker_on(tmp_path, "c") as third:
            assert third.node.config.node_id == 3


async def test_a_second_broker_of_a_cluster_of_one_is_refused_until_the_level_is_raised(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a", node_id=1) as first:
        mend = (
            f"`firn cluster features --upgrade firn.version=1 --bootstrap 127.0.0.1:{first.port}`, restart broker 1, and start"
            " this one again"
        )
        with pytest.raises(StartRefused, match=mend):
            async with broker_on(tmp_path, "b"):
                pass
        assert kept_id(tmp_path, "b") is None
        with pytest.raises(StartRefused, match=mend):
            async with broker_on(tmp_path, "b", node_id=2):
                pass
        assert first.node.cluster.image.brokers.keys() == {1}
        await update_features(first.node.membership.controller, [FeatureAsked("firn.version", 1)])
    async with broker_on(tmp_path, "a", node_id=1) as first, broker_on(tmp_path, "b") as second:
        assert second.node.config.node_id == 2
        await until(lambda: unfenced(first) == [1, 2])


async def test_a_cluster_may_begin_with_a_node_id_that_an_operator_chose(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a", node_id=7, new_level=1) as first:
        assert first.node.cluster.image.level == 1
        async with broker_on(tmp_path, "b") as second:
            assert second.node.config.node_id == 8, "above an id that an operator chose"


async def test_two_brokers_with_ids_of_their_own_begin_one_cluster(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        brokers = await asyncio.gather(
            *(
                stack.enter_async_context(broker_on(tmp_path, f"b{node_id}", node_id=node_id, new_level=1))
                for node_id in (1, 2)
            )
        )
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2])


async def test_a_broker_that_died_between_its_id_and_its_registration_goes_on_under_it(tmp_path: Path) -> None:
    pool = ThreadPool(2)
    store = DirectoryStore(tmp_path / "store", pool)
    await store.open()
    config = BrokerConfig(node_id=NODE_ID_AUTO, data_dir=str(tmp_path / "a" / "data"))
    got = await with_node_id(
        config,
        store=store,
        fs=PosixFileSystem(),
        pool=pool,
        rng=random.Random(1),
        clock=SystemClock(),
        link=KafkaControlLink(),
        log_line=print,
    )
    assert got.node_id == 1
    pool.close()
    async with broker_on(tmp_path, "a") as first:
        assert first.node.config.node_id == 1


async def test_the_data_directory_of_another_cluster_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with broker_on(one, "a") as first:
        other = first.node.cluster.image.cluster_id
    (two / "a").parent.mkdir(exist_ok=True)
    (one / "a").rename(two / "a")
    with pytest.raises(StartRefused, match=f"belongs to cluster {other}, but the store is empty"):
        async with broker_on(two, "a"):
            pass
    assert not [found for found in (two / "store").rglob("*") if found.is_file()], "no cluster was created"
    async with broker_on(two, "b") as second:
        mine = second.node.cluster.image.cluster_id
        with pytest.raises(StartRefused, match=f"belongs to cluster {other}, but the store is of cluster {mine}"):
            async with broker_on(two, "a"):
                pass
        assert second.node.cluster.image.brokers.keys() == {1}
