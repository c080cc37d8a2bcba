"""Copies segments to the store. Each step begins when the previous step is durable.

::

    fdatasync of the segment → COPY_STARTED → upload → conditional completion → COPY_FINISHED → the local copy may go

If a process dies in between, the next leader (or the same broker after a restart) finds the COPY_STARTED entry. If its object
is complete and correct, the copy is finished. Otherwise the entry becomes DELETE_STARTED, and the segment is copied again under
another segment id. An upload without progress for ``stall_s`` is abandoned, and tried again under a new segment id.

Tests: ``tests/tiering/test_remote_log_manager.py``.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from app.core.buckets import Bucket
from app.core.errors import ConflictError, CorruptionError, FencedError, FirnError, StorageUnavailable
from app.core.limits import MIB
from app.core.loop_time import loop_time_s
from app.core.metrics import Registry
from app.core.seams import Clock
from app.core.units import BrokerId, LeaderEpoch, Offset, SegmentId
from app.metadata.manifest.manifest import CHANGES_PER_ENTRY_MAX, SegmentEntry, SegmentManifest, SegmentState
from app.metadata.manifest.manifest_state import Change, ManifestState
from app.objectstore.api import ObjectMissing, ObjectStore
from app.tiering.store.segment_format import SegmentFooter, decode_footer, encode_footer
from app.tiering.store.store_work import PART_BYTES, StoreWork, UploadedSegment, UploadJob
from app.tiering.upload.deadlines import DELETE_DEADLINE_S, within
from app.tiering.upload.deletion import delete_segments
from app.tiering.upload.led_partition import LedPartition
from app.tiering.upload.recopying import swap, to_recopy
from app.tiering.upload.tiered_log import EpochLike, LocalSegment, TieredLog

COPIES_MAX: Final = 3
"""Maximum uploads under way. Each takes some 60 MiB in the store process."""
STALL_S: Final = 150.0
"""An upload without progress for this time is abandoned. It is longer than all attempts of one part."""
PROGRESS_POLL_S: Final = 2.0
PROGRESS_POLL_DRAINING_S: Final = 0.5
SMALL_BYTES: Final = MIB
SMALL_COPIES_MAX: Final = 32
"""Maximum uploads of small segments while the broker drains. They mostly wait for the store, and take little memory."""


class SegmentCopier:
    """Copies rolled segments, and settles unfinished copies. Belongs to one event loop. The caller owns the task."""

    def __init__(
        self,
        store: ObjectStore,
        work: StoreWork,
        *,
        clock: Clock,
        rng: random.Random,
        registry: Registry,
        broker_id: BrokerId,
        on_copied: Callable[[LedPartition], None],
        copies_max: int = COPIES_MAX,
        stall_s: float = STALL_S,
    ) -> None:
        """``on_copied`` gets a partition when another segment of it is readable in the store and no longer held locally."""
        self._store, self._work, self._clock, self._rng = store, work, clock, rng
        self._broker_id = broker_id
        self._on_copied = on_copied
        self._stall_s = stall_s
        self._copies = asyncio.Semaphore(copies_max)
        self._small_copies = asyncio.Semaphore(SMALL_COPIES_MAX)
        self.draining = False
        """Whether the broker drains."""
        self._rate: Bucket | None = None
        """The bucket of the quota firn.tier_byte_rate; None without one."""
        count = registry.counter
        self._copied = count("firn_tier_copied_segments_total", "Segments copied to the object store")
        self._copied_bytes = count("firn_tier_copied_bytes_total", "Raw bytes of the segments copied")
        self._recopied = count(
            "firn_tier_recopied_segments_total", "Compacted segments copied in place of what they were before"
        )
        self._stalled = count("firn_tier_stalled_uploads_total", "Uploads abandoned because they made no progress")
        self._corrupt = count("firn_tier_corrupt_segments_total", "Local segments found corrupt while they were copied")

    @property
    def copied_bytes(self) -> float:
        """Raw bytes of the segments that were uploaded since the start."""
        return self._copied_bytes.value

    # --- unfinished copies of earlier leaderships ---------------------------------------------------------------------

    async def settle(self, manifest: SegmentManifest) -> None:
        """Finish or give up every unfinished COPY_STARTED entry.

        Await it before ``rebuild.agree``: a later finish would raise the tiered end above records that were appended meanwhile.
        Costs no request if there are no such entries. Raises: StorageUnavailable, FencedError.
        """
        for entry in sorted(manifest.state.pending_copies(), key=lambda entry: entry.base_offset):
            footer = await self._footer_if_whole(manifest, entry)
            if footer is not None and entry.base_offset >= manifest.tiered_end:
                try:
                    await manifest.copy_finished(_finished_from_footer(entry, footer))
                    continue
                except ConflictError:
                    pass  # it does not fit the readable segments any more: the object is of no use
            await manifest.delete_started([entry.segment_id])

    async def _footer_if_whole(self, manifest: SegmentManifest, entry: SegmentEntry) -> SegmentFooter | None:
        """The footer of the object of ``entry`` if the object is complete and correct. Raises: StorageUnavailable."""
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

    def limit_rate(self, bytes_per_s: float | None) -> None:
        """From now on copy so many raw bytes a second; None for as many as there are."""
        now_s = loop_time_s()
        if bytes_per_s is None:
            self._rate = None
        elif self._rate is None:
            self._rate = Bucket(bytes_per_s, bytes_per_s, now_s)
        elif self._rate.rate != bytes_per_s:
            self._rate.change(bytes_per_s, bytes_per_s, now_s)

    @property
    def rests(self) -> bool:
        """Whether no copy may begin, because earlier ones took more than the rate allows. A drain is not held to it: the broker
        is about to go."""
        return self._rate is not None and not self.draining and self._rate.balance(loop_time_s()) < 0

    def next_candidate(self, partition: LedPartition, tiered_end: Offset) -> LocalSegment | None:
        """The oldest rolled segment that is not in the store, if all its records are stable."""
        log = partition.log
        if self.rests:
            return None
        if partition.held or not log.config.tiered or log.config.remote_log_copy_disable:
            return None
        stable_end = log.last_stable_offset
        for segment in log.segments():
            if segment.active or segment.end_offset > stable_end:
                return None
            if segment.end_offset > tiered_end and segment.end_offset > segment.base_offset:
                return segment
        return None

    async def finish_again(self, partition: LedPartition) -> None:
        """Repeat the COPY_FINISHED of an uploaded segment. Raises: ConflictError, FencedError, StorageUnavailable."""
        if partition.copies.finishing is not None:
            await self._finish(partition, partition.copies.finishing, None)

    async def copy_next(self, partition: LedPartition) -> None:
        """Copy the oldest segment that may be copied, when it has its turn. Raises: FirnError."""
        segment = self.next_candidate(partition, partition.manifest.tiered_end)
        if segment is None:
            return
        partition.set_phase("waiting for a turn")
        small = self.draining and segment.size_bytes <= SMALL_BYTES
        async with self._small_copies if small else self._copies:
            if self.rests:
                return  # others have used up the rate meanwhile
            if self._rate is not None:
                self._rate.take(segment.size_bytes, loop_time_s())
            await self._copy(partition, segment)
        self._on_copied(partition)

    async def give_up(self, partition: LedPartition) -> None:
        """Enter DELETE_STARTED for this broker's announced entries that no copy will finish. Raises: FencedError,
        StorageUnavailable."""
        copies = partition.copies
        if copies.announced is not None:
            copies.abandoned.append(copies.announced.segment_id)
            copies.announced = None
        page = copies.abandoned[:CHANGES_PER_ENTRY_MAX]
        if page:
            await partition.manifest.delete_started(page)
            del copies.abandoned[: len(page)]

    async def _copy(self, partition: LedPartition, segment: LocalSegment) -> None:
        log, manifest = partition.log, partition.manifest
        base = max(segment.base_offset, manifest.tiered_end)
        if base > manifest.tiered_end:
            # Nothing below is to be tiered any more: say so first, or the manifest would see a gap.
            if log.log_start_offset < base:
                raise CorruptionError(
                    f"{log.topic}-{log.partition}: [{manifest.tiered_end}, {base}) is neither local nor in the store."
                )
            await manifest.set_log_start(base)
        partition.progress.copying = base, segment.end_offset
        cut = asyncio.get_running_loop().create_future()
        hold = log.hold(segment.base_offset, lambda: cut.set_result(None))
        try:
            start_position = _position_of(log, base) if base > segment.base_offset else 0
            if log.synced_end_offset < segment.end_offset:
                partition.set_phase("syncing")
                await log.flush()
            entry = await self._announce(partition, await self._entry_for(partition, base, segment))
            partition.set_phase("uploading")
            try:
                made = await self._upload(partition, entry, segment, start_position, cut)
            except FirnError as error:
                if hold.ended:
                    partition.copies.abandoned.append(entry.segment_id)  # it may have truncated records
                    raise
                made = await self._after_failed_upload(partition, entry, error)
            self._copied.value += 1
            self._copied_bytes.value += made.raw_bytes
            partition.progress.copied_segments += 1
            partition.progress.copied_bytes += made.raw_bytes
            following = self.next_candidate(partition, segment.end_offset)
            if partition.detached or (following is not None and following.base_offset != segment.end_offset):
                following = None  # another broker leads by now, or there is a gap
            await self._finish(partition, made.recorded_in(entry), following)
        finally:
            hold.release()

    async def recopy(self, partition: LedPartition) -> None:
        """Replace all remote segments of a compacted topic by copies of its cleaned segments, if that is worth it (J59).

        Meanwhile the log is not cleaned: all copies are of one state of it. Raises: FirnError; then the remote segments stay. A cut
        of the log is a ConflictError.
        """
        log, manifest = partition.log, partition.manifest
        segments = to_recopy(log, manifest)
        if not segments or partition.held or self.rests or log.cleaning:
            return
        replaced, copies = list(manifest.finished), []
        entries: list[SegmentEntry] = []
        cut = asyncio.get_running_loop().create_future()
        cleaning = log.begin_cleaning(lambda: cut.set_result(None))
        try:
            for segment in segments:
                cleaning.add(log.hold(segment.base_offset))
            for segment in segments:
                entries.append(await self._entry_for(partition, segment.base_offset, segment))
            partition.set_phase("announcing")
            await manifest.copy_started(*entries)
            for entry, segment in zip(entries, segments, strict=True):
                if partition.detached:
                    raise FencedError(f"Another broker leads {log.topic}-{log.partition}.")
                partition.set_phase("uploading")
                async with self._copies:
                    made = await self._upload(partition, entry, segment, 0, cut)
                copies.append(made.recorded_in(entry))
            partition.copies.swapping = replaced, copies
        except FirnError:
            partition.copies.abandoned += [entry.segment_id for entry in entries]
            raise
        finally:
            log.finish_cleaning(cleaning)
        await self.finish_recopy(partition)

    async def finish_recopy(self, partition: LedPartition) -> None:
        """Make copies readable that are to replace all remote segments, if that is not known to be done. Raises: as ``recopy``."""
        if partition.copies.swapping is None:
            return
        replaced, copies = partition.copies.swapping
        partition.set_phase("finishing")
        try:
            await swap(partition.manifest, replaced, copies)
        except ConflictError:
            partition.copies.swapping = None
            partition.copies.abandoned += [one.segment_id for one in copies]
            raise
        partition.copies.swapping = None
        self._recopied.value += len(copies)

    async def _entry_for(self, partition: LedPartition, base: Offset, segment: LocalSegment) -> SegmentEntry:
        log = partition.log
        aborted = await log.aborted_transactions_when_ready(base, segment.end_offset)
        return SegmentEntry.started(
            SegmentId(uuid.UUID(int=self._rng.getrandbits(128), version=4)),
            base,
            segment.end_offset,
            broker_id=self._broker_id,
        ).replace(
            leader_epochs=_epochs_within(log.leader_epochs(), base, segment.end_offset),
            max_timestamp=segment.max_timestamp,
            arrived_ms=segment.last_append_ms,
            raw_bytes=segment.size_bytes,
            aborted_transaction_count=len(aborted),
        )

    async def _announce(self, partition: LedPartition, entry: SegmentEntry) -> SegmentEntry:
        """Make COPY_STARTED durable, unless the finish of the previous segment did that."""
        announced, partition.copies.announced = partition.copies.announced, None
        if announced is not None:
            if (announced.base_offset, announced.end_offset) == (entry.base_offset, entry.end_offset):
                return announced
            partition.copies.abandoned.append(announced.segment_id)
        partition.set_phase("announcing")
        given_up = list(partition.copies.abandoned)

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
            partition.copies.abandoned.append(entry.segment_id)  # it may have been written
            raise
        partition.copies.abandoned = [one for one in partition.copies.abandoned if one not in given_up]
        return entry

    async def _upload(
        self,
        partition: LedPartition,
        entry: SegmentEntry,
        segment: LocalSegment,
        start_position: int,
        cut: asyncio.Future[None],
    ) -> UploadedSegment:
        """Upload a segment, watched for progress, until ``cut`` says that the log is cut back to before its end.

        Raises: as ``StoreWork.upload_segment``; ConflictError after a cut."""
        log = partition.log
        aborted = await log.aborted_transactions_when_ready(entry.base_offset, entry.end_offset)
        if cut.done():
            raise _cut_off(log)
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
            aborted=[(one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset) for one in aborted],
            producer_snapshot=log.producer_snapshot(entry.end_offset),
            compression=log.config.firn_tier_compression,
            chunk_bytes=log.config.firn_tier_chunk_bytes,
            created_ms=self._clock.now_ms(),
            kms_key_id=log.config.firn_tier_kms_key_id,
        )
        upload = asyncio.ensure_future(self._work.upload_segment(job))
        try:
            progress = -1
            moved_s = loop_time_s()
            while True:
                poll_s = PROGRESS_POLL_DRAINING_S if self.draining else PROGRESS_POLL_S
                await asyncio.wait(
                    (upload, cut), timeout=min(poll_s, self._stall_s / 4), return_when=asyncio.FIRST_COMPLETED
                )
                if cut.done():
                    raise _cut_off(log)
                if upload.done():
                    return upload.result()
                seen = await self._progress_of(entry.segment_id, progress)
                # A step is a chunk that was read or a part that was stored.
                step_bytes = 1 / (1 / job.chunk_bytes + 1 / PART_BYTES)
                partition.progress.uploaded_bytes = min(max(seen, 0) * step_bytes, job.log_bytes - start_position)
                if seen != progress:
                    progress, moved_s = seen, loop_time_s()
                elif loop_time_s() - moved_s > self._stall_s:
                    self._stalled.value += 1
                    raise StorageUnavailable(f"{job.key}: the upload made no progress for {self._stall_s:g} s.")
        finally:
            partition.progress.uploaded_bytes = 0.0
            await _end(upload)

    async def _progress_of(self, segment_id: uuid.UUID, before: int) -> int:
        try:
            return (await self._work.upload_progress()).get(segment_id.bytes, before)
        except StorageUnavailable:
            return before

    async def _after_failed_upload(
        self, partition: LedPartition, entry: SegmentEntry, error: FirnError
    ) -> UploadedSegment:
        """The object may exist although its upload failed. Then the upload counts as successful; otherwise the entry is given up.

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
        partition.copies.abandoned.append(entry.segment_id)
        try:
            raise error
        finally:
            del error  # it holds this frame

    async def _finish(self, partition: LedPartition, entry: SegmentEntry, following: LocalSegment | None) -> None:
        """Make COPY_FINISHED durable, together with the next segment's COPY_STARTED."""
        partition.set_phase("finishing")
        partition.copies.finishing = entry
        next_entry = None if following is None else await self._entry_for(partition, following.base_offset, following)
        try:
            await partition.manifest.copy_finished(entry, start_next=next_entry)
        except FencedError:
            await self._remove_unknown_object(partition, entry)
            raise
        except ConflictError:
            partition.copies.finishing = None
            partition.copies.abandoned.append(entry.segment_id)
            raise
        except StorageUnavailable:
            if next_entry is not None:
                partition.copies.abandoned.append(next_entry.segment_id)  # it may have been announced
            raise
        partition.copies.finishing = None
        partition.copies.announced = next_entry

    async def _remove_unknown_object(self, partition: LedPartition, entry: SegmentEntry) -> None:
        """This broker is no longer the leader. If the new leader's manifest does not know the copy, no other broker deletes it, so
        delete it here. If the manifest knows the copy, the new leader may have made it readable, and decides."""
        try:
            await partition.manifest.refresh()
            if partition.manifest.state.get(entry.segment_id) is None:
                keys = [partition.manifest.object_key(entry)]
                await within(DELETE_DEADLINE_S, "deleting an object", delete_segments(self._store, partition.key, keys))
        except FirnError as error:
            partition.progress.last_error = f"left to the sweeper: {error}"


# --- pieces -----------------------------------------------------------------------------------------------------------


def _epochs_within(lineage: Sequence[EpochLike], base: Offset, end: Offset) -> tuple[tuple[LeaderEpoch, Offset], ...]:
    """The epochs that have offsets in [base, end)."""
    found = []
    for index, one in enumerate(lineage):
        epoch_end = lineage[index + 1].start_offset if index + 1 < len(lineage) else end
        if one.start_offset < end and epoch_end > base:
            found.append((one.epoch, one.start_offset))
    return tuple(found)


def _position_of(log: Any, offset: Offset) -> int:
    """File position of the batch that starts at ``offset``, or later if that one may have been compacted away.

    Raises: CorruptionError if no batch starts there.
    """
    read = log.read(offset, 1, end_offset=log.log_end_offset, min_one_batch=True)
    if read.start_offset != offset and not (log.config.compacted and read.start_offset > offset):
        raise CorruptionError(f"{log.topic}-{log.partition}: no batch starts at the tiered end {offset}.")
    return int(read.position)


def _cut_off(log: TieredLog) -> ConflictError:
    return ConflictError(
        f"{log.topic}-{log.partition} was cut back to before the end of the segment that was being copied."
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
    return made.recorded_in(entry.replace(aborted_transaction_count=len(footer.aborted)))


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has ended."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # it has been looked at
