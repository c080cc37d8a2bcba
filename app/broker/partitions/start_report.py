"""The end of a start: waits until all partitions are led, and logs the lost and recovered offsets of a take-over.

Tests: ``tests/broker/test_leading_again.py``, ``tests/broker/test_lost_directory.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from app.broker.partitions.lost_directory import Back, BegunAnew, back_from_the_store, lost_with_the_directory
from app.core.log_events import Event
from app.core.loop_time import loop_time_s
from app.core.turns import Portion
from app.core.units import BrokerId, TopicIdPartition
from app.hot.log import PartitionLog
from app.metadata.image.image import ClusterImage
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.membership.membership import Membership
from app.replication.partition import PartitionTable
from app.replication.roles import Role, Wanted, wanted_by
from app.tiering.upload.remote_log_manager import RemoteLogManager

LED_LOOK_S: Final = 0.05
"""Between two looks of a start whether this broker leads again …"""
LED_SOON_S: Final = 10.0
"""… in its first seconds, while the start waits for it …"""
LED_LOOK_LATE_S: Final = 2.0
"""… and later. A look at 10,000 partitions takes some 10 ms."""


class StartReport:
    """Waits until a start leads all partitions, and logs the lost and recovered offsets. Belongs to the broker's loop."""

    def __init__(
        self,
        broker_id: BrokerId,
        data_dir: str,
        *,
        membership: Membership,
        table: PartitionTable,
        tier: RemoteLogManager,
        log_line: Callable[[str], None],
    ) -> None:
        self._broker_id = broker_id
        self._data_dir = data_dir
        self._cluster, self._registration = membership.view, membership.registration
        self._table = table
        self._tier = tier
        self._log_line = log_line
        self.back: list[Back] = []
        """The recovered end offsets of tiered topics after a take-over; empty without a take-over."""
        self.told: frozenset[TopicIdPartition] = frozenset()
        """Partitions whose lost and recovered offsets the start has told after a take-over. ``until_led`` tells of the others."""

    def tell_what_is_lost(self, image: ClusterImage, manifests: Mapping[PartitionLog, SegmentManifest]) -> None:
        logs: dict[str, list[PartitionLog]] = {}
        for log in manifests:
            logs.setdefault(log.topic, []).append(log)
        for of_topic in logs.values():
            of_topic.sort(key=lambda log: log.partition)
        begun = [
            BegunAnew(
                name,
                self._cluster.effective_config(image.topics_by_name[name]),
                [int(log.partition) for log in of_topic],
                [int(log.partition) for log in of_topic if not manifests[log].finished],
            )
            for name, of_topic in sorted(logs.items())
        ]
        for line in lost_with_the_directory(self._data_dir, begun):
            self._log_line(Event.LOG_DIRECTORY_LOST.line(line))

    def tell_what_is_back(self, logs: Iterable[PartitionLog]) -> None:
        ends: dict[str, list[tuple[int, int]]] = {}
        for log in logs:
            if log.config.tiered:
                ends.setdefault(log.topic, []).append((int(log.partition), int(log.log_end_offset)))
        self.back = [Back(name, sorted(of_topic)) for name, of_topic in sorted(ends.items())]
        for line in back_from_the_store(self.back):
            self._log_line(Event.LOG_DIRECTORY_LOST.line(line))

    async def until_led(self, *, new_directory: bool) -> None:
        """Wait until this broker is unfenced, and leads every partition that the image says it leads, or has found a reason
        against it. A single broker is not ready before this returns. Logs the offsets that a take-over has lost or recovered.
        """
        begun_s, before = loop_time_s(), self._cluster.image
        while True:
            if not await self._waits_to_lead():
                break
            await asyncio.sleep(LED_LOOK_S if loop_time_s() < begun_s + LED_SOON_S else LED_LOOK_LATE_S)
        if not new_directory and not self._registration.took_over:
            return
        told, self.told = self.told, frozenset()
        image, portion, untold = self._cluster.image, Portion(), False
        manifests: dict[PartitionLog, SegmentManifest] = {}
        for partition in self._table:
            await portion.rest_if_spent()
            if before.topic_by_id(partition.topic_id) is None:
                continue  # clients have made the topic since the start: it has lost nothing
            wanted = wanted_by(image.partition(partition.topic_id, partition.index), self._broker_id)
            manifest = self._tier.manifest_of(partition.key)
            if wanted is Wanted.LEADER and partition.role is Role.LEADER and manifest is not None:
                manifests[partition.log] = manifest
                untold = untold or partition.key not in told
        if not untold:
            return
        if new_directory:
            self.tell_what_is_lost(image, manifests)
        await portion.rest_if_spent()
        self.tell_what_is_back(manifests)

    async def _waits_to_lead(self) -> bool:
        image = self._cluster.image
        mine = image.brokers.get(self._broker_id)
        if mine is None or mine.fenced:
            return True
        portion = Portion()
        for topic in image.topics_by_name.values():
            for partition in topic.partitions:
                held = self._table.get(topic.name, partition.partition_index)
                if partition.leader == self._broker_id and (held is None or held.role is Role.FOLLOWER):
                    return True
            await portion.rest_if_spent()
        return False
