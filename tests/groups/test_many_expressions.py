"""A topic that is created while many groups have expressions: they are matched in portions (INV-15)."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

from app.configs import BrokerConfig
from app.core.metrics import Registry
from app.core.turns import PORTION_S
from app.core.units import PartitionIndex, TimestampMs
from app.groups.consumer import consumer
from app.groups.consumer.consumer import ConsumerGroup
from app.groups.consumer.subscriptions import ResolvedRegex
from app.groups.coordinator import GroupCoordinator
from app.groups.shard import GroupShard
from app.metadata.image.image import ClusterImage
from tests.support.counted_loop import on_counted_loop, work

GROUPS = 30


def coordinator_with(shard: GroupShard) -> GroupCoordinator:
    config = BrokerConfig()
    partitions: Any = SimpleNamespace(watch=lambda topic, tell: None)
    clock: Any = SimpleNamespace(now_ms=lambda: 1_700_000_000_000)
    made = GroupCoordinator(
        config=lambda: config,
        broker_id=1,  # type: ignore[arg-type]
        partitions=partitions,
        clock=clock,
        rng=random.Random(1),
        registry=Registry(),
        log_line=lambda line: None,
    )
    made.shell.shards = lambda: [(PartitionIndex(0), shard)]  # type: ignore[method-assign]
    return made


def shard_with_expressions() -> GroupShard:
    config = BrokerConfig()
    shard = GroupShard(PartitionIndex(0), lambda: config, random.Random(1))
    for number in range(GROUPS):
        group = ConsumerGroup(f"g{number}", config)
        group.regexes = {f"orders-{number}|new.*": ResolvedRegex(frozenset(), 1, TimestampMs(1))}
        shard.groups[group.group_id] = group
    return shard


def matched(shard: GroupShard) -> list[frozenset[str]]:
    return [
        next(iter(group._regexes_due.values())).topics if group._regexes_due else frozenset()
        for group in shard.groups.values()
        if isinstance(group, ConsumerGroup)
    ]


@on_counted_loop
async def test_expressions_beyond_one_portion_are_matched_later_and_in_order(monkeypatch: Any) -> None:
    matches = consumer.matches

    def slow(regex: str, names: Any) -> frozenset[str]:
        work(PORTION_S / 4)
        return matches(regex, names)

    monkeypatch.setattr(consumer, "matches", slow)
    shard = shard_with_expressions()
    coordinator = coordinator_with(shard)
    monkeypatch.setattr(shard, "image", lambda: ClusterImage())
    running = asyncio.ensure_future(coordinator.match_rest())
    coordinator.match_topics({"new-1"}, set())
    assert matched(shard).count(frozenset({"new-1"})) <= 4  # the loop was not held for all of them
    coordinator.match_topics({"new-2"}, {"new-1"})
    turns = 0
    while matched(shard) != [frozenset({"new-2"})] * GROUPS:
        turns += 1
        await asyncio.sleep(0)
    running.cancel()
    assert turns >= GROUPS // 4


@on_counted_loop
async def test_a_few_expressions_are_matched_before_the_change_of_the_cluster_is_answered(monkeypatch: Any) -> None:
    shard = shard_with_expressions()
    monkeypatch.setattr(shard, "image", lambda: ClusterImage())
    coordinator = coordinator_with(shard)
    coordinator.match_topics({"new-1"}, set())
    assert matched(shard) == [frozenset({"new-1"})] * GROUPS
