"""Topics with three replicas on three real brokers in one loop (ADR 0024)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from tests.broker.test_cluster import member, unfenced, until


async def test_what_is_acknowledged_is_on_all_in_sync(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2, 3)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        await brokers[0].node.membership.controller.create_topic(
            "t", 3, {"min.insync.replicas": "2"}, replication_factor=3
        )
        for broker in brokers:
            await until(lambda broker=broker: broker.node.cluster.image.topic("t") is not None)
        image = brokers[0].node.cluster.image.topics_by_name["t"]
        assert sorted(partition.leader for partition in image.partitions) == [1, 2, 3]
        leader = brokers[image.partitions[0].leader - 1]
        log = leader.log("t", 0)
        print(log)
