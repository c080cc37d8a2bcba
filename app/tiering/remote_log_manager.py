"""The tier of each led partition: copy, expire, keep the local disk small; resumable at every step.

The order of a copy is what INV-4 rests on. Each step begins when the one before is durable::

    fdatasync of the segment → COPY_STARTED → upload → conditional completion → COPY_FINISHED → the local copy may go

Whatever dies in between, the next leader (or the same broker after a restart) finds the COPY_STARTED entry: if its object is
whole and the one that was meant, it is finished; else it is DELETE_STARTED, and the segment is copied again under another
segment id. Offsets that were tiered once are never tiered again under other bounds; the manifest refuses that.

Expiry makes the new log start durable, in the same entry as DELETE_STARTED, before anything is deleted; objects go
``firn.remote.delete.delay.ms`` later, and their entries after them.

One task at a time works on a partition; copies run for a few partitions at a time, in order of arrival. While the store is
away every partition retries with its own growing pause, local data stays, and ``status`` says so. An upload that makes no
progress for ``stall_s`` is abandoned and tried again under a new segment id.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from app.configs import TopicConfig
from app.errors import ConflictError, CorruptionError, FencedError, FirnError, StorageUnavailable
from app.metadata import layout
from app.metadata.manifest import SegmentEntry, SegmentManifest, SegmentState
from app.metadata.manifest_state import Change, ManifestState
from app.metrics import Registry
from app.objectstore.api import ObjectMissing, ObjectStore
from app.seams import Clock
from app.tiering.retention import Span, coverage_faults, expired_end, local_retention
from app.tiering.segment_format import SegmentFooter, decode_footer, encode_footer
from app.tiering.store_work import StoreWork, UploadedSegment, UploadJob
from app.tiering.sweeper import Swept, sweep_partition
from app.units import (
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    SegmentId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)

T = TypeVar("T")

COPIES_MAX: Final = 3
"""Uploads under way; each takes some 60 MiB in the store process."""
POLL_S: Final = 1.0
"""How often a partition is looked at for a segment that has rolled."""
POLL_SLICE: Final = 64
"""Partitions looked at before other work gets a turn."""
ATTACH_WAIT_S: Final = 10.0
"""Longest that a change of a log's start waits for a partition that has just been made."""
RECONCILE_S: Final = 60.0
SWEEP_S: Final = 6 * 3600.0
"""Between two looks for orphans of a partition: they only cost room, and a look costs two LISTs."""
STALL_S: Final = 150.0
"""An upload without any progress for so long is abandoned: longer than a part's own attempts take."""
PROGRESS_POLL_S: Final = 2.0
BACKOFF_BASE_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
CORRUPTION_BACKOFF_S: Final = 300.0
DELETES_PER_REQUEST: Final = 1000
DELETE_DEADLINE_S: Final = 30.0
SWEEP_DEADLINE_S: Final = 120.0
"""For a whole look for orphans: copies of the partition wait for it. What it removed until then is gone."""


class Hold(Protocol):
    def release(self) -> None: ...


class EpochLike(Protocol):
    @property
    def epoch(self) -> LeaderEpoch: ...
    @property
    def start_offset(self) -> Offset: ...


class AbortedLike(Protocol):
    @property
    def producer_id(self) -> ProducerId: ...
    @property
    def first_offset(self) -> Offset: ...
    @property
    def last_offset(self) -> Offset: ...
    @property
    def last_stable_offset(self) -> Offset: ...


class LocalSegment(Protocol):
    """What ``app.hot`` says of a segment."""

    @property
    def base_offset(self) -> Offset: ...
    @property
    def end_offset(self) -> Offset: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def max_timestamp(self) -> TimestampMs: ...
    @property
    def path(self) -> str: ...
    @property
    def active(self) -> bool: ...
    @property
    def first_append_ms(self) -> TimestampMs: ...


class PlacedRead(Protocol):
    @property
    def position(self) -> int: ...
    @property
    def start_offset(self) -> Offset: ...


class TieredLog(Protocol):
    """What the tier needs of a partition's local log: ``app.hot.log.PartitionLog`` has it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> PartitionIndex: ...
    @property
    def topic_id(self) -> TopicId: ...
    @property
    def config(self) -> TopicConfig: ...
    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def local_log_start_offset(self) -> Offset: ...
    @property
    def log_end_offset(self) -> Offset: ...
    @property
    def last_stable_offset(self) -> Offset: ...
    @property
    def synced_end_offset(self) -> Offset: ...
    @property
    def size_bytes(self) -> int: ...

    def segments(self) -> Sequence[LocalSegment]: ...
    def leader_epochs(self) -> Sequence[EpochLike]: ...
    def producer_snapshot(self, at_offset: int) -> bytes: ...
    def aborted_transactions(self, start_offset: int, end_offset: int) -> Sequence[AbortedLike]: ...
    def hold(self, segment: int) -> Hold: ...
    def roll(self) -> bool: ...
    def delete_local_before(self, offset: int) -> object: ...
    def advance_log_start(self, offset: int) -> None: ...
    async def flush(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Partition:
    """State of one led partition's tier."""

    log: TieredLog
    manifest: SegmentManifest
    key: TopicIdPartition
    busy: bool = False
    detached: bool = False
    leftovers_checked: bool = False
    announced: SegmentEntry | None = None
    """COPY_STARTED together with the finish of the segment before; its upload is next."""
    finishing: SegmentEntry | None = None
    """Uploaded; its COPY_FINISHED is to be written (again)."""
    abandoned: list[uuid.UUID] = field(default_factory=list)
    """COPY_STARTED entries of ours that will not be finished."""
    phase: str = "idle"
    phase_since_s: float = 0.0
    copying: tuple[Offset, Offset] | None = None
    copied_segments: int = 0
    copied_bytes: int = 0
    expired_segments: int = 0
    deleted_objects: int = 0
    failures: int = 0
    """In a row."""
    failures_total: int = 0
    last_error: str = ""
    retry_at_s: float = 0.0
    expire_at_s: float = 0.0
    reconcile_at_s: float = 0.0
    sweep_at_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    cached_version: int = -1


@dataclass(frozen=True, slots=True)
class PartitionTierStatus:
    """One partition's line of ``firn tier status``."""

    topic: str
    topic_id: TopicId
    partition: PartitionIndex
    enabled: bool
    log_start_offset: Offset
    local_start_offset: Offset
    log_end_offset: Offset
    tiered_end: Offset
    lag_bytes: int
    """Of rolled local segments that are not in the store."""
    lag_ms: int
    """Age of the oldest record batch file among them; 0 if there is none."""
    remote_segments: int
    remote_raw_bytes: int
    remote_stored_bytes: int
    local_bytes: int
    phase: str
    phase_s: float
    copying: tuple[Offset, Offset] | None
    copied_segments: int
    copied_bytes: int
    expired_segments: int
    deleted_objects: int
    pending_deletes: int
    failures: int
    last_error: str
    faults: tuple[str, ...]
    """Breaches of INV-4; always empty but for a bug or a damaged bucket."""


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """One line of ``firn tier segments``."""

    tier: str
    """``local``, ``remote`` or ``both``."""
    state: str
    base_offset: Offset
    end_offset: Offset
    raw_bytes: int
    stored_bytes: int
    record_count: int
    """-1 where only the local log knows the segment."""
    min_timestamp: TimestampMs
    max_timestamp: TimestampMs
    changed_ms: TimestampMs
    object_key: str


class RemoteLogManager:
    """See the module's page. Belongs to one event loop; ``run`` owns its tasks."""

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
        copies_max: int = COPIES_MAX,
        poll_s: float = POLL_S,
        stall_s: float = STALL_S,
        on_manifest_change: Callable[[SegmentManifest], None] | None = None,
    ) -> None:
        """``interval_ms`` is how often expiry looks; ``on_manifest_change`` is told of every manifest worth caching anew."""
        self._store, self._work, self._clock, self._rng = store, work, clock, rng
        self._broker_id = broker_id
        self._interval_s = interval_ms / 1000
        self._poll_s, self._stall_s = poll_s, stall_s
        self._on_manifest_change = on_manifest_change
        self._copies = asyncio.Semaphore(copies_max)
        self._partitions: dict[TopicIdPartition, _Partition] = {}
        self._group: asyncio.TaskGroup | None = None
        self._kick = asyncio.Event()
        self._attached = asyncio.Event()
        """Set, and replaced, whenever a partition is attached."""
        count = registry.counter
        self._copied = count("firn_tier_copied_segments_total", "Segments copied to the object store")
        self._copied_bytes = count("firn_tier_copied_bytes_total", "Raw bytes of the segments copied")
        self._failed = count("firn_tier_failures_total", "Rounds of tiering that failed and will be tried again")
        self._stalled = count("firn_tier_stalled_uploads_total", "Uploads abandoned because they stood still")
        self._corrupt = count("firn_tier_corrupt_segments_total", "Local segments found corrupt while they were copied")
        self._expired = count("firn_tier_expired_segments_total", "Remote segments expired")
        self._deleted = count("firn_tier_deleted_objects_total", "Segment objects deleted")
        self._swept = count("firn_tier_swept_objects_total", "Orphan objects removed")
        self._faults = count("firn_tier_coverage_faults_total", "Breaches of no gap, no overlap that a check found")
        registry.gauge("firn_tier_lag_bytes", "Bytes of rolled segments not yet in the store", self._read_lag)
        registry.gauge("firn_tier_remote_bytes", "Bytes of readable segment objects", self._read_remote_bytes)

    # --- partitions -------------------------------------------------------------------------------------------------

    def attach(self, log: TieredLog, manifest: SegmentManifest) -> None:
        """Lead the tier of a partition from now on. ``manifest`` is loaded, and ``rebuild.agree`` was awaited."""
        key = TopicIdPartition(log.topic_id, log.partition)
        assert key not in self._partitions, key
        partition = self._partitions[key] = _Partition(log, manifest, key)
        partition.sweep_at_s = _now_s() + SWEEP_S * self._rng.random()
        self._kick.set()
        attached, self._attached = self._attached, asyncio.Event()
        attached.set()

    def detach(self, topic_id: TopicId, partition: PartitionIndex) -> None:
        """Stop leading it. A step under way ends by itself; nothing new is begun."""
        gone = self._partitions.pop(TopicIdPartition(topic_id, partition), None)
        if gone is not None:
            gone.detached = True

    def manifest_of(self, partition: TopicIdPartition) -> SegmentManifest | None:
        """The manifest of a partition that is led here."""
        found = self._partitions.get(partition)
        return found.manifest if found is not None else None

    def tiered_end(self, topic_id: TopicId, partition: PartitionIndex) -> Offset | None:
        """One past the highest offset in the store; None if nothing was ever tiered, or the partition is not led here."""
        found = self._partitions.get(TopicIdPartition(topic_id, partition))
        return (found.manifest.tiered_end or None) if found is not None else None

    async def advance_log_start(self, topic_id: TopicId, partition: PartitionIndex, offset: Offset) -> None:
        """DeleteRecords: when this returns the new log start is durable and in force; what is below goes in time.

        A partition that has just been made takes records before its manifest has been looked for; that is waited for.

        Raises: StorageUnavailable (undecided; repeat it), FencedError.
        """
        key = TopicIdPartition(topic_id, partition)
        try:
            async with asyncio.timeout(ATTACH_WAIT_S):
                while (found := self._partitions.get(key)) is None:
                    await self._attached.wait()
        except TimeoutError:
            raise FencedError(f"{topic_id}/{partition} is not led here") from None
        await found.manifest.set_log_start(offset)
        found.log.advance_log_start(offset)
        found.expire_at_s = 0.0
        self._kick.set()

    def kick(self) -> None:
        """Look at all partitions now: a segment has rolled, a setting has changed, a pause is over."""
        for partition in self._partitions.values():
            partition.expire_at_s = partition.retry_at_s = 0.0
        self._kick.set()

    # --- the rounds -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                while True:
                    await self._look_at_all(group)
                    await self._wait()
            finally:
                self._group = None

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._poll_s):
                await self._kick.wait()
        except TimeoutError:
            return
        finally:
            self._kick.clear()

    async def _look_at_all(self, group: asyncio.TaskGroup) -> None:
        now_s = _now_s()
        for index, partition in enumerate(list(self._partitions.values())):
            if not partition.busy and not partition.detached and self._has_work(partition, now_s):
                partition.busy = True
                group.create_task(self._tend(partition))
            if index % POLL_SLICE == POLL_SLICE - 1:
                await asyncio.sleep(0)

    def _has_work(self, partition: _Partition, now_s: float) -> bool:
        if now_s < partition.retry_at_s:
            return False
        return (
            not partition.leftovers_checked
            or now_s >= partition.expire_at_s
            or now_s >= partition.reconcile_at_s
            or now_s >= partition.sweep_at_s
            or partition.finishing is not None
            or partition.announced is not None
            or self._next_candidate(partition, partition.manifest.tiered_end) is not None
        )

    async def _tend(self, partition: _Partition) -> None:
        """One round of everything for one partition. Errors of the tree end the round; the next one tries again."""
        try:
            await self._round(partition)
        except FencedError as error:
            self._note_failure(partition, error)
            partition.detached = True
            self._partitions.pop(partition.key, None)
        except FirnError as error:
            self._note_failure(partition, error)
        else:
            partition.failures = 0
            partition.last_error = ""
            self._set_phase(partition, "idle")
        finally:
            partition.busy = False
            partition.copying = None
        self._note_manifest(partition)

    async def _round(self, partition: _Partition) -> None:
        failure: FirnError | None = None
        try:
            if not partition.leftovers_checked:
                await self._settle_leftovers(partition)
            await self._copy_all(partition)
        except FencedError:
            raise
        except FirnError as error:
            failure = error  # what cannot be copied must not keep what is old from going
        now_s = _now_s()
        if now_s >= partition.expire_at_s:
            await self._expire(partition)
            await self._delete_objects(partition)
            partition.expire_at_s = now_s + self._interval_s
        self._drop_local(partition)
        if now_s >= partition.reconcile_at_s:
            self._reconcile(partition)
            partition.reconcile_at_s = now_s + RECONCILE_S
        if now_s >= partition.sweep_at_s and not partition.detached:
            await self._sweep(partition)
        if failure is not None:
            raise failure

    def _note_failure(self, partition: _Partition, error: FirnError) -> None:
        self._failed.value += 1
        partition.failures += 1
        partition.failures_total += 1
        partition.last_error = str(error)
        longest_s = CORRUPTION_BACKOFF_S if isinstance(error, CorruptionError) else BACKOFF_MAX_S
        pause_s = min(longest_s, BACKOFF_BASE_S * 2 ** min(partition.failures, 16))
        if isinstance(error, CorruptionError):
            pause_s = longest_s
        partition.retry_at_s = _now_s() + pause_s * (0.8 + 0.4 * self._rng.random())
        self._set_phase(partition, "waiting to retry")

    def _set_phase(self, partition: _Partition, phase: str) -> None:
        partition.phase = phase
        partition.phase_since_s = _now_s()

    def _note_manifest(self, partition: _Partition) -> None:
        version = partition.manifest.version
        if version != partition.cached_version and self._on_manifest_change is not None:
            self._on_manifest_change(partition.manifest)
        partition.cached_version = version

    # --- what others, or our earlier self, left -----------------------------------------------------------------------

    async def settle(self, manifest: SegmentManifest) -> None:
        """Finish or give up every COPY_STARTED entry that somebody left.

        Await it before ``rebuild.agree``: a copy that is finished later would raise the tiered end over records that were
        appended meanwhile. Costs nothing if there are none. Raises: StorageUnavailable, FencedError.
        """
        for entry in sorted(manifest.state.pending_copies(), key=lambda entry: entry.base_offset):
            footer = await self._footer_if_whole(manifest, entry)
            if footer is not None and entry.base_offset >= manifest.tiered_end:
                try:
                    await manifest.copy_finished(_finished_from_footer(entry, footer))
                    continue
                except ConflictError:
                    pass  # it does not fit what is readable by now: the object is of no use
            await manifest.delete_started([entry.segment_id])

    async def _settle_leftovers(self, partition: _Partition) -> None:
        """What ``settle`` could not do before the partition was attached."""
        self._set_phase(partition, "settling leftovers")
        await self.settle(partition.manifest)
        partition.leftovers_checked = True

    async def _footer_if_whole(self, manifest: SegmentManifest, entry: SegmentEntry) -> SegmentFooter | None:
        """The footer of the object of ``entry`` if it is whole and the one that was meant. Raises: StorageUnavailable."""
        key = manifest.object_key(entry)
        try:
            found = await self._work.read_footer(key, None)
            footer = decode_footer(found.tail, found.object_bytes, key)
        except (ObjectMissing, CorruptionError):
            return None
        told = (footer.topic_id, footer.partition, footer.segment_id, footer.base_offset, footer.end_offset)
        meant = (manifest.topic_id, manifest.partition, entry.segment_id, entry.base_offset, entry.end_offset)
        return footer if told == meant else None

    # --- copy -------------------------------------------------------------------------------------------------------

    def _next_candidate(self, partition: _Partition, tiered_end: Offset) -> LocalSegment | None:
        """The oldest rolled segment that is not in the store, if all of it is stable."""
        log = partition.log
        if not log.config.tiered or log.config.remote_log_copy_disable:
            return None
        stable_end = log.last_stable_offset
        for segment in log.segments():
            if segment.active or segment.end_offset > stable_end:
                return None
            if segment.end_offset > tiered_end and segment.end_offset > segment.base_offset:
                return segment
        return None

    async def _copy_all(self, partition: _Partition) -> None:
        if partition.finishing is not None:
            await self._finish(partition, partition.finishing, None)
        while not partition.detached:
            segment = self._next_candidate(partition, partition.manifest.tiered_end)
            if segment is None:
                break
            self._set_phase(partition, "waiting for a turn")
            async with self._copies:
                await self._copy(partition, segment)
            self._drop_local(partition)
        if partition.announced is not None:
            partition.abandoned.append(partition.announced.segment_id)
            partition.announced = None
        if partition.abandoned:
            await partition.manifest.delete_started(partition.abandoned)
            partition.abandoned = []

    async def _copy(self, partition: _Partition, segment: LocalSegment) -> None:
        log, manifest = partition.log, partition.manifest
        base = max(segment.base_offset, manifest.tiered_end)
        if base > manifest.tiered_end:
            # Nothing below is to be tiered any more: say so first, or the manifest would see a gap.
            if log.log_start_offset < base and manifest.tiered_end > 0:
                raise CorruptionError(
                    f"{log.topic}-{log.partition}: [{manifest.tiered_end}, {base}) is neither local nor in the store"
                )
            await manifest.set_log_start(min(log.log_start_offset, base))
        partition.copying = base, segment.end_offset
        hold = log.hold(segment.base_offset)
        try:
            start_position = _position_of(log, base) if base > segment.base_offset else 0
            if log.synced_end_offset < segment.end_offset:
                self._set_phase(partition, "syncing")
                await log.flush()
            entry = await self._announce(partition, self._entry_for(partition, base, segment))
            self._set_phase(partition, "uploading")
            try:
                made = await self._upload(partition, entry, segment, start_position)
            except FirnError as error:
                made = await self._after_failed_upload(partition, entry, error)
            self._copied.value += 1
            self._copied_bytes.value += made.raw_bytes
            partition.copied_segments += 1
            partition.copied_bytes += made.raw_bytes
            following = self._next_candidate(partition, segment.end_offset)
            if following is not None and following.base_offset != segment.end_offset:
                following = None
            await self._finish(partition, _finished_from_upload(entry, made), following)
        finally:
            hold.release()

    def _entry_for(self, partition: _Partition, base: Offset, segment: LocalSegment) -> SegmentEntry:
        log = partition.log
        aborted = log.aborted_transactions(base, segment.end_offset)
        return SegmentEntry.started(
            SegmentId(uuid.UUID(int=self._rng.getrandbits(128), version=4)),
            base,
            segment.end_offset,
            broker_id=self._broker_id,
        ).replace(
            leader_epochs=_epochs_within(log.leader_epochs(), base, segment.end_offset),
            max_timestamp=segment.max_timestamp,
            raw_bytes=segment.size_bytes,
            aborted_transaction_count=len(aborted),
        )

    async def _announce(self, partition: _Partition, entry: SegmentEntry) -> SegmentEntry:
        """Make COPY_STARTED durable, unless that was done with the finish of the segment before."""
        announced, partition.announced = partition.announced, None
        if announced is not None:
            if (announced.base_offset, announced.end_offset) == (entry.base_offset, entry.end_offset):
                return announced
            partition.abandoned.append(announced.segment_id)
        self._set_phase(partition, "announcing")
        given_up = list(partition.abandoned)

        def plan(state: ManifestState) -> list[Change]:
            changes: list[Change] = []
            for segment_id in given_up:
                old = state.get(segment_id)
                if old is not None and old.state is SegmentState.COPY_STARTED:
                    changes.append(old.replace(state=SegmentState.DELETE_STARTED, changed_ms=self._clock.now_ms()))
            changes.append(entry.replace(changed_ms=self._clock.now_ms()))
            return changes

        try:
            await partition.manifest.change(plan)
        except StorageUnavailable:
            partition.abandoned.append(entry.segment_id)  # it may have been written
            raise
        partition.abandoned = [one for one in partition.abandoned if one not in given_up]
        return entry

    async def _upload(
        self, partition: _Partition, entry: SegmentEntry, segment: LocalSegment, start_position: int
    ) -> UploadedSegment:
        """Upload under the eyes of a watchdog. Raises: as ``StoreWork.upload_segment``."""
        log = partition.log
        job = UploadJob(
            key=partition.manifest.object_key(entry),
            segment_id=entry.segment_id.bytes,
            topic_id=log.topic_id.bytes,
            partition=log.partition,
            path=segment.path,
            start_position=start_position,
            log_bytes=segment.size_bytes,
            base_offset=entry.base_offset,
            end_offset=entry.end_offset,
            leader_epochs=[
                (one.epoch, one.start_offset) for one in log.leader_epochs() if one.start_offset < entry.end_offset
            ],
            aborted=[
                (one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset)
                for one in log.aborted_transactions(entry.base_offset, entry.end_offset)
            ],
            producer_snapshot=log.producer_snapshot(entry.end_offset),
            compression=log.config.firn_tier_compression,
            chunk_bytes=log.config.firn_tier_chunk_bytes,
            created_ms=self._clock.now_ms(),
        )
        upload = asyncio.ensure_future(self._work.upload_segment(job))
        try:
            progress = -1
            moved_s = _now_s()
            while True:
                done, _ = await asyncio.wait((upload,), timeout=min(PROGRESS_POLL_S, self._stall_s / 4))
                if done:
                    return upload.result()
                seen = await self._progress_of(entry.segment_id, progress)
                if seen != progress:
                    progress, moved_s = seen, _now_s()
                elif _now_s() - moved_s > self._stall_s:
                    self._stalled.value += 1
                    raise StorageUnavailable(f"{job.key}: the upload stood still for {self._stall_s:g} s")
        finally:
            await _end(upload)

    async def _progress_of(self, segment_id: uuid.UUID, before: int) -> int:
        try:
            return (await self._work.upload_progress()).get(segment_id.bytes, before)
        except StorageUnavailable:
            return before

    async def _after_failed_upload(
        self, partition: _Partition, entry: SegmentEntry, error: FirnError
    ) -> UploadedSegment:
        """The object may be there all the same. If it is, its upload succeeded; else the entry is given up.

        Raises: ``error``.
        """
        if isinstance(error, CorruptionError):
            self._corrupt.value += 1
        else:
            try:
                footer = await self._footer_if_whole(partition.manifest, entry)
            except StorageUnavailable:
                footer = None
            if footer is not None:
                return _uploaded_from_footer(footer, _object_bytes_of(footer))
        partition.abandoned.append(entry.segment_id)
        raise error

    async def _finish(self, partition: _Partition, entry: SegmentEntry, following: LocalSegment | None) -> None:
        """Make COPY_FINISHED durable, together with the next segment's COPY_STARTED."""
        self._set_phase(partition, "finishing")
        partition.finishing = entry
        next_entry = None if following is None else self._entry_for(partition, following.base_offset, following)
        try:
            await partition.manifest.copy_finished(entry, start_next=next_entry)
        except FencedError:
            await self._remove_unknown_object(partition, entry)
            raise
        except ConflictError:
            partition.finishing = None
            partition.abandoned.append(entry.segment_id)
            raise
        except StorageUnavailable:
            if next_entry is not None:
                partition.abandoned.append(next_entry.segment_id)  # it may have been announced
            raise
        partition.finishing = None
        partition.announced = next_entry
        self._note_manifest(partition)

    async def _remove_unknown_object(self, partition: _Partition, entry: SegmentEntry) -> None:
        """We are not the leader any more. If the new leader's manifest has forgotten our copy, nobody else deletes it; if it
        still knows it, the new leader may have made it readable and will decide."""
        try:
            await partition.manifest.refresh()
            if partition.manifest.state.get(entry.segment_id) is None:
                key = partition.manifest.object_key(entry)
                await _within(DELETE_DEADLINE_S, "deleting an object", self._store.delete(key))
        except FirnError as error:
            partition.last_error = f"left to the sweeper: {error}"

    # --- the local disk -----------------------------------------------------------------------------------------------

    def _drop_local(self, partition: _Partition) -> None:
        """Local retention: rolled segments whose COPY_FINISHED is durable go once they are too old or too much."""
        log, manifest = partition.log, partition.manifest
        retention_ms, retention_bytes = local_retention(log.config)
        spans = []
        for segment in log.segments():
            if segment.active or segment.end_offset > manifest.tiered_end:
                break
            base = max(segment.base_offset, log.log_start_offset)
            if base < segment.end_offset and not _is_covered(manifest, base, segment.end_offset):
                partition.faults = [f"[{base}, {segment.end_offset}) is below the tiered end, but not in the store"]
                self._faults.value += 1
                break
            spans.append(_span_of(segment))
        end = expired_end(
            spans,
            log.size_bytes,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            now_ms=self._clock.now_ms(),
        )
        if end is not None:
            log.delete_local_before(end)

    # --- expiry -------------------------------------------------------------------------------------------------------

    async def _expire(self, partition: _Partition) -> None:
        """Retention over the whole log: raise the log start durably, then let go of what is below it."""
        log, manifest = partition.log, partition.manifest
        config = log.config
        self._set_phase(partition, "expiring")
        new_start = max(log.log_start_offset, manifest.log_start_offset)
        if "delete" in config.cleanup_policy:
            new_start = max(new_start, self._retention_start(partition))
        if config.remote_log_delete_on_disable and not config.remote_storage_enable:
            new_start = max(new_start, log.local_log_start_offset)
        gone = [entry.segment_id for entry in manifest.finished if entry.end_offset <= new_start]
        gone += [entry.segment_id for entry in manifest.state.pending_copies() if entry.end_offset <= new_start]
        if gone or new_start > manifest.log_start_offset:
            await manifest.delete_started(gone, log_start_offset=new_start)
            partition.expired_segments += len(gone)
            self._expired.value += len(gone)
        if new_start > log.log_start_offset:
            log.advance_log_start(new_start)

    def _retention_start(self, partition: _Partition) -> Offset:
        """Where the log should start by ``retention.*``; 0 if they say nothing. Rolls an active segment that is too old."""
        log, manifest = partition.log, partition.manifest
        config = log.config
        start = max(log.log_start_offset, manifest.log_start_offset)
        spans = [
            Span(entry.base_offset, entry.end_offset, entry.raw_bytes, entry.max_timestamp)
            for entry in manifest.finished
            if entry.end_offset > start
        ]
        remote_end = spans[-1].end_offset if spans else start
        active_bytes = 0
        now_ms = self._clock.now_ms()
        for segment in log.segments():
            if segment.active:
                active_bytes = segment.size_bytes
                active = _span_of(segment)
                if (
                    active_bytes
                    and 0 <= config.retention_ms < now_ms - active.newest_ms
                    and active.newest_ms >= 0
                    and segment.end_offset <= log.last_stable_offset
                ):
                    log.roll()
                    spans.append(active)
                    active_bytes = 0
                break
            if segment.end_offset > max(remote_end, start) and segment.end_offset <= log.last_stable_offset:
                spans.append(_span_of(segment))
        end = expired_end(
            spans,
            sum(span.raw_bytes for span in spans) + active_bytes,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            now_ms=now_ms,
        )
        return end if end is not None else Offset(0)

    async def _delete_objects(self, partition: _Partition) -> None:
        """Delete the objects of DELETE_STARTED entries whose delay is over, then forget the entries."""
        manifest = partition.manifest
        delay_ms = partition.log.config.firn_remote_delete_delay_ms
        now_ms = self._clock.now_ms()
        due = [entry for entry in manifest.state.pending_deletes() if entry.changed_ms + delay_ms <= now_ms]
        if due:
            self._set_phase(partition, "deleting")
        for start in range(0, len(due), DELETES_PER_REQUEST):
            page = due[start : start + DELETES_PER_REQUEST]
            await _within(
                DELETE_DEADLINE_S,
                "deleting objects",
                self._store.delete_many([manifest.object_key(entry) for entry in page]),
            )
            await manifest.delete_finished([entry.segment_id for entry in page])
            partition.deleted_objects += len(page)
            self._deleted.value += len(page)

    async def sweep(self, key: TopicIdPartition) -> Swept:
        """Remove a led partition's orphans now. Raises: StorageUnavailable, CorruptionError."""
        return await self._sweep(self._partitions[key])

    async def _sweep(self, partition: _Partition) -> Swept:
        manifest = partition.manifest

        async def read_manifest() -> ManifestState:
            await manifest.refresh()
            return manifest.state

        swept = await _within(SWEEP_DEADLINE_S, "sweeping", sweep_partition(self._store, partition.key, read_manifest))
        partition.sweep_at_s = _now_s() + SWEEP_S * (0.8 + 0.4 * self._rng.random())
        self._swept.value += swept.objects
        return swept

    # --- looking ------------------------------------------------------------------------------------------------------

    def _reconcile(self, partition: _Partition) -> None:
        """Hold the local log against the manifest (INV-4) and tell what does not fit."""
        log, manifest = partition.log, partition.manifest
        partition.faults = coverage_faults(
            log_start=max(log.log_start_offset, manifest.log_start_offset),
            local_start=log.local_log_start_offset,
            log_end=log.log_end_offset,
            tiered_end=manifest.tiered_end,
            remote=[(entry.base_offset, entry.end_offset) for entry in manifest.finished],
        )
        self._faults.value += len(partition.faults)

    def status(self) -> list[PartitionTierStatus]:
        """Every partition that is led here, by topic and number."""
        found = [self._status_of(partition) for partition in self._partitions.values()]
        return sorted(found, key=lambda one: (one.topic, one.partition))

    def _status_of(self, partition: _Partition) -> PartitionTierStatus:
        log, state = partition.log, partition.manifest.state
        lagging = [
            segment for segment in log.segments() if not segment.active and segment.end_offset > state.tiered_end
        ]
        lag_ms = 0
        if lagging and log.config.tiered:
            known = [segment.first_append_ms for segment in lagging if segment.first_append_ms >= 0]
            lag_ms = max(0, self._clock.now_ms() - min(known)) if known else 0
        return PartitionTierStatus(
            topic=log.topic,
            topic_id=log.topic_id,
            partition=log.partition,
            enabled=log.config.tiered,
            log_start_offset=log.log_start_offset,
            local_start_offset=log.local_log_start_offset,
            log_end_offset=log.log_end_offset,
            tiered_end=state.tiered_end,
            lag_bytes=sum(segment.size_bytes for segment in lagging) if log.config.tiered else 0,
            lag_ms=lag_ms,
            remote_segments=len(state.finished),
            remote_raw_bytes=state.raw_bytes,
            remote_stored_bytes=state.size_bytes,
            local_bytes=log.size_bytes,
            phase=partition.phase,
            phase_s=_now_s() - partition.phase_since_s if partition.phase_since_s else 0.0,
            copying=partition.copying,
            copied_segments=partition.copied_segments,
            copied_bytes=partition.copied_bytes,
            expired_segments=partition.expired_segments,
            deleted_objects=partition.deleted_objects,
            pending_deletes=len(state.pending_deletes()),
            failures=partition.failures_total,
            last_error=partition.last_error,
            faults=tuple(partition.faults),
        )

    def segments(self, topic_id: TopicId, partition: PartitionIndex) -> list[SegmentStatus]:
        """Every segment of a partition that is led here, by offset; one that is in both tiers is one line."""
        found = self._partitions.get(TopicIdPartition(topic_id, partition))
        if found is None:
            return []
        lines = []
        local = {segment.base_offset: segment for segment in found.log.segments()}
        for entry in found.manifest.entries:
            here = local.get(entry.base_offset)
            both = here is not None and here.end_offset == entry.end_offset
            if both and entry.state is SegmentState.COPY_FINISHED:
                del local[entry.base_offset]
            lines.append(
                SegmentStatus(
                    tier="both" if both else "remote",
                    state=entry.state.name,
                    base_offset=entry.base_offset,
                    end_offset=entry.end_offset,
                    raw_bytes=entry.raw_bytes,
                    stored_bytes=entry.size_bytes,
                    record_count=entry.record_count,
                    min_timestamp=entry.min_timestamp,
                    max_timestamp=entry.max_timestamp,
                    changed_ms=entry.changed_ms,
                    object_key=found.manifest.object_key(entry),
                )
            )
        lines += [
            SegmentStatus(
                tier="local",
                state="ACTIVE" if segment.active else "ROLLED",
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                raw_bytes=segment.size_bytes,
                stored_bytes=0,
                record_count=-1,
                min_timestamp=TimestampMs(-1),
                max_timestamp=segment.max_timestamp,
                changed_ms=segment.first_append_ms,
                object_key="",
            )
            for segment in local.values()
        ]
        return sorted(lines, key=lambda line: (line.base_offset, line.tier))

    def _read_lag(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [((("topic", one.topic), ("partition", str(one.partition))), one.lag_bytes) for one in self.status()]

    def _read_remote_bytes(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [
            ((("topic", one.topic), ("partition", str(one.partition))), one.remote_stored_bytes)
            for one in self.status()
        ]


# --- pieces -----------------------------------------------------------------------------------------------------------


def _span_of(segment: LocalSegment) -> Span:
    newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.first_append_ms
    return Span(segment.base_offset, segment.end_offset, segment.size_bytes, newest)


def _is_covered(manifest: SegmentManifest, base: Offset, end: Offset) -> bool:
    """Whether readable remote segments cover [base, end); the manifest itself holds them to have no gaps above its start."""
    state = manifest.state
    start = max(base, state.log_start_offset)
    return end <= start or (state.find(start) is not None and state.find(end - 1) is not None)


def _epochs_within(lineage: Sequence[EpochLike], base: Offset, end: Offset) -> tuple[tuple[LeaderEpoch, Offset], ...]:
    """The epochs that have offsets in [base, end)."""
    found = []
    for index, one in enumerate(lineage):
        epoch_end = lineage[index + 1].start_offset if index + 1 < len(lineage) else end
        if one.start_offset < end and epoch_end > base:
            found.append((one.epoch, one.start_offset))
    return tuple(found)


def _position_of(log: Any, offset: Offset) -> int:
    """Position in its file of the batch that starts at ``offset``. Raises: CorruptionError if none starts there."""
    read = log.read(offset, 1, end_offset=log.log_end_offset, min_one_batch=True)
    if read.start_offset != offset:
        raise CorruptionError(f"{log.topic}-{log.partition}: no batch starts at the tiered end {offset}")
    return int(read.position)


def _finished_from_upload(entry: SegmentEntry, made: UploadedSegment) -> SegmentEntry:
    return entry.replace(
        min_timestamp=TimestampMs(made.min_timestamp),
        max_timestamp=TimestampMs(made.max_timestamp),
        record_count=made.record_count,
        raw_bytes=made.raw_bytes,
        size_bytes=made.size_bytes,
        footer_position=made.footer_position,
        footer_bytes=made.size_bytes - made.footer_position,
        chunk_count=made.chunk_count,
    )


def _object_bytes_of(footer: SegmentFooter) -> int:
    return footer.stored_bytes + len(encode_footer(footer))


def _uploaded_from_footer(footer: SegmentFooter, object_bytes: int) -> UploadedSegment:
    return UploadedSegment(
        size_bytes=object_bytes,
        footer_position=footer.stored_bytes,
        raw_bytes=footer.raw_bytes,
        record_count=footer.record_count,
        batch_count=footer.batch_count,
        chunk_count=len(footer.chunks),
        min_timestamp=footer.min_timestamp,
        max_timestamp=footer.max_timestamp,
    )


def _finished_from_footer(entry: SegmentEntry, footer: SegmentFooter) -> SegmentEntry:
    made = _uploaded_from_footer(footer, _object_bytes_of(footer))
    return _finished_from_upload(entry.replace(aborted_transaction_count=len(footer.aborted)), made)


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel a task of ours and wait until it is over."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # it has been looked at


async def _within(seconds: float, what: str, work: Coroutine[Any, Any, T]) -> T:
    """``work``, if it is done in time. Raises: StorageUnavailable if not, and its own."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise StorageUnavailable(f"{what}: no answer within {seconds:g} s") from None


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def manifest_cache_name(topic_id: TopicId, partition: PartitionIndex) -> str:
    """File name under which a broker keeps a copy of a manifest in its data directory."""
    return layout.manifest_prefix(topic_id, partition).replace("/", "_")
