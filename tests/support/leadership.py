"""Changes of leaders and of replicas in sync, as another broker's registration or an operator's request will bring them."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from app.broker.node import Node
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TimestampMs
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import PartitionImage
from app.metadata.image.records import BrokerRecord, Endpoint, broker_change, partition_change
from app.metadata.log.log_format import KeyValue
from tests.handlers.conversation import Talk, batch

OTHER = BrokerId(2)
"""A broker that is registered and does not run."""
OTHER_PORT = 9


async def name_leader(node: Node, topic: str, leader: int, partition: int = 0) -> None:
    """Have the cluster log say that ``leader`` leads a partition, in a new leader epoch; OTHER is registered if need be."""

    def change(image: PartitionImage) -> PartitionImage:
        return image._replace(leader=BrokerId(leader), leader_epoch=LeaderEpoch(image.leader_epoch + 1))

    await _change(node, topic, partition, change, registers=leader == OTHER)


async def name_in_sync(node: Node, topic: str, *in_sync: int, partition: int = 0) -> None:
    """Have the cluster log say that these replicas of a partition are in sync."""
    isr = tuple(BrokerId(one) for one in in_sync)
    await _change(node, topic, partition, lambda image: image._replace(isr=isr), registers=OTHER in isr)


async def _change(
    node: Node, topic: str, partition: int, change: Callable[[PartitionImage], PartitionImage], *, registers: bool
) -> None:
    """``registers``: OTHER is registered in the same entry."""

    def plan(draft: ImageDraft, around: PlanInputs) -> Planned[None]:
        found = draft.topic(topic)
        assert found is not None
        image = change(found.partitions[partition])._replace(
            partition_epoch=found.partitions[partition].partition_epoch + 1,
            replicas=(BrokerId(node.config.node_id), OTHER),
        )
        records: list[KeyValue] = [partition_change(found.topic_id, PartitionIndex(partition), image.record())]
        if registers:
            endpoint = Endpoint("PLAINTEXT", "127.0.0.1", OTHER_PORT, "PLAINTEXT")
            record = BrokerRecord(1, UUID(int=2), UUID(int=3), 1000, (endpoint,), None, TimestampMs(1))
            records.append(broker_change(OTHER, record))
        return Planned(records, None)

    await node.membership.controller.submit(plan)


async def produced(
    client: Talk, topic: str, version: int = 10
) -> tuple[int, tuple[int, int], list[tuple[int, str, int]]]:
    """The code, the leader that the answer names, and the addresses that it gives."""
    answer = await client.produce(version, [(topic, [(0, batch(1))])])
    found = answer.responses[0].partition_responses[0]
    leader = found.current_leader
    where = [(one.node_id, one.host, one.port) for one in answer.node_endpoints]
    return found.error_code, (leader.leader_id, leader.leader_epoch), where
