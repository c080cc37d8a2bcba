"""A replica that is added to a partition of three real brokers, under throttles (ADR 0024, V7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.core.units import PartitionIndex, TopicIdPartition
from app.metadata.changes.reassignments import ReassignmentAsked
from app.metadata.changes.topic_changes import ConfigChange
from app.wire.config_resources import ConfigOperation
from tests.broker.three import Three, three
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker
from tests.support.changing import alter_configs
from tests.support.waiting import until

TOPIC, BROKER = 2, 4
BATCHES, VALUE = 8, b"x" * 500_000


class Moved:
    """Topic ``u`` with 4 MB on two of the brokers; ``third`` has nothing of it yet."""

    def __init__(self, cluster: Three) -> None:
        self.cluster = cluster
        self.controller = cluster.brokers[0].node.membership.controller
        topic = cluster.brokers[0].node.cluster.image.topics_by_name["u"]
        self.key = TopicIdPartition(topic.topic_id, PartitionIndex(0))
        replicas = topic.partitions[0].replicas
        self.leader = cluster.brokers[topic.partitions[0].leader - 1]
        (third,) = {1, 2, 3} - set(replicas)
        self.third = cluster.brokers[third - 1]
        self.targets = (*replicas, third)

    async def produce(self, count: int) -> None:
        async with talk(self.leader.port) as client:
            for _ in range(count):
                answer = await client.produce(9, [("u", [(0, batch(1, value=VALUE))])])
                assert answer.responses[0].partition_responses[0].error_code == 0

    async def set(self, kind: int, name: str, setting: str, value: str) -> None:
        await alter_configs(self.controller, kind, name, [ConfigChange(setting, ConfigOperation.SET, value)])

    async def add(self) -> Any:
        """Have the third broker added. Returns: its log."""
        (answer,) = await self.controller.alter_reassignments([ReassignmentAsked("u", 0, self.targets)])
        assert answer.error == 0
        await until(lambda: self.third.node.partitions.table.get("u", 0) is not None)
        return self.third.log("u")

    async def asked_again(self, times: int) -> None:
        """Wait until the third broker has sent so many more fetches of the partition."""
        counting = self.leader.node.partitions.table.get("u", 0).counting  # type: ignore[union-attr]
        for _ in range(times):
            before = counting.replica(self.third.node.config.node_id).asked_ms
            await until(lambda before=before: counting.replica(self.third.node.config.node_id).asked_ms > before)

    @property
    def in_sync(self) -> set[int]:
        return set(self.cluster.brokers[0].node.cluster.image.partition(*self.key).isr)  # type: ignore[union-attr]


def now_ms(broker: RunningBroker) -> int:
    return broker.node.partitions.table.now_ms()


@asynccontextmanager
async def moving(tmp_path: Path) -> AsyncIterator[Moved]:
    # What has passed stays in the window for the whole test.
    async with three(tmp_path, replication_quota_window_num=3600) as cluster:
        await cluster.brokers[0].node.membership.controller.create_topic("u", 1, {}, replication_factor=2)
        for broker in cluster.brokers:
            await until(lambda broker=broker: broker.node.cluster.image.topic("u") is not None)
        moved = Moved(cluster)
        await until(lambda: moved.leader.node.partitions.table.led("u", 0) is not None)
        await moved.produce(BATCHES)
        yield moved


@pytest.mark.ci
@pytest.mark.parametrize("replicas", ["*", "0:1,0:2,0:3"])
async def test_a_leader_sends_a_throttled_replica_no_more_than_its_rate(tmp_path: Path, replicas: str) -> None:
    async with moving(tmp_path) as moved:
        await moved.set(BROKER, "", "leader.replication.throttled.rate", "1")
        await moved.set(TOPIC, "u", "leader.replication.throttled.replicas", replicas)
        throttle = moved.leader.node.context.leader_throttle
        await until(lambda: throttle.limit == 1 and moved.leader.log("u").config.leader_replication_throttled_replicas)
        log = await moved.add()
        await until(lambda: throttle.is_exceeded(now_ms(moved.leader)))
        await moved.asked_again(1)
        end = log.log_end_offset
        assert 0 < end < BATCHES
        await moved.produce(1)  # the replicas in sync are not throttled
        await moved.asked_again(3)
        assert log.log_end_offset == end
        assert moved.in_sync == set(moved.targets[:2])  # nobody had to leave for the record to be acknowledged
        await moved.set(BROKER, "", "leader.replication.throttled.rate", str(1 << 40))
        await until(lambda: moved.in_sync == {1, 2, 3})
        assert log.log_end_offset == BATCHES + 1


@pytest.mark.ci
async def test_a_follower_asks_for_no_more_than_its_rate(tmp_path: Path) -> None:
    async with moving(tmp_path) as moved:
        name = str(moved.third.node.config.node_id)
        await moved.set(BROKER, name, "follower.replication.throttled.rate", "1")
        await moved.set(TOPIC, "u", "follower.replication.throttled.replicas", f"0:{name}")
        followers = moved.third.node.followers
        assert followers is not None
        await until(lambda: followers.throttle.limit == 1)
        log = await moved.add()
        await until(lambda: followers.throttle.is_exceeded(now_ms(moved.third)))
        end = log.log_end_offset
        assert 0 < end < BATCHES
        fetcher = followers._fetchers[moved.leader.node.config.node_id]
        for _ in range(3):  # it rests, and rests again
            before = fetcher._followed[moved.key].not_before_s
            await until(lambda before=before: fetcher._followed[moved.key].not_before_s > before)
        assert log.log_end_offset == end
        await moved.produce(1)
        await alter_configs(
            moved.controller,
            BROKER,
            name,
            [ConfigChange("follower.replication.throttled.rate", ConfigOperation.DELETE, None)],
        )
        await until(lambda: moved.in_sync == {1, 2, 3})
        assert log.log_end_offset == BATCHES + 1
