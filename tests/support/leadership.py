"""Changes of leaders, as another broker's registration or an operator's request will bring them."""

from __future__ import annotations

from uuid import UUID

from app.broker.node import Node
from app.metadata.changes import Planned, Surroundings
from app.metadata.cluster import BrokerRecord, Endpoint, ImageDraft, KeyValue, broker_change, partition_change
from app.units import BrokerId, LeaderEpoch, PartitionIndex, TimestampMs

OTHER = BrokerId(2)
"""A broker that is registered and does not run."""
OTHER_PORT = 9


async def name_leader(node: Node, topic: str, leader: int, partition: int = 0) -> None:
    """Have the cluster log say that ``leader`` leads a partition, in a new leader epoch; OTHER is registered if need be."""

    def plan(draft: ImageDraft, around: Surroundings) -> Planned[None]:
        found = draft.topic(topic)
        assert found is not None
        image = found.partitions[partition]
        image = image._replace(
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(image.leader_epoch + 1),
            partition_epoch=image.partition_epoch + 1,
            replicas=(BrokerId(node.config.node_id), OTHER),
        )
        records: list[KeyValue] = [partition_change(found.topic_id, PartitionIndex(partition), image.record())]
        if leader == OTHER:
            endpoint = Endpoint("PLAINTEXT", "127.0.0.1", OTHER_PORT, "PLAINTEXT")
            record = BrokerRecord(1, UUID(int=2), UUID(int=3), 1000, (endpoint,), None, TimestampMs(1))
            records.append(broker_change(OTHER, record))
        return Planned(records, None)

    await node.controller.submit(plan)
