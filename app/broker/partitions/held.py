"""The partitions with a log on this broker, and the parts of each: its role, its tier, its write-ahead log, its view.

Tests: ``tests/broker/test_leadership.py``, ``tests/broker/test_offline.py``, ``tests/broker/test_deleted_topics.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.broker.partitions.leadership_lines import why_offline
from app.broker.partitions.logs_in_image import key_of
from app.broker.partitions.manifest_copies import ManifestCopies
from app.broker.partitions.manifests import Manifests
from app.broker.partitions.next_step import Stage
from app.broker.partitions.tier_views import TierViews
from app.broker.partitions.unsettled import Unsettled, UnsettledPartitions
from app.core.errors import CorruptionError
from app.core.log_events import Event
from app.core.loop_time import loop_time_s
from app.core.units import BrokerId, LeaderEpoch, TopicIdPartition
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.view.view import ClusterView
from app.replication.partition import Partition, PartitionTable
from app.tiering.upload.remote_log_manager import RemoteLogManager

if TYPE_CHECKING:
    from app.broker.write_ahead.write_ahead import WriteAhead


class HeldPartitions:
    """The partitions with a log here. Each method changes several parts of a partition together. Belongs to the broker's loop."""

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        cluster: ClusterView,
        logs: LogManager,
        tier: RemoteLogManager,
        copies: ManifestCopies,
        manifests: Manifests,
        log_line: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._logs = logs
        self._tier = tier
        self._copies = copies
        self.manifests = manifests
        self._log_line = log_line
        self.table = PartitionTable(broker_id, lambda: cluster.image)
        self.unsettled = UnsettledPartitions()
        """The partitions that have work left."""
        self.views: TierViews | None = None
        """The views of the tier of followed partitions; None on a broker that is alone. Set before the first role is taken."""
        self.new_write_ahead: Callable[[], WriteAhead] | None = None
        """Makes the journal of topics with ``firn.durability=object`` when it is needed."""
        self.write_ahead: WriteAhead | None = None

    def journal(self) -> WriteAhead:
        if self.write_ahead is None:
            assert self.new_write_ahead is not None
            self.write_ahead = self.new_write_ahead()
        return self.write_ahead

    def lead(self, partition: Partition, epoch: LeaderEpoch) -> None:
        """Accept records and serve readers from now on. Raises: FencedError if its WAL is not the present one."""
        image = self._cluster.image.partition(partition.topic_id, partition.index)
        if image is not None and image.is_journaled:
            self.journal().lead(partition.log, image)
        self.table.lead(partition, epoch)

    def go_offline(self, log: PartitionLog, error: CorruptionError) -> None:
        """Take a partition offline, with its files on the disk, until it can be opened."""
        key = key_of(log)
        partition = self.table.get(log.topic, log.partition)
        assert partition is not None
        why = why_offline(key, error)
        self._logs.set_aside(log)
        one = self.unsettled.get(key)
        if one is None:
            self.unsettled.begin(Unsettled(partition, Stage.OFFLINE, loop_time_s()))
        else:
            self.unsettled.put_offline(one)
        self.table.put_offline(partition, why)
        self._log_line(
            Event.PARTITION_OFFLINE.line(
                f"{log.topic}-{log.partition} is offline, and the broker serves the other partitions: {why}",
                topic=log.topic,
                partition=int(log.partition),
            )
        )

    def is_held(self, log: PartitionLog) -> bool:
        """Whether a log still belongs to its partition. It does not from the moment in which its topic is deleted."""
        partition = self.table.get(log.topic, log.partition)
        return partition is not None and partition.log is log

    def join_tier(self, log: PartitionLog, manifest: SegmentManifest) -> None:
        """This broker leads the partition, and writes its manifest from now on."""
        self.forget_view(key_of(log))
        self.manifests.hand_on(manifest)
        self._tier.attach(log, manifest)

    def view(self, partition: Partition, led_by: SegmentManifest | None = None) -> None:
        """This broker follows the partition, and learns of its tier from the leader."""
        if self.views is not None:
            self.views.begin(partition, led_by)

    def forget_view(self, key: TopicIdPartition) -> None:
        if self.views is not None:
            self.views.forget(key)

    def forget(self, key: TopicIdPartition) -> None:
        """Give up all waiting work for a partition, its copies and its view."""
        self.unsettled.settle(key)
        self._copies.forget(key)
        self._tier.detach(*key)
        self.forget_view(key)

    def detach(self, partition: Partition) -> None:
        """Remove a partition of a deleted topic from all other parts of the broker. Its log stays. A repeated call does nothing."""
        self.forget(partition.key)
        if self.write_ahead is not None:
            self.write_ahead.gone(partition.key)
