"""The tier of each led partition: copy, expire, keep the local disk small; resumable at every step.

INV-4 depends on the order of a copy's steps (``segment_copy.py``). Tiered offsets are never tiered again with other segment bounds;
the manifest refuses that. Expiry makes the new log start durable in the same entry as DELETE_STARTED, before anything is deleted.
Objects are deleted ``firn.remote.delete.delay.ms`` later, and their entries after them.

One task at a time works on a partition. Copies run for a few partitions at a time, in order of arrival. While the store is
unreachable, every partition retries with its own growing pause, local data stays, and ``status`` reports it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, assert_never
from uuid import UUID

from app.core.errors import (
    CorruptionError,
    DirectoryOffline,
    FencedError,
    FirnError,
    StorageUnavailable,
)
from app.core.faults import Faults
from app.core.loop_time import loop_time_s
from app.core.metrics import Labels, Registry
from app.core.seams import Clock
from app.core.turns import Portion, ordered
from app.core.units import BrokerId, Offset, PartitionIndex, TopicId, TopicIdPartition
from app.core.wake import Wake
from app.metadata.log import layout
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.manifest.manifest_state import ManifestState
from app.objectstore.api import ObjectStore
from app.tiering.store.store_work import StoreWork
from app.tiering.upload import replacement
from app.tiering.upload.deadlines import within
from app.tiering.upload.expiry import Expiry, active_base
from app.tiering.upload.led_partition import LedPartition
from app.tiering.upload.local_retention import drop_local
from app.tiering.upload.replacement import Replacement
from app.tiering.upload.retention import coverage_faults
from app.tiering.upload.segment_copy import COPIES_MAX, STALL_S, SegmentCopier
from app.tiering.upload.steps import (
    BACKOFF_DRAINING_S,
    LAST_COPYING,
    TierGuards,
    TierStep,
    is_due,
    next_step,
    retry_pause_s,
)
from app.tiering.upload.sweeper import Swept, sweep_partition
from app.tiering.upload.tier_status import PartitionTierStatus, SegmentStatus, partition_status, segment_statuses
from app.tiering.upload.tiered_log import TieredLog

TIERING: Final = "tiering"
"""Name of this work in log lines about faults."""
POLL_S: Final = 1.0
"""Interval at which a partition is checked for a rolled segment."""
POLL_SLICE: Final = 64
"""Partitions checked before the loop serves other work."""
BEGUN_SLICE: Final = 16
"""Rounds begun before the loop serves other work. A round in which nothing is due takes about 0.1 ms."""
ATTACH_WAIT_S: Final = 10.0
"""Maximum time that a change of a log's start waits for a partition that was just created."""
RECONCILE_S: Final = 60.0
SWEEP_S: Final = 6 * 3600.0
"""Time between two looks for orphans of a partition. Orphans only take space, and a look costs two LISTs."""
SWEEP_DEADLINE_S: Final = 120.0
"""Deadline of one look for orphans, because copies of the partition wait for it. Orphans deleted until then stay deleted."""


class RemoteLogManager:
    """See the module's docstring. Belongs to one event loop; ``run`` owns its tasks."""

    def __init__(
        self,
        store: ObjectStore,
        work: StoreWork,
        *,
        clock: Clock,
        rng: random.Random,
        registry: Registry,
        broker_id: BrokerId,
        interval_ms: int = 30_000,
        retention_interval_ms: int | None = None,
        log_line: Callable[[str], None] | None = None,
        faults: Faults | None = None,
        copies_max: int = COPIES_MAX,
        poll_s: float = POLL_S,
        stall_s: float = STALL_S,
        on_manifest_change: Callable[[SegmentManifest], None] | None = None,
    ) -> None:
        """``interval_ms``: interval of expiry. ``retention_interval_ms``: interval of the check of ``retention.ms``; the same
        by default. ``on_manifest_change`` gets every manifest that should be cached again."""
        self._store, self._work, self._clock, self._rng = store, work, clock, rng
        self._interval_s = interval_ms / 1000
        self._retention_interval_s = (interval_ms if retention_interval_ms is None else retention_interval_ms) / 1000
        self._fault_log = faults
        self._poll_s = poll_s
        self._on_manifest_change = on_manifest_change
        self._copier = SegmentCopier(
            store,
            work,
            clock=clock,
            rng=rng,
            registry=registry,
            broker_id=broker_id,
            on_copied=self._after_copy,
            copies_max=copies_max,
            stall_s=stall_s,
        )
        self._expiry = Expiry(
            store,
            clock=clock,
            registry=registry,
            retention_interval_s=self._retention_interval_s,
            log_line=log_line,
        )
        self._partitions: dict[TopicIdPartition, LedPartition] = {}
        self._leaving: dict[TopicIdPartition, LedPartition] = {}
        """Detached partitions with a step under way."""
        self._taken: dict[TopicIdPartition, SegmentManifest] = {}
        """Manifests of partitions that were led here until another broker sealed them."""
        self._left = Wake()
        """Wakes whenever a step of a detached partition ends."""
        self._held: Counter[UUID] = Counter()
        """Topics whose copies are held, with the number of callers that hold them."""
        self._rested = Wake()
        """Wakes whenever a round of a partition ends."""
        self._draining = False
        self.followed_manifest_of: Callable[[TopicIdPartition], SegmentManifest | None] | None = None
        """The view that this broker has of the manifest of a partition that it follows; None on a broker that follows nothing."""
        self._kick = asyncio.Event()
        self._attached = Wake()
        """Wakes whenever a partition is attached."""
        count = registry.counter
        self._failed = count("firn_tier_failures_total", "Rounds of tiering that failed and will be tried again")
        self._swept = count("firn_tier_swept_objects_total", "Orphan objects removed")
        self._faults = count(
            "firn_tier_coverage_faults_total", "Gaps and overlaps between the tiers that a check found"
        )
        text = "Bytes of tiered topics that are on the local disk but not in the store yet, including active segments"
        registry.describe("firn_tier_lag_bytes", "gauge", text)
        text = "Time since the first write to the oldest segment that is not in the store yet; 0 if there is none"
        registry.describe("firn_tier_lag_seconds", "gauge", text)
        registry.describe("firn_tier_remote_bytes", "gauge", "Bytes of readable segment objects")
        registry.source(self._read_status, ("firn_tier_lag_bytes", "firn_tier_lag_seconds", "firn_tier_remote_bytes"))

    # --- partitions -------------------------------------------------------------------------------------------------

    def attach(self, log: TieredLog, manifest: SegmentManifest) -> None:
        """Tier a partition from now on. ``manifest`` must be loaded, and ``rebuild.agree`` awaited."""
        key = TopicIdPartition(log.topic_id, log.partition)
        assert key not in self._partitions, key
        partition = self._partitions[key] = LedPartition(log, manifest, key, held=self._held[log.topic_id] > 0)
        now_s = loop_time_s()
        partition.due.sweep_at_s = now_s + SWEEP_S * self._rng.random()
        # Segments that rolled under an earlier leader, or before a restart, wait for a whole interval too.
        partition.due.retention_at_s = now_s + self._retention_interval_s
        partition.rolled_end = active_base(log)
        if manifest.version == 0:
            partition.cached_version = 0  # an empty manifest needs no copy
        self._kick.set()
        self._attached.wake()

    def detach(self, topic_id: TopicId, partition: PartitionIndex) -> None:
        """Stop tiering a partition. A step under way ends by itself, and no new step begins."""
        gone = self._partitions.pop(TopicIdPartition(topic_id, partition), None)
        if gone is not None:
            gone.detached = True
            if self._fault_log is not None:
                self._fault_log.over(TIERING, _name_of(gone))
            if gone.busy:
                self._leaving[gone.key] = gone

    async def wait_left(self, topic_id: UUID) -> None:
        """Wait until no step is under way for the detached partitions of a topic. Then no object of the topic is being written."""
        while any(key.topic_id == topic_id for key in self._leaving):
            await self._left.wait()

    def manifest_of(self, partition: TopicIdPartition) -> SegmentManifest | None:
        """The manifest of a partition that this broker leads."""
        found = self._partitions.get(partition)
        return found.manifest if found is not None else None

    def served_manifest_of(self, partition: TopicIdPartition) -> SegmentManifest | None:
        """The manifest by which tiered records of a partition are read here: the leader's own, or the view of a follower. The view
        may lack the newest entries. None if this broker knows no manifest of it."""
        found = self._partitions.get(partition)
        if found is not None:
            return found.manifest
        return None if self.followed_manifest_of is None else self.followed_manifest_of(partition)

    def last_manifest_of(self, partition: TopicIdPartition) -> SegmentManifest | None:
        """Like ``manifest_of``, and for a partition that another broker leads now the manifest that showed this, or the view."""
        return self.manifest_of(partition) or self._taken.get(partition) or self.served_manifest_of(partition)

    def tiered_end(self, topic_id: TopicId, partition: PartitionIndex) -> Offset | None:
        """One past the highest offset in the store; None if nothing was ever tiered, or this broker does not lead the partition."""
        found = self._partitions.get(TopicIdPartition(topic_id, partition))
        return (found.manifest.tiered_end or None) if found is not None else None

    async def advance_log_start(self, topic_id: TopicId, partition: PartitionIndex, offset: Offset) -> None:
        """DeleteRecords: when this returns, the new log start is durable and in force. Records below it are deleted later.

        A partition that has just been made takes records before its manifest has been looked for; that is waited for.

        Raises: StorageUnavailable (undecided; repeat it), FencedError.
        """
        key = TopicIdPartition(topic_id, partition)
        try:
            async with asyncio.timeout(ATTACH_WAIT_S):
                while (found := self._partitions.get(key)) is None:
                    await self._attached.wait()
        except TimeoutError:
            raise FencedError(f"{topic_id}/{partition} is not led here.") from None
        await found.manifest.set_log_start(offset)
        found.log.advance_log_start(offset)
        found.due.expire_at_s = 0.0
        self._kick.set()

    def kick(self, topic_ids: Collection[UUID] | None = None) -> None:
        """Check the partitions of some topics now, or all: a segment has rolled, a setting has changed, or a pause has ended."""
        for key, partition in self._partitions.items():
            if topic_ids is None or key.topic_id in topic_ids:
                partition.due.expire_at_s = partition.due.retry_at_s = 0.0
        self._kick.set()

    def drain(self, draining: bool) -> None:
        """Set whether copies have priority because the broker drains: short pauses, more copies at a time, no search for
        orphans."""
        self._draining = self._copier.draining = draining
        if draining:
            for partition in self._partitions.values():
                partition.due.retry_at_s = min(partition.due.retry_at_s, loop_time_s() + BACKOFF_DRAINING_S)
            self._kick.set()

    def limit_copies(self, bytes_per_s: float | None) -> None:
        """Copy so many raw bytes a second from now on (the quota firn.tier_byte_rate); None for no limit."""
        self._copier.limit_rate(bytes_per_s)
        self._kick.set()

    def look(self) -> None:
        """Look for rolled segments now, and not at the next poll."""
        self._kick.set()

    @property
    def copied_bytes(self) -> float:
        """Raw bytes that were uploaded since the start, including the known progress of uploads under way."""
        return self._copier.copied_bytes + sum(one.progress.uploaded_bytes for one in self._partitions.values())

    def trouble_of(self, partition: TopicIdPartition) -> str:
        """Why the last round of a partition failed; empty if it did not fail, or if this broker does not lead the partition."""
        found = self._partitions.get(partition)
        return "" if found is None else found.progress.last_error

    def hold_copies(self, topic_id: TopicId) -> None:
        """From now on begin no copy of the topic, until ``release_copies`` was called as often as this."""
        self._hold(topic_id, 1)

    def release_copies(self, topic_id: TopicId) -> None:
        """Take one ``hold_copies`` back."""
        self._hold(topic_id, -1)

    @property
    def held_topics(self) -> frozenset[UUID]:
        """Topics of which no copy begins now."""
        return frozenset(self._held)

    async def count_held(self, keys: Sequence[TopicIdPartition], until_s: float) -> int:
        """The segments of these partitions that are in the store or being copied, once none has a round under way. For the time
        after ``hold_copies`` of their topic.

        ``until_s``: loop time of the end of the wait. Raises: StorageUnavailable if they are not at rest, or not attached, by then.
        """
        led = await self._at_rest(keys, until_s)
        return sum(len(one.manifest.state.finished) + len(one.manifest.state.pending_copies()) for one in led)

    async def _at_rest(self, keys: Sequence[TopicIdPartition], until_s: float) -> list[LedPartition]:
        """Wait until each of these partitions is attached and has no round under way. Raises: StorageUnavailable."""
        try:
            async with asyncio.timeout_at(until_s):
                while True:
                    led = [found for key in keys if (found := self._partitions.get(key)) is not None]
                    if len(led) < len(keys):
                        await self._attached.wait()
                    elif any(one.busy for one in led):
                        await self._rested.wait()
                    else:
                        return led
        except TimeoutError:
            raise StorageUnavailable(
                "Segments of the topic are being copied, or looked for, in the store: try again."
            ) from None

    def _hold(self, topic_id: UUID, change: int) -> None:
        self._held[topic_id] += change
        if not self._held[topic_id]:
            del self._held[topic_id]
        for key, partition in self._partitions.items():
            if key.topic_id == topic_id:
                partition.held = topic_id in self._held
        self._kick.set()

    async def finish_replacement(self, manifest: SegmentManifest, wanted: Replacement) -> None:
        """``replacement.finish``, with the footer read by this broker's store work. Raises: as it."""
        await replacement.finish(manifest, wanted, self._work)

    # --- the rounds -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._look_at_all(group)
                await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._poll_s):
                await self._kick.wait()
        except TimeoutError:
            return
        finally:
            self._kick.clear()

    async def _look_at_all(self, group: asyncio.TaskGroup) -> None:
        now_s = loop_time_s()
        begun = 0
        # A list of keys: a list of partitions would keep the partitions of a deleted topic, and free all of them in one turn.
        for index, key in enumerate(list(self._partitions), 1):
            partition = self._partitions.get(key)
            if partition is not None and not partition.busy and is_due(partition, self._guards(partition), now_s):
                partition.busy = True
                group.create_task(self._tend(partition))
                begun += 1
            if index % POLL_SLICE == 0 or begun == BEGUN_SLICE:
                begun = 0
                await asyncio.sleep(0)

    def _guards(self, partition: LedPartition) -> TierGuards:
        return TierGuards(
            self._draining,
            lambda: self._copier.next_candidate(partition, partition.manifest.tiered_end) is not None,
        )

    async def _tend(self, partition: LedPartition) -> None:
        """One round of all steps for one partition. A FirnError ends the round, and the next round tries again."""
        try:
            await self._round(partition)
        except FencedError as error:
            self._note_failure(partition, error)
            partition.detached = True
            if self._partitions.get(partition.key) is partition:  # else this broker leads it anew already
                del self._partitions[partition.key]
                self._taken[partition.key] = partition.manifest
        except FirnError as error:
            self._note_failure(partition, error)
        else:
            if self._fault_log is not None:
                self._fault_log.over(TIERING, _name_of(partition))
            partition.failures = 0
            partition.progress.last_error = ""
            partition.set_phase("idle")
        finally:
            partition.busy = False
            partition.progress.copying = None
            self._rested.wake()
            if self._leaving.get(partition.key) is partition:
                del self._leaving[partition.key]
                self._left.wake()
        self._note_manifest(partition)

    async def _round(self, partition: LedPartition) -> None:
        """Carry out the steps that are due, in order. Raises: the error that ended the round, or the one of a failed copy."""
        failure: FirnError | None = None
        after: TierStep | None = None
        while True:
            now_s = loop_time_s()
            step = next_step(partition, self._guards(partition), now_s, after)
            if step is None:
                break
            after = step
            try:
                await self._carry_out(step, partition, now_s)
            except FencedError:
                raise
            except FirnError as error:
                if step > LAST_COPYING:
                    raise
                failure, after = error, LAST_COPYING
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # it holds this frame

    async def _carry_out(self, step: TierStep, partition: LedPartition, now_s: float) -> None:
        match step:
            case TierStep.SETTLE:
                await self._settle_leftovers(partition)
            case TierStep.SWAP:
                await self._copier.finish_recopy(partition)
            case TierStep.FINISH:
                await self._copier.finish_again(partition)
            case TierStep.COPY:
                await self._copier.copy_next(partition)
            case TierStep.GIVE_UP:
                await self._copier.give_up(partition)
            case TierStep.RECOPY:
                await self._copier.recopy(partition)
            case TierStep.EXPIRE:
                await self._expiry.expire(partition)
            case TierStep.DELETE:
                await self._expiry.delete_objects(partition)
                partition.due.expire_at_s = now_s + self._interval_s
            case TierStep.DROP_LOCAL:
                self._drop_local(partition)
            case TierStep.RECONCILE:
                self._reconcile(partition)
                partition.due.reconcile_at_s = now_s + RECONCILE_S
            case TierStep.SWEEP:
                await self._sweep(partition)
            case _:
                assert_never(step)

    def _note_failure(self, partition: LedPartition, error: FirnError) -> None:
        self._failed.value += 1
        partition.failures += 1
        partition.progress.failures += 1
        partition.progress.last_error = str(error)
        if self._fault_log is not None and not isinstance(error, DirectoryOffline):
            name = _name_of(partition)
            lasting = not partition.detached and not isinstance(error, FencedError)
            self._fault_log.met(TIERING, name, f"{name} cannot be tiered, will try again: {error}", lasting=lasting)
        corrupt = isinstance(error, CorruptionError)
        pause_s = retry_pause_s(partition.failures, corrupt=corrupt, draining=self._draining)
        partition.due.retry_at_s = loop_time_s() + pause_s * (0.8 + 0.4 * self._rng.random())
        partition.set_phase("waiting to retry")

    def _note_manifest(self, partition: LedPartition) -> None:
        version = partition.manifest.version
        if version != partition.cached_version and self._on_manifest_change is not None:
            self._on_manifest_change(partition.manifest)
        partition.cached_version = version

    def _after_copy(self, partition: LedPartition) -> None:
        self._note_manifest(partition)
        self._drop_local(partition)

    # --- unfinished copies of earlier leaderships ---------------------------------------------------------------------

    async def settle(self, manifest: SegmentManifest) -> None:
        """See ``SegmentCopier.settle``."""
        await self._copier.settle(manifest)

    async def _settle_leftovers(self, partition: LedPartition) -> None:
        """Settle copies that ``settle`` could not settle before the partition was attached."""
        partition.set_phase("settling leftovers")
        await self.settle(partition.manifest)
        partition.settled = True

    # --- the local disk -----------------------------------------------------------------------------------------------

    def _drop_local(self, partition: LedPartition) -> None:
        """Local retention: delete rolled segments with a durable COPY_FINISHED if they are too old or too large together.

        If the topic is no longer tiered, local segments will be the only copies. They are deleted only with the log start.
        """
        uncovered = drop_local(partition.log, partition.manifest, now_ms=self._clock.now_ms())
        if uncovered is not None:
            partition.progress.faults = [uncovered]
            self._faults.value += 1

    # --- orphans ------------------------------------------------------------------------------------------------------

    async def sweep(self, key: TopicIdPartition) -> Swept:
        """Remove a led partition's orphans now. Raises: StorageUnavailable, CorruptionError."""
        return await self._sweep(self._partitions[key])

    async def _sweep(self, partition: LedPartition) -> Swept:
        manifest = partition.manifest

        async def read_manifest() -> ManifestState:
            await manifest.refresh()
            return manifest.state

        swept = await within(SWEEP_DEADLINE_S, "sweeping", sweep_partition(self._store, partition.key, read_manifest))
        partition.due.sweep_at_s = loop_time_s() + SWEEP_S * (0.8 + 0.4 * self._rng.random())
        self._swept.value += swept.objects
        return swept

    # --- looking ------------------------------------------------------------------------------------------------------

    def _reconcile(self, partition: LedPartition) -> None:
        """Compare the local log with the manifest (INV-4), and report differences."""
        log, manifest = partition.log, partition.manifest
        partition.progress.faults = coverage_faults(
            log_start=max(log.log_start_offset, manifest.log_start_offset),
            local_start=log.local_log_start_offset,
            log_end=log.log_end_offset,
            tiered_end=manifest.tiered_end,
            remote=[(entry.base_offset, entry.end_offset) for entry in manifest.finished],
        )
        partition.progress.faults += [
            f"the manifest's record of segment {entry.segment_id} names {entry.stored_key!r}, which is not its object; it is"
            " neither read nor deleted"
            for entry in manifest.state.with_foreign_keys()
        ]
        self._faults.value += len(partition.progress.faults)

    def status(self) -> list[PartitionTierStatus]:
        """Every partition that is led here, by topic and number."""
        now_ms = self._clock.now_ms()
        found = [partition_status(partition, now_ms) for partition in self._partitions.values()]
        return sorted(found, key=lambda one: (one.topic, one.partition))

    async def status_in_portions(
        self, portion: Portion, wanted: Iterable[TopicIdPartition] | None = None
    ) -> list[PartitionTierStatus]:
        """As ``status``, in portions. Each partition is as it was when it was looked at.

        ``wanted``: partitions to look at; those that this broker does not lead are left out. None for all that it leads.
        """
        now_ms = self._clock.now_ms()
        found = []
        for one in tuple(self._partitions) if wanted is None else wanted:
            partition = self._partitions.get(one)
            if partition is not None:
                found.append(partition_status(partition, now_ms))
            if portion.spent_by():
                await portion.rest()
        return await ordered(found, portion, key=lambda one: (one.topic, one.partition))

    def copied_and_stored(self, partition: TopicIdPartition) -> tuple[int, int]:
        """Raw bytes that this leader has copied, and bytes of readable segment objects; zeros if it does not lead the partition."""
        found = self._partitions.get(partition)
        return (0, 0) if found is None else (found.progress.copied_bytes, found.manifest.state.size_bytes)

    def segments(self, topic_id: TopicId, partition: PartitionIndex) -> list[SegmentStatus]:
        """Every segment of a partition, by offset; empty if this broker does not lead it."""
        found = self._partitions.get(TopicIdPartition(topic_id, partition))
        return [] if found is None else segment_statuses(found, self._clock.now_ms())

    def _read_status(self) -> Iterator[tuple[str, Labels, float]]:
        now_ms = self._clock.now_ms()
        for partition in list(self._partitions.values()):
            one = partition_status(partition, now_ms)
            labels = (("topic", one.topic), ("partition", str(one.partition)))
            yield "firn_tier_lag_bytes", labels, one.lag_bytes
            yield "firn_tier_lag_seconds", labels, one.lag_ms / 1000
            yield "firn_tier_remote_bytes", labels, one.remote_stored_bytes


# --- pieces -----------------------------------------------------------------------------------------------------------


def manifest_cache_name(topic_id: TopicId, partition: PartitionIndex) -> str:
    """File name under which a broker keeps a copy of a manifest in its data directory."""
    return layout.manifest_prefix(topic_id, partition).replace("/", "_")


def _name_of(partition: LedPartition) -> str:
    return f"{partition.log.topic}-{partition.log.partition}"
