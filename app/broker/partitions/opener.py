"""The partitions that this broker is named to lead: opened as soon as the store allows it, or retried while they are offline.

Tests: ``tests/broker/test_leadership.py``, ``tests/broker/test_leading_again.py``, ``tests/broker/test_offline.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from app.broker.partitions.held import HeldPartitions
from app.broker.partitions.leadership_lines import why_offline
from app.broker.partitions.logs_in_image import is_to_lead, leader_epoch
from app.broker.partitions.next_step import Stage
from app.broker.partitions.opening import Opening
from app.broker.partitions.unsettled import RETRY_S_MAX, RETRY_S_MIN, STARTED_AT_ONCE, Unsettled
from app.core.errors import CorruptionError, FencedError, FirnError, StorageUnavailable
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.loop_time import loop_time_s
from app.core.units import BrokerId, TopicIdPartition
from app.hot.manager import LogManager
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.view.view import ClusterView

OPENING: Final = "opening"
"""Name of this work in log lines about faults."""
OPENED_AT_ONCE: Final = 1024
"""Partitions of other brokers that are opened at the same time: those of one write-ahead log share its objects."""
OFFLINE_RETRY_S_MIN: Final = 5.0
OFFLINE_RETRY_S_MAX: Final = 120.0
"""Pause between two attempts to open offline partitions. Each attempt reads their manifests."""


class Opener:
    """Opens the partitions in the stages NAMED and OFFLINE. Belongs to the broker's loop."""

    def __init__(
        self,
        broker_id: BrokerId,
        held: HeldPartitions,
        opening: Opening,
        *,
        cluster: ClusterView,
        logs: LogManager,
        faults: Faults,
        log_line: Callable[[str], None],
    ) -> None:
        self._broker_id = broker_id
        self._held, self._manifests = held, held.manifests
        self._opening = opening
        self._cluster = cluster
        self._logs = logs
        self._faults = faults
        self._log_line = log_line
        self._under_way: set[TopicIdPartition] = set()
        """Partitions with an attempt under way. There is one attempt at a time, also if the partition is named anew meanwhile."""
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A partition has come, or may be opened now."""
        self._wake.set()

    async def bring_back_offline(self) -> None:
        """Try to open offline partitions again, at growing intervals, because an operator may have repaired the store."""
        delay_s = OFFLINE_RETRY_S_MIN
        while True:
            await asyncio.sleep(delay_s)
            unopened = self._held.unsettled.of(Stage.NAMED, Stage.OFFLINE)
            delay_s = min(delay_s * 2, OFFLINE_RETRY_S_MAX) if unopened else OFFLINE_RETRY_S_MIN
            for key in unopened:
                await self.try_to_open(key)

    async def open_named(self) -> None:
        """Open partitions that another broker led until now, as soon as the store allows it."""
        delay_s = RETRY_S_MIN
        limit = asyncio.Semaphore(OPENED_AT_ONCE)
        begun: set[TopicIdPartition] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                named = {key: one for key, one in self._held.unsettled.of(Stage.NAMED).items() if key not in begun}
                if named:
                    # Partitions that are named later do not wait for these.
                    begun.update(named)
                    group.create_task(self._open_together(named, limit, begun))
                left = self._held.unsettled.count(Stage.NAMED) > 0
                delay_s = min(delay_s * 2, RETRY_S_MAX) if left else RETRY_S_MIN
                try:
                    async with asyncio.timeout(delay_s if left else None):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    async def _open_together(
        self, named: Mapping[TopicIdPartition, Unsettled], limit: asyncio.Semaphore, begun: set[TopicIdPartition]
    ) -> None:
        """Try once to open partitions that were named together: their manifests are listed together."""

        async def open_one(key: TopicIdPartition) -> None:
            async with limit:
                await self.try_to_open(key, listed.get(key))

        try:
            listed = await self._manifests.list_keys(named) if len(named) > 1 else {}
            async with asyncio.TaskGroup() as group:
                for place, key in enumerate(named, 1):
                    group.create_task(open_one(key))
                    if place % STARTED_AT_ONCE == 0:
                        await asyncio.sleep(0)
        finally:
            begun.difference_update(named)
        if any((self._to_open(key) or one) is not one for key, one in named.items()):
            self._wake.set()  # named again meanwhile

    @property
    def opening(self) -> frozenset[TopicIdPartition]:
        """The partitions that this broker is named to lead, or is trying to open, and does not lead yet."""
        return frozenset(self._held.unsettled.of(Stage.NAMED, Stage.OFFLINE))

    def _to_open(self, key: TopicIdPartition) -> Unsettled | None:
        one = self._held.unsettled.get(key)
        return one if one is not None and one.stage in (Stage.NAMED, Stage.OFFLINE) else None

    async def try_to_open(self, key: TopicIdPartition, listed: Sequence[str] | None = None) -> bool:
        """Try to open a partition that is not led yet. ``listed``: the keys of its manifest, listed since it was named.

        Returns: whether it is led now. Raises: FencedError.
        """
        one = self._to_open(key)
        if one is None or key in self._under_way:
            return one is None
        partition = one.partition
        log = partition.log
        named = leader_epoch(self._cluster.image, log)
        if one.named != named:
            # It was named once more, and followed no image in between: others may have led it meanwhile.
            one.named, one.since_s = named, loop_time_s()
        self._under_way.add(key)
        try:
            manifest = await self._manifests.load(log, None, listed)
            await self._bump_once(one, manifest)
            if not self._cluster.image.level:
                named = leader_epoch(self._cluster.image, log)  # raised just now
            if one.was_in_sync:
                self._opening.check_in_sync_log(log, manifest)
            opened = await self._opening.open(
                log,
                manifest,
                foreign=True,
                since_s=one.since_s,
                is_wanted=lambda: (
                    self._held.unsettled.holds(one) and is_to_lead(self._cluster.image, log, named, self._broker_id)
                ),
            )
        except FencedError:
            if not self._cluster.image.level:
                raise
            return False  # a leader of a higher epoch has sealed it: the image will say so
        except CorruptionError as error:
            if self._held.unsettled.holds(one) and self._held.is_held(log):
                self._tell_unopened(one, error)
            return False
        except StorageUnavailable:
            return False  # The store does not respond. Another part reports it, and the next attempt may succeed.
        except FirnError as error:
            self._faults.met_error(OPENING, f"{log.topic}-{log.partition}", error)
            return False
        finally:
            self._under_way.discard(key)
        topic = self._cluster.image.topic_by_id(key.topic_id)
        if (
            opened is None
            or not self._held.unsettled.holds(one)
            or topic is None
            or leader_epoch(self._cluster.image, log) != named
        ):
            self._wake.set()  # it may have been named once more
            return False  # It was deleted meanwhile, or another broker has led it since.
        if one.stage is Stage.OFFLINE:
            self._logs.bring_back(log)
        if opened.plan is not None:
            self._opening.tell_of_restored(log, opened.plan)
        config = self._cluster.effective_config(topic)
        if log.config != config:
            log.update_config(config)
        try:
            self._held.lead(partition, leader_epoch(self._cluster.image, log))
        except FencedError:
            return False  # named again meanwhile, or not any more: the image will say so
        self._held.unsettled.settle(key)
        self._opening.end_transactions(log, opened.lost)
        self._held.join_tier(log, manifest)
        self._log_line(
            Event.PARTITION_ONLINE.line(
                f"{log.topic}-{log.partition} is led again", topic=log.topic, partition=int(log.partition)
            )
        )
        return True

    def _tell_unopened(self, one: Unsettled, error: CorruptionError) -> None:
        """A partition still cannot be opened. Logs the reason if it is new."""
        partition = one.partition
        if one.stage is not Stage.OFFLINE:
            self._held.go_offline(partition.log, error)
            return
        why = why_offline(partition.key, error)
        if why != partition.why_offline:
            self._held.table.put_offline(partition, why)
            self._log_line(
                Event.PARTITION_OFFLINE.line(
                    f"{partition.topic}-{partition.index} is still offline: {why}",
                    topic=partition.topic,
                    partition=int(partition.index),
                )
            )

    async def _bump_once(self, one: Unsettled, manifest: SegmentManifest) -> None:
        """Raise the leader epoch of an unopened partition above all known epochs, but not with every attempt."""
        if self._cluster.image.level:
            return  # the entry that named this leader has raised it (E2)
        log = one.partition.log
        known = [epoch for epoch, _ in manifest.state.leader_epochs()]
        known += [entry.epoch for entry in log.leader_epochs()]
        highest = max(known, default=-1)
        if one.bumped_above is None or highest > one.bumped_above:
            await self._opening.bump({log: manifest}, [log])
            one.bumped_above = highest
