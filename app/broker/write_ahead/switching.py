"""The leader's part of a change of durability (ADR 0037, J40 to J42): it makes the new rule hold, and asks for the second entry.

**To object.** The records of the partition are tiered, while producers go on. Then the leader takes no records for the moment that
the last piece needs: when everything is tiered, the write-ahead log begins empty, and the rule changes. An open transaction cannot
be tiered, so the moment must have none. If no such moment comes by itself, because transactions overlap, none may begin for a
while. That is done in one partition at a time: two transactions that each begin in two of them would wait for each other.

**From object.** The leader goes on as before, and each record counts when the write-ahead log and all replicas in sync have it.
When enough replicas are in sync, the leader takes no records until its log is in the bucket, on its disk and on theirs, and asks.

A leader that has asked takes no records until it has an answer that refuses, or an image with a newer partition epoch (J18).

Tests: ``tests/broker/test_object_durability.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.units import BrokerId, TopicIdPartition
from app.hot.log import PartitionLog
from app.metadata.image.image import ClusterImage, ImageDelta, PartitionImage
from app.metadata.image.records import OBJECT_LEVEL
from app.metadata.image.wal_ranges import PartitionDurability
from app.metadata.peers.control import DropAsked, InSyncAnswer, SwitchAsked
from app.replication.partition import Partition, PartitionTable
from app.tiering.upload.remote_log_manager import RemoteLogManager

if TYPE_CHECKING:
    from app.broker.write_ahead.write_ahead import WriteAhead

LOOK_S: Final = 0.05
AGAIN_S: Final = 1.0
AT_ONCE: Final = 16
"""Partitions that are changed at the same time."""
TIER_S: Final = 60.0
"""How long one attempt waits until the present records are tiered. Producers go on meanwhile."""
PAUSE_S: Final = 10.0
"""How long producers wait at most in one attempt."""
OPEN_S: Final = 5.0
"""How long an attempt waits for a moment without open transactions, before it lets no transaction begin."""
SETTLE_S: Final = 5.0
"""The longest time in which no transaction may begin."""
SETTLE_AGAIN_S: Final = 60.0
"""Time from one such stop to the next, if the attempt failed."""
ANSWER_S: Final = 30.0
IN_SYNC_S: Final = 30.0
"""Time to wait for all replicas to be in sync. After it, ``min.insync.replicas`` of them are enough."""


def _is_unfinished(partition: PartitionImage) -> bool:
    """Whether a change of the partition's durability is unfinished."""
    match partition.durability:
        case PartitionDurability.OBJECT:
            return False
        case PartitionDurability.REPLICAS:
            return bool(partition.wal_ranges)
        case _:
            return True


class DurabilityChanges:
    """Belongs to the broker's loop. Keep ``run`` running, and call ``follow`` with each change of the image."""

    def __init__(
        self,
        table: PartitionTable,
        *,
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        wal: Callable[[], WriteAhead | None],
        broker_epoch: Callable[[], int],
        tier: RemoteLogManager,
        ask: Callable[[Sequence[SwitchAsked]], Awaitable[Sequence[InSyncAnswer]]],
        drop: Callable[[Sequence[DropAsked]], Awaitable[Sequence[InSyncAnswer]]],
        log_line: Callable[[str], None],
        faults: Faults,
    ) -> None:
        """``wal``: the broker's journal, if it has one yet. ``ask`` and ``drop`` ask the controller for the second entry,
        and for one without the ranges of before."""
        self._table = table
        self._broker_id = broker_id
        self._image = image
        self._wal = wal
        self._broker_epoch = broker_epoch
        self._tier = tier
        self._ask = ask
        self._drop = drop
        self._log_line = log_line
        self._faults = faults
        self._waiting: dict[TopicIdPartition, float] = {}
        """The partitions that are changed here, each with the loop time since which it is."""
        self._paused: dict[TopicIdPartition, PartitionLog] = {}
        """Logs that take no records, because the outcome of a request is not known yet."""
        self._settle_at: dict[TopicIdPartition, float] = {}
        """By partition that had open transactions: the loop time from which on new ones may be stopped."""
        self._settling = asyncio.Lock()
        self._wake = asyncio.Event()

    def follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Look for partitions that begin to change. Below level 3 there are none."""
        if image.level < OBJECT_LEVEL:
            return
        for topic_id in delta.topics:
            topic = image.topic_by_id(topic_id)
            for partition in () if topic is None else topic.partitions:
                if partition.leader == self._broker_id and _is_unfinished(partition):
                    key = TopicIdPartition(topic.topic_id, partition.partition_index)  # type: ignore[union-attr]
                    self._waiting.setdefault(key, asyncio.get_running_loop().time())
                    self._wake.set()

    async def run(self) -> None:
        """Make the changes of durability that are due, until cancelled."""
        while True:
            self._wake.clear()
            some = list(self._waiting)[:AT_ONCE]
            async with asyncio.TaskGroup() as group:
                for key in some:
                    group.create_task(self._try(key))
            for key in some:  # those that are left come after the others
                if key in self._waiting:
                    self._waiting[key] = self._waiting.pop(key)
            try:
                async with asyncio.timeout(AGAIN_S if self._waiting else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _try(self, key: TopicIdPartition) -> None:
        image, partition = self._found(key)
        if image is None:
            self._waiting.pop(key, None)
            self._settle_at.pop(key, None)
            paused = self._paused.pop(key, None)
            if paused is not None:
                paused.go_on()  # the change was taken back, by an image that is newer than the request
            return
        if partition is None:
            return  # named, and not opened yet
        name = f"{partition.topic}-{partition.index}"
        try:
            match image.durability:
                case PartitionDurability.TO_OBJECT:
                    await self._to_object(key, partition, image)
                case PartitionDurability.FROM_OBJECT:
                    await self._from_object(key, partition, image)
                case _:
                    await self._drop_leftovers(key, partition, image)
        except TimeoutError:
            return  # tried again
        except FirnError as error:
            self._faults.met_error("changing the durability of", name, error)

    def _found(self, key: TopicIdPartition) -> tuple[PartitionImage | None, Partition | None]:
        """The partition as it is to be changed here, and as this broker leads it; None where it is not so (any more)."""
        now = self._image()
        topic = now.topic_by_id(key.topic_id)
        image = now.partition(*key)
        if topic is None or image is None or image.leader != self._broker_id or not _is_unfinished(image):
            return None, None
        partition = self._table.led(topic.name, key.partition)
        if partition is None or partition.log.leader_epoch != image.leader_epoch:
            return image, None
        return image, partition

    # --- to object ------------------------------------------------------------------------------------------------------

    async def _to_object(self, key: TopicIdPartition, partition: Partition, image: PartitionImage) -> None:
        log = partition.log
        await self._tiered(partition, int(log.high_watermark), TIER_S)
        if log.producers.open_transactions and not self._may_settle(key):
            return
        changes = RequestRejected(
            ErrorCode.NOT_ENOUGH_REPLICAS, f"{log.topic_partition} changes its durability: try again."
        )
        self._paused[key] = log
        asked = False
        try:
            if log.producers.open_transactions:
                await self._settle(key, log, changes)
            log.pause(changes)
            await self._until(lambda: log.high_watermark == log.log_end_offset, PAUSE_S)
            await self._tiered(partition, int(log.log_end_offset), PAUSE_S)
            wal = self._wal()
            number = 0 if wal is None else wal.next_number(self._broker_epoch())
            asked = True
            asked = not await self._refused(partition, image, number, number - 1)
        finally:
            if not asked or self._is_newer(key, image):
                log.go_on()
                self._paused.pop(key, None)

    def _may_settle(self, key: TopicIdPartition) -> bool:
        now_s = asyncio.get_running_loop().time()
        return now_s >= self._settle_at.setdefault(key, now_s + OPEN_S) and not self._settling.locked()

    async def _settle(self, key: TopicIdPartition, log: PartitionLog, error: FirnError) -> None:
        """Let transactions end, and none begin. Raises: TimeoutError."""
        async with self._settling:
            self._settle_at[key] = asyncio.get_running_loop().time() + SETTLE_AGAIN_S
            log.pause_transactions(error)
            await self._until(lambda: not log.producers.open_transactions, SETTLE_S)

    async def _tiered(self, partition: Partition, end: int, within_s: float) -> None:
        """Wait until everything below ``end`` is in the tier. Raises: TimeoutError, StorageFull, StorageUnavailable."""
        log = partition.log

        def is_tiered() -> bool:
            return max(self._tier.tiered_end(log.topic_id, log.partition) or 0, log.log_start_offset) >= end

        if not is_tiered():
            log.roll()
            self._tier.kick((log.topic_id,))
            await self._until(lambda: is_tiered() or not partition.leads, within_s)

    # --- from object ----------------------------------------------------------------------------------------------------

    async def _from_object(self, key: TopicIdPartition, partition: Partition, image: PartitionImage) -> None:
        log, wal = partition.log, self._wal()
        waited_s = asyncio.get_running_loop().time() - self._waiting[key]
        if len(image.isr) < len(image.replicas) and not (partition.enough_in_sync and waited_s >= IN_SYNC_S):
            return
        if wal is None:
            return
        asked = False
        wal.stop_taking([key], self)
        try:
            async with asyncio.timeout(PAUSE_S):
                await wal.flushed([key])
            last = wal.last_number(key)
            await self._until(lambda: log.high_watermark == log.log_end_offset, PAUSE_S)
            await log.flush()
            if last is not None:
                asked = True
                asked = not await self._refused(partition, image, 0, last)
        finally:
            if not asked or self._is_newer(key, image):
                wal.take_again(key, self)

    async def _drop_leftovers(self, key: TopicIdPartition, partition: Partition, image: PartitionImage) -> None:
        """Remove earlier ranges from the partition's record when all of their records are tiered (J35)."""
        log = partition.log
        began_at = next((one.start_offset for one in log.leader_epochs() if one.epoch == image.leader_epoch), None)
        if began_at is not None and (self._tier.tiered_end(*key) or 0) >= began_at:
            ended = tuple(each for each in image.wal_ranges if not each.is_open)
            await self._drop([DropAsked(*key, image.leader_epoch, image.partition_epoch, ended)])

    # --- both -----------------------------------------------------------------------------------------------------------

    async def _refused(self, partition: Partition, image: PartitionImage, first: int, last: int) -> bool:
        """Ask for the second entry, and wait for it. Returns: whether there is none, and will be none."""
        key = partition.key
        asked = SwitchAsked(*key, image.leader_epoch, image.partition_epoch, first, last)
        unanswered = False
        async with asyncio.timeout(ANSWER_S):
            while not self._is_newer(key, image):
                try:
                    (answer,) = await self._ask([asked])
                except FirnError:
                    unanswered = True  # it may have been done: no records are taken before an image tells
                    await asyncio.sleep(AGAIN_S)
                    continue
                if answer.error is ErrorCode.NONE:
                    await self._until(lambda: self._is_newer(key, image), ANSWER_S)
                    self._log_line(
                        Event.DURABILITY_CHANGED.line(
                            f"{partition.topic}-{partition.index} has changed its durability",
                            topic=partition.topic,
                            partition=int(partition.index),
                        )
                    )
                    return False
                if not unanswered:
                    return True
                await asyncio.sleep(AGAIN_S)
        return False

    def _is_newer(self, key: TopicIdPartition, image: PartitionImage) -> bool:
        """Whether the present image is newer for this partition: the request is decided then."""
        now = self._image().partition(*key)
        return now is None or now.partition_epoch > image.partition_epoch

    @staticmethod
    async def _until(holds: Callable[[], bool], within_s: float) -> None:
        """Raises: TimeoutError."""
        async with asyncio.timeout(within_s):
            while True:
                if holds():
                    return
                await asyncio.sleep(LOOK_S)
