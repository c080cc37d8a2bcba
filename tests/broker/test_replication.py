"""Topics with three replicas on three real brokers in one loop (ADR 0024)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from tests.broker.test_cluster import member, unfenced, until
from tests.handlers.conversation import batch, talk


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
        for partition in image.partitions:
            leader = brokers[partition.leader - 1]
            index = partition.partition_index
            await until(lambda leader=leader, index=index: leader.node.partitions.table.get("t", index) is not None)
            async with talk(leader.port) as client:
                answer = await client.produce(9, [("t", [(index, batch(3))])])
                assert answer.responses[0].partition_responses[0].error_code == 0
            logs = [broker.log("t", index) for broker in brokers]
            assert [log.stored_end_offset for log in logs] == [3, 3, 3]
            assert leader.log("t", index).high_watermark == 3
            for log in logs:  # followers learn the high watermark with their next fetch
                await until(lambda log=log: log.high_watermark == 3)
