"""Three brokers that read each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker
from tests.support.several import member, unfenced
from tests.support.waiting import until


class Three:
    """Three brokers, each in a rack of its own, with topic ``t`` of one partition and three replicas."""

    def __init__(self, brokers: list[RunningBroker]) -> None:
        self.brokers = brokers
        self.topic = brokers[0].node.cluster.image.topics_by_name["t"]
        self.topic_id = self.topic.topic_id
        self.leader = brokers[self.topic.partitions[0].leader - 1]
        self.followers = [broker for broker in brokers if broker is not self.leader]
        self.epoch = self.topic.partitions[0].leader_epoch

    def partition(self, broker: RunningBroker) -> Any:
        found = broker.node.partitions.table.get("t", 0)
        assert found is not None
        return found

    async def fill(self, *batches: bytes) -> None:
        async with talk(self.leader.port) as client:
            for one in batches:
                answer = await client.produce(9, [("t", [(0, one)])])
                assert answer.responses[0].partition_responses[0].error_code == 0

    async def everywhere(self, high_watermark: int) -> None:
        """All replicas know the high watermark, and the leader what they have stored."""
        for broker in self.brokers:
            await until(lambda broker=broker: broker.log("t").high_watermark >= high_watermark)
        counting = self.partition(self.leader).counting
        for broker in self.followers:
            node_id = broker.node.config.node_id
            await until(lambda node_id=node_id: counting.replica(node_id).stored_end >= high_watermark)


@asynccontextmanager
async def three(tmp_path: Path, **settings: Any) -> AsyncIterator[Three]:
    async with AsyncExitStack() as stack:
        brokers = [
            await stack.enter_async_context(member(tmp_path, node_id, broker_rack=f"rack-{node_id}", **settings))
            for node_id in (1, 2, 3)
        ]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        await brokers[0].node.membership.controller.create_topic(
            "t", 1, {"min.insync.replicas": "2"}, replication_factor=3
        )
        for broker in brokers:
            await until(lambda broker=broker: broker.node.partitions.table.get("t", 0) is not None)
        yield Three(brokers)
