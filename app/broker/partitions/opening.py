"""The checks and repairs before this broker leads a log: the log is compared with its manifest, and must lack nothing.

Tests: ``tests/broker/test_offline.py``, ``tests/broker/test_leadership.py``, ``tests/broker/test_leading_again.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from app.broker.partitions.held import HeldPartitions
from app.broker.partitions.logs_in_image import key_of, leader_epoch
from app.configs import Durability
from app.core.errors import ConflictError, CorruptionError, StorageFull, StorageUnavailable, clause
from app.core.log_events import Event
from app.core.seams import Clock
from app.core.units import ProducerEpoch, TopicIdPartition
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.metadata.image.image import PartitionImage
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.membership.membership import Membership
from app.objectstore.api import ObjectStore
from app.records.control import ControlType
from app.tiering.repair import rebuild
from app.tiering.repair.rebuild import (
    LostMarker,
    RestorePlan,
    agree,
    disagreement,
    lost_beginning,
    lost_markers,
    take_beginning,
)
from app.tiering.repair.unnamed import check_nothing_is_unnamed
from app.tiering.store.store_work import StoreWork
from app.tiering.upload.remote_log_manager import RemoteLogManager

if TYPE_CHECKING:
    from app.broker.write_ahead.write_ahead import WriteAhead

REFILLS_AT_ONCE: Final = 8
"""Compacted topics' logs that are fetched from the object store at the same time. Each takes a chunk of memory, 4 MiB."""
AGREE_TRIES_MAX: Final = 300
AGREE_PAUSE_S: Final = 0.1


class Opened(NamedTuple):
    """The result of opening a partition."""

    plan: RestorePlan | None
    lost: list[LostMarker]


class Opening:
    """Compares logs with their manifests, and repairs them, before this broker leads them. Belongs to the broker's loop."""

    def __init__(
        self,
        held: HeldPartitions,
        *,
        membership: Membership,
        logs: LogManager,
        tier: RemoteLogManager,
        store: ObjectStore,
        work: StoreWork,
        clock: Clock,
        log_line: Callable[[str], None],
    ) -> None:
        self._cluster, self._controller = membership.view, membership.controller
        self._journal: Callable[[], WriteAhead] = held.journal
        self._logs = logs
        self._tier = tier
        self._store = store
        self._work = work
        self._clock = clock
        self._log_line = log_line
        self._refills = asyncio.Semaphore(REFILLS_AT_ONCE)

    async def open(
        self,
        log: PartitionLog,
        manifest: SegmentManifest,
        *,
        foreign: bool,
        since_s: float,
        believed: bool = False,
        is_wanted: Callable[[], bool],
    ) -> Opened | None:
        """Compare a log with its manifest before it is led. ``foreign``: the partition was last led with other local data.
        ``since_s``: footers of ended write-ahead logs that were read since then are new enough. ``believed``: the manifest is as
        the last stop has left it, so that it was checked before. ``is_wanted``: whether this broker is still to lead it in
        the same leader epoch.

        Returns: None if it is not wanted any more. Then nothing was written since: a seal would carry the epoch of the next leader,
        and would stop that one. Raises: StorageUnavailable, CorruptionError (the partition cannot be led; says why), FencedError.
        """
        image = self._cluster.image.partition(log.topic_id, log.partition)
        journaled = image is not None and image.is_journaled
        if not believed:
            await self.check_manifest_is_there(log, manifest, image if journaled else None, since_s)
        # Before the first write, so that lost entries can be put back at their numbers.
        if not believed and self._may_lack_records(log, manifest, foreign=foreign):
            await check_nothing_is_unnamed(self._store, manifest, f"{log.topic}-{log.partition}")
        if foreign or journaled:
            if not is_wanted():
                return None
            # The broker that wrote it with other local data may live and be about to finish a copy. The seal stops it.
            await manifest.seal(leader_epoch(self._cluster.image, log))
        if not is_wanted():
            return None
        await self._tier.settle(manifest)
        if not is_wanted():
            return None  # the log is a follower's again
        plan = await self._agree(log, manifest)
        if image is not None and journaled:
            from app.broker.write_ahead.restore import continue_log

            emptied = await continue_log(
                log,
                manifest,
                image,
                self._journal().sealed,
                self._work,
                since_s=since_s,
                now_ms=self._clock.now_ms,
                refilled=lambda: self._refilled(log, manifest),
            )
            plan = emptied or plan
        elif plan is not None and log.config.compacted and manifest.finished:
            plan = await self._refilled(
                log, manifest
            )  # it changes to object durability, and has lost its only disk (J40)
        lost = await lost_markers(log.producers.open_transactions, manifest, self._work)
        hole = lost_beginning(manifest)
        if hole is not None:
            self._log_line(
                Event.PARTITION_RECORDS_LOST.line(
                    f"{log.topic}-{log.partition} has lost offsets [{hole[0]}, {hole[1]}): no segment in the store covers them, and"
                    f" reads of them fail. To give them up, delete the records before offset {hole[1]} (firn topic delete-records)",
                    topic=log.topic,
                    partition=int(log.partition),
                )
            )
        if log.config.firn_durability is Durability.DISK and log.recovery_point < log.log_end_offset:
            # Recovered records may only be in the page cache yet, names of files included, and are about to be read.
            try:
                await log.flush()
            except StorageFull:
                self._log_line(
                    Event.DISK_FULL.line(
                        f"{log.topic}-{log.partition} is synced, but the disk has no space for its indexes",
                        topic=log.topic,
                        partition=int(log.partition),
                    )
                )
        return Opened(plan, lost)

    async def _refilled(self, log: PartitionLog, manifest: SegmentManifest) -> RestorePlan:
        """Raises: as ``refill``."""
        from app.tiering.repair.refilling import refill

        directory = self._logs.log_directory
        async with self._refills:
            plan = await refill(
                log, manifest, self._work, fs=directory.fs, pool=directory.pool, now_ms=self._clock.now_ms
            )
        await self._logs.checkpoint()  # so the next start knows that no loss of power has made its gaps
        return plan

    def _may_lack_records(self, log: PartitionLog, manifest: SegmentManifest, *, foreign: bool) -> bool:
        """Whether records above the tiered end may be missing here. Then the store must be checked before the partition is led.

        Never if the local log continues from the tiered end. A manifest without any record was already checked.
        """
        if manifest.state.is_blank:
            return False
        above = max(manifest.tiered_end, manifest.log_start_offset, log.log_start_offset)
        return foreign or log.local_log_start_offset > above or disagreement(log, manifest) is not None

    async def check_manifest_is_there(
        self,
        log: PartitionLog,
        manifest: SegmentManifest,
        journaled: PartitionImage | None = None,
        since_s: float = 0.0,
    ) -> None:
        """Refuse to lead a partition whose manifest was lost. ``journaled``: the image of a partition with a write-ahead log.

        Raises: CorruptionError, StorageUnavailable.
        """
        reaches_back = log.log_end_offset > 0 and log.local_log_start_offset == log.log_start_offset
        if reaches_back:
            return
        if journaled is not None and manifest.state.is_blank:
            from app.broker.write_ahead.restore import has_first_record

            if await has_first_record(journaled, key_of(log), self._journal().sealed, since_s):
                return
        try:
            await rebuild.check_manifest_is_there(manifest)
        except CorruptionError as error:
            raise CorruptionError(f"{log.topic}-{log.partition} cannot be led: {clause(error)}.") from error

    def check_in_sync_log(self, log: PartitionLog, manifest: SegmentManifest) -> None:
        """Hold the log of a leader that was in sync against its manifest, after it has begun to lead (T2, T10).

        Raises: CorruptionError if they disagree, which only the loss of acknowledged records explains; StorageUnavailable.
        """
        if (why := disagreement(log, manifest)) is not None:
            raise CorruptionError(
                f"{log.topic}-{log.partition} was in sync, but lacks records of the store: {clause(why)}."
            )
        take_beginning(log, manifest)

    async def _agree(self, log: PartitionLog, manifest: SegmentManifest) -> RestorePlan | None:
        """Call ``rebuild.agree`` after the sync of recovered records. Raises: as ``rebuild.agree``, StorageUnavailable."""
        for _ in range(AGREE_TRIES_MAX):
            try:
                return await agree(log, manifest, self._work)
            except ConflictError:
                # A log is not emptied while it is being synced. There are no appends yet, so the sync ends.
                await asyncio.sleep(AGREE_PAUSE_S)
        raise StorageUnavailable(f"{log.topic}-{log.partition} is still being synced.")

    def end_transactions(self, log: PartitionLog, lost: Iterable[LostMarker]) -> None:
        """Write the markers of decided transactions that the log has lost. Raises: StorageUnavailable."""
        try:
            for producer_id, aborted in lost:
                entry = log.producers.entries[producer_id]
                log.append_control(
                    ControlType.ABORT if aborted else ControlType.COMMIT,
                    producer_id=producer_id,
                    producer_epoch=ProducerEpoch(entry.epoch),
                    coordinator_epoch=entry.coordinator_epoch,
                    now_ms=self._clock.now_ms(),
                )
            if log.config.firn_durability is Durability.DISK:
                log.request_checkpoint()  # as soon as a task can sync it
        except StorageFull as error:
            # Readers at read_committed wait, as they would for room; the next start tries again.
            self._log_line(
                Event.TRANSACTION_MARKERS_LOST.line(
                    f"transactions of {log.topic}-{log.partition} lost their markers and stay open: {error}",
                    topic=log.topic,
                    partition=int(log.partition),
                )
            )

    async def bump(self, manifests: Mapping[PartitionLog, SegmentManifest], logs: Iterable[PartitionLog]) -> None:
        """Raise the leader epochs of ``logs`` above all known epochs. Raises: StorageUnavailable, FencedError."""
        above: dict[TopicIdPartition, int] = {}
        for log in logs:
            manifest = manifests.get(log)
            known = [epoch for epoch, _ in manifest.state.leader_epochs()] if manifest is not None else []
            known += [entry.epoch for entry in log.leader_epochs()]
            above[TopicIdPartition(log.topic_id, log.partition)] = max(known, default=-1)
        if above:
            await self._controller.bump_leader_epochs(above, above=above)

    def tell_of_restored(self, log: PartitionLog, plan: RestorePlan) -> None:
        at_end = plan.next_offset == plan.tiered_end
        where = f"its tiered end {plan.tiered_end}" if at_end else f"its log start {plan.next_offset}"
        self._log_line(
            Event.PARTITION_FROM_STORE.line(
                f"{log.topic}-{log.partition} continues at {where}: offsets from "
                f"{plan.log_start_offset} are in {plan.remote_segments} remote segments of {plan.remote_raw_bytes} bytes",
                topic=log.topic,
                partition=int(log.partition),
            )
        )
