"""Leaders of topics with ``firn.durability=object``, among real brokers in one loop (ADR 0037, J14 to J23).

Nothing is written here: what is tried is the cluster's side of the write-ahead log.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from app.configs import Durability, TopicConfig
from app.core.errors import ErrorCode, RequestRejected, StorageUnavailable
from app.core.units import Buffer, PartitionIndex
from app.machine.runtime import ThreadPool
from app.metadata.changes.broker_changes import fence_brokers
from app.metadata.changes.features import FeatureAsked
from app.metadata.changes.topic_changes import ConfigChange
from app.metadata.image.image import PartitionImage
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalId
from app.metadata.log import layout
from app.metadata.membership import member
from app.metadata.membership.member import ClusterMember
from app.metadata.peers.control import NOTHING_WRITTEN, DropAsked, ReleaseAsked
from app.metadata.replicas.elections import NOBODY
from app.metadata.view.registration import StartRefused
from app.objectstore.api import ObjectInfo
from app.objectstore.directory import DirectoryStore
from app.objectstore.keys import LIST_LIMIT_MAX
from app.wire.config_resources import ConfigOperation
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import alter_configs, replace_configs, update_features
from tests.support.several import broker_on, cluster_on, unfenced
from tests.support.waiting import until

OBJECT = {"firn.durability": "object"}


@pytest.fixture(autouse=True)
def _nobody_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that stops waits until it has released what it leads, and does not here."""
    monkeypatch.setattr(member, "STOP_S", 0.1)


def image(broker: RunningBroker, index: int = 0) -> PartitionImage:
    topic = broker.node.cluster.image.topic("t")
    assert topic is not None
    return topic.partitions[index]


def epoch(broker: RunningBroker, of: int) -> int:
    return broker.node.cluster.image.brokers[of].broker_epoch


def member_of(broker: RunningBroker) -> ClusterMember:
    found = broker.node.membership.member
    assert found is not None
    return found


def seals(path: Path, wal: WalId) -> list[str]:
    """The objects of a log in the bucket."""
    place = path / "store" / layout.wal_prefix(*wal)
    return sorted(one.name for one in place.iterdir()) if place.exists() else []


async def fence(controller: RunningBroker, broker_id: int) -> WalId:
    """Fence a broker as if it had been silent. Returns: the log that it had then."""
    wal = WalId(broker_id, epoch(controller, broker_id))
    await controller.node.membership.controller.submit(lambda draft, around: fence_brokers(draft, around, [wal]))
    return wal


async def test_a_fenced_brokers_log_is_sealed_and_others_lead(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 3) as brokers:
        first = brokers[0]
        topic = await first.node.membership.controller.create_topic("t", 6, OBJECT, 3)
        assert topic.replication_factor == 3
        for broker in brokers:
            await until(lambda broker=broker: broker.node.cluster.image.topic("t") is not None)
        before = [image(first, index) for index in range(6)]
        assert sorted(one.leader for one in before) == [1, 1, 2, 2, 3, 3]
        assert {one.durability for one in before} == {PartitionDurability.OBJECT}

        wal = await fence(first, 2)
        await until(lambda: all(image(first, index).leader in (1, 3) for index in range(6)))
        after = [image(first, index) for index in range(6)]
        assert len(seals(tmp_path, wal)) == 1
        for one, was in zip(after, before, strict=True):
            assert one.replicas == one.isr == (one.leader,)
            if was.leader == 2:
                assert (one.leader_epoch, one.partition_epoch) == (was.leader_epoch + 2, was.partition_epoch + 2)
                assert [each.wal for each in one.wal_ranges] == [WalId(one.leader, epoch(first, one.leader))]
                assert one.wal_ranges[0].last == OPEN, "nothing was written, so the ended range is not kept"
            else:
                assert one == was
        # The process of broker 2 goes on under another broker epoch.
        await until(lambda: epoch(first, 2) > wal.broker_epoch)
        await until(lambda: unfenced(first) == [1, 2, 3])
        assert member_of(brokers[1]).broker_epoch == epoch(first, 2)
        assert first.node.cluster.image.brokers[2].wal_end == -1
        await first.node.membership.controller.create_partitions("t", 7)
        assert image(first, 6).wal_ranges[0].wal == WalId(image(first, 6).leader, epoch(first, image(first, 6).leader))


async def test_the_controllers_own_log_and_its_death(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a") as first, broker_on(tmp_path, "b") as other:
        await until(lambda: unfenced(first) == [1, 2])
        controller = first.node.membership.controller
        await controller.create_topic("t", configs=OBJECT, assignments={0: [1]})
        wal = WalId(1, epoch(first, 1))
        await until(lambda: other.node.cluster.image.topic("t") is not None)
        await fence(first, 1)
        await until(lambda: image(first).leader == 2)
        await until(lambda: epoch(first, 1) > wal.broker_epoch and unfenced(first) == [1, 2])
        assert seals(tmp_path, wal)


async def test_a_single_broker_that_stopped_in_order_goes_on_in_a_log_of_its_own_epoch(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a") as broker:
        await until(lambda: unfenced(broker) == [1])
        await broker.node.membership.controller.create_topic("t", 2, OBJECT)
        before = image(broker)
    async with broker_on(tmp_path, "a") as broker:
        await until(lambda: image(broker).leader == 1 and image(broker).leader_epoch > before.leader_epoch)
        [newest] = image(broker).wal_ranges
        assert newest.wal == WalId(1, epoch(broker, 1))
        assert newest.leader_epoch == image(broker).leader_epoch


async def test_a_leader_releases_and_drops_through_the_controller(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 2) as brokers:
        controller, other = brokers
        await controller.node.membership.controller.create_topic("t", configs=OBJECT, assignments={0: [2], 1: [1]})
        await until(lambda: other.node.cluster.image.topic("t") is not None)
        topic_id = other.node.cluster.image.topics_by_name["t"].topic_id
        # Broker 2 tells its next number with its heartbeats, and asks over the wire; broker 1 asks its own desk.
        member_of(other).wal_next = lambda: 12
        for leader, index in ((other, 0), (controller, 1)):
            before = image(leader, index)
            asked = ReleaseAsked(topic_id, index, before.leader_epoch, before.partition_epoch, 8)
            [answer] = await member_of(leader).release([asked])
            assert answer.error is ErrorCode.NONE
            await until(lambda leader=leader, index=index: image(leader, index).leader_epoch == 1)
            [answer] = await member_of(leader).release([asked])
            assert answer.error is ErrorCode.FENCED_LEADER_EPOCH
        assert [image(controller, index).leader for index in (0, 1)] == [1, 2]
        closed, newest = image(controller, 0).wal_ranges
        assert (closed.broker_id, closed.first, closed.last) == (2, 0, 8)
        assert (newest.broker_id, newest.last) == (1, OPEN)
        now = image(controller, 0)
        asked = DropAsked(topic_id, 0, now.leader_epoch, now.partition_epoch, (closed,))
        [answer] = await member_of(controller).drop_ranges([asked])
        assert (answer.error, image(controller, 0).wal_ranges) == (ErrorCode.NONE, (newest,))
        now = image(other, 1)
        [closed, newest] = now.wal_ranges
        asked = DropAsked(topic_id, 1, now.leader_epoch, now.partition_epoch, (closed,))
        [answer] = await member_of(other).drop_ranges([asked])
        assert answer.error is ErrorCode.NONE
        await until(lambda: image(other, 1).wal_ranges == (newest,))
        nothing = ReleaseAsked(topic_id, 1, now.leader_epoch, now.partition_epoch + 1, NOTHING_WRITTEN)
        [answer] = await member_of(other).release([nothing])
        assert (answer.error, image(controller, 1).leader) == (ErrorCode.NONE, 1)


async def test_j19_a_range_begins_at_the_number_that_heartbeats_told(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 2) as brokers:
        controller, other = brokers
        member_of(other).wal_next = lambda: 12
        desk = member_of(controller).desk
        await until(lambda: desk.controller.wal_next(WalId(2, epoch(controller, 2))) == 12)
        made = await controller.node.membership.controller.create_topic("t", configs=OBJECT, assignments={0: [2]})
        assert made.partitions[0].wal_ranges[0].first == 12


async def test_a_broker_registers_again_when_it_finds_that_its_log_has_ended(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 2) as brokers:
        controller, other = brokers
        await controller.node.membership.controller.create_topic("t", configs=OBJECT, assignments={0: [2]})
        await until(lambda: other.node.cluster.image.topic("t") is not None)
        before = member_of(other).broker_epoch
        member_of(other).register_again(before)
        member_of(other).register_again(before - 1)
        await until(lambda: member_of(other).broker_epoch > before and unfenced(controller) == [1, 2])
        await until(lambda: image(controller).leader != NOBODY)
        assert image(controller).wal_ranges[-1].wal == WalId(
            image(controller).leader, epoch(controller, image(controller).leader)
        )
        assert len(seals(tmp_path, WalId(2, before))) == 1


async def test_object_as_the_default_needs_level_3(tmp_path: Path) -> None:
    default = TopicConfig(firn_durability=Durability.OBJECT)
    with pytest.raises(StartRefused, match=r"firn\.durability=object needs firn\.version 3, and the cluster's is 2"):
        async with broker_on(tmp_path, "old", node_id=1, new_level=2, topic_defaults=default):
            pass
    async with broker_on(tmp_path / "new", "a", topic_defaults=default) as broker:
        await until(lambda: unfenced(broker) == [1])
        made = await broker.node.membership.controller.create_topic("t")
        assert made.partitions[PartitionIndex(0)].durability is PartitionDurability.OBJECT
        await replace_configs(broker.node.membership.controller, 2, "t", {})
        assert image(broker).durability is PartitionDurability.OBJECT, "its client knows nothing of the setting"
        await replace_configs(broker.node.membership.controller, 2, "t", {"firn.durability": "memory"})
        assert image(broker).durability is PartitionDurability.FROM_OBJECT


async def test_j40_j41_a_topic_changes_its_durability_both_ways(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 3) as brokers:
        controller = brokers[0].node.membership.controller
        await controller.create_topic("t", assignments={0: [2, 3]})
        leader = brokers[1]
        await until(lambda: leader.node.cluster.image.topic("t") is not None)
        await alter_configs(controller, 2, "t", [ConfigChange("firn.durability", ConfigOperation.SET, "object")])
        await until(lambda: image(leader).durability is PartitionDurability.OBJECT)
        assert image(leader).replicas == (2,)
        assert [(one.first, one.last) for one in image(leader).wal_ranges] == [(0, OPEN)]

        await alter_configs(controller, 2, "t", [ConfigChange("firn.durability", ConfigOperation.DELETE)])
        await until(lambda: image(leader).durability is PartitionDurability.REPLICAS)
        assert len(image(leader).replicas) == len(image(leader).isr) == 2
        assert not any(one.is_open for one in image(leader).wal_ranges)
        assert image(leader).leader == 2


class WithoutLogs(DirectoryStore):
    """A bucket in which write-ahead logs are away for now."""

    away = False
    refused = 0

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        self._check(key)
        await super().put_if_absent(key, data)

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX
    ) -> list[ObjectInfo]:
        self._check(prefix)
        return await super().list_objects(prefix, start_after=start_after, limit=limit)

    def _check(self, key: str) -> None:
        if self.away and key.startswith(layout.WAL_PREFIX):
            self.refused += 1
            raise StorageUnavailable("it is away")


async def test_j16_replicas_fail_over_while_the_store_of_logs_is_away(tmp_path: Path) -> None:
    pool = ThreadPool(2)
    store = WithoutLogs(tmp_path / "store", pool)
    await store.open()
    try:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(
                running_broker(tmp_path / "first", store=store, node_id=1, new_level=3, rng=Random(31))
            )
            for name in ("b", "c"):
                await stack.enter_async_context(broker_on(tmp_path, name))
            await until(lambda: unfenced(first) == [1, 2, 3])
            controller = first.node.membership.controller
            await controller.create_topic("t", configs=OBJECT, assignments={0: [2]})
            made = await controller.create_topic("r", assignments={0: [2, 3]})

            def replicated() -> PartitionImage:
                found = first.node.cluster.image.partition(made.topic_id, 0)
                assert found is not None
                return found

            store.away = True
            wal = await fence(first, 2)
            assert replicated().leader == 3, "in the same entry"
            assert image(first).leader == NOBODY
            await until(lambda: store.refused > 1)
            assert image(first).wal_ranges[-1].wal == wal
            store.away = False
            await until(lambda: image(first).leader not in (NOBODY, 2))
            assert len(seals(tmp_path, wal)) == 1
    finally:
        pool.close()


async def test_an_older_cluster_gets_object_topics_when_its_level_is_raised(tmp_path: Path) -> None:
    async with broker_on(tmp_path, "a", node_id=1, new_level=1) as broker:
        await until(lambda: unfenced(broker) == [1])
        controller = broker.node.membership.controller
        with pytest.raises(RequestRejected, match=r"run `firn cluster features --upgrade firn\.version=3`"):
            await controller.create_topic("t", configs=OBJECT)
        with pytest.raises(RequestRejected, match=r"it is 1: run"):
            await alter_configs(controller, 4, "", [ConfigChange("firn.durability", ConfigOperation.SET, "object")])
        await update_features(controller, [FeatureAsked("firn.version", 3)])
        await alter_configs(controller, 4, "", [ConfigChange("firn.durability", ConfigOperation.SET, "object")])
        made = await controller.create_topic("t")
        assert (made.configs, image(broker).durability) == (OBJECT, PartitionDurability.OBJECT)
