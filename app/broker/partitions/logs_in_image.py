"""The leader and the leader epoch of a log, by an image of the cluster. Pure.

Tests: ``tests/broker/test_leadership.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.units import BrokerId, LeaderEpoch, TopicIdPartition
from app.replication.roles import Wanted, wanted_by

if TYPE_CHECKING:
    from app.hot.log import PartitionLog
    from app.metadata.image.image import ClusterImage


def key_of(log: PartitionLog) -> TopicIdPartition:
    """The partition of a log, by topic id."""
    return TopicIdPartition(log.topic_id, log.partition)


def leader_epoch(image: ClusterImage, log: PartitionLog) -> LeaderEpoch:
    """The leader epoch of a log's partition; the log's own one if the image does not have the partition."""
    partition = image.partition(log.topic_id, log.partition)
    return log.leader_epoch if partition is None else partition.leader_epoch


def is_to_lead(image: ClusterImage, log: PartitionLog, epoch: LeaderEpoch, broker_id: BrokerId) -> bool:
    """Whether the image names this broker as leader in this leader epoch."""
    partition = image.partition(log.topic_id, log.partition)
    return (
        partition is not None and partition.leader_epoch == epoch and wanted_by(partition, broker_id) is Wanted.LEADER
    )
