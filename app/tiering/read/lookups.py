"""Lookups in remote segments: offsets by timestamp, and ends of leader epochs.

Tests: ``tests/tiering/test_reader.py``, ``tests/tiering/test_any_timestamps.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from app.core.errors import CorruptionError
from app.core.seams import BlockingPool
from app.core.units import LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId, TopicIdPartition
from app.hot.unreadable import UnreadableBatch
from app.machine.files import storage_error
from app.metadata.manifest.manifest import SegmentEntry, SegmentManifest
from app.objectstore.api import ObjectMissing
from app.records.batch import BatchHeader, check_stored_batch, iter_headers
from app.records.validation import PassedBatches, first_at_or_after, greatest_at_or_after, timestamps_of
from app.tiering.read.chunk_cache import CachedChunk, ChunkCache
from app.tiering.read.chunk_reads import ChunkReads
from app.tiering.read.footers import Footers
from app.tiering.read.waiting import RemoteWait
from app.tiering.store.segment_format import ChunkEntry

InBatch = Callable[[memoryview, Offset], tuple[TimestampMs, Offset] | None]
"""Searches one batch for a record at or above an offset."""


class Lookups:
    """Lookups in the remote segments of served partitions. Belongs to one event loop."""

    def __init__(
        self,
        cache: ChunkCache,
        chunks: ChunkReads,
        footers: Footers,
        served: Callable[[TopicIdPartition], SegmentManifest],
        *,
        pool: BlockingPool,
        on_unreadable: Callable[[TopicIdPartition, UnreadableBatch], None] | None = None,
    ) -> None:
        """``served`` returns the manifest of a partition that this broker serves. Raises: RequestRejected NOT_LEADER_OR_FOLLOWER.
        ``on_unreadable`` gets each batch that a lookup by time skips."""
        self._cache, self._chunks, self._footers, self._served = cache, chunks, footers, served
        self._pool = pool
        self._on_unreadable = on_unreadable

    async def offset_for_timestamp(
        self,
        topic_id: TopicId,
        partition: PartitionIndex,
        timestamp: TimestampMs,
        *,
        claimed_from: Offset | None = None,
    ) -> tuple[TimestampMs, Offset] | None:
        """(timestamp, offset) of the first remote record from the log start on whose timestamp is at least ``timestamp``.

        ``claimed_from``: where the first local segment begins, if its headers claim such a record.

        Raises: RequestRejected (NOT_LEADER_OR_FOLLOWER), StorageUnavailable, CorruptionError.
        """
        manifest = self._served(TopicIdPartition(topic_id, partition))
        at = manifest.log_start_offset
        while True:
            entry = manifest.find_timestamp(timestamp)
            if entry is not None and entry.end_offset <= at:
                entry = manifest.find(at)
            before = await self._doubtful_before(manifest, entry, at, timestamp, claimed_from)
            if before is not None:
                found, _ = await self._find_in_segment(manifest, before, at, timestamp, _first_in(timestamp))
                if found is not None:
                    return found
            if entry is None:
                return None
            found, at = await self._find_in_segment(manifest, entry, at, timestamp, _first_in(timestamp))
            if found is not None:
                return found

    async def max_timestamp_offset(
        self, topic_id: TopicId, partition: PartitionIndex
    ) -> tuple[TimestampMs, Offset] | None:
        """(timestamp, offset) of the first remote record from the log start on with the greatest timestamp.

        Raises: as ``offset_for_timestamp``.
        """
        manifest = self._served(TopicIdPartition(topic_id, partition))
        best: tuple[TimestampMs, Offset] | None = None
        start = manifest.log_start_offset
        for entry in sorted(manifest.state.finished, key=lambda one: (-one.max_timestamp, one.base_offset)):
            claimed = entry.max_timestamp
            if claimed < 0 or (best is not None and claimed <= best[0]):
                break
            if entry.end_offset <= start:
                continue
            found, _ = await self._find_in_segment(manifest, entry, start, claimed, _claimed_in(claimed))
            if found is None:
                # No record bears the time that the headers claim: all records are looked at.
                above = TimestampMs(-1 if best is None else best[0])
                greatest: list[tuple[TimestampMs, Offset]] = []
                await self._find_in_segment(
                    manifest, entry, start, TimestampMs(above + 1), _greatest_in(greatest, above)
                )
                found = greatest[0] if greatest else None
            best = found if found is not None else best
        return best

    def epoch_end_offset(
        self, topic_id: TopicId, partition: PartitionIndex, epoch: LeaderEpoch
    ) -> tuple[LeaderEpoch, Offset] | None:
        """The greatest epoch of the remote segments not above ``epoch``, and the offset at which it ended.

        None if all epochs are above, or if it is the last epoch: the local log knows where that ends.
        """
        lineage = self._served(TopicIdPartition(topic_id, partition)).state.leader_epochs()
        index = bisect_right(lineage, epoch, key=lambda one: one[0]) - 1
        if index < 0 or index + 1 >= len(lineage):
            return None
        return lineage[index][0], lineage[index + 1][1]

    async def _doubtful_before(
        self,
        manifest: SegmentManifest,
        entry: SegmentEntry | None,
        at: Offset,
        timestamp: TimestampMs,
        claimed_from: Offset | None,
    ) -> SegmentEntry | None:
        """The segment whose last batches may be newer than their headers say (``PassedBatches``), as the next batch claims a record
        of ``timestamp``: it is the first of ``entry``, or local. None if there is no such segment from ``at`` on."""
        if entry is None:
            if claimed_from is None:
                return None
            before = manifest.state.last_before(claimed_from)
        else:
            before = manifest.state.last_before(entry.base_offset)
            if before is not None and before.end_offset > at:
                try:
                    _, footer = await self._footers.loaded(manifest, entry)
                except ObjectMissing:
                    return None  # the search of the segment meets it too, and handles it
                if footer.chunks[0].max_timestamp < timestamp:
                    return None
        return before if before is not None and before.end_offset > at else None

    async def _find_in_segment(
        self,
        manifest: SegmentManifest,
        entry: SegmentEntry,
        start: Offset,
        timestamp: TimestampMs,
        in_batch: InBatch,
    ) -> tuple[tuple[TimestampMs, Offset] | None, Offset]:
        """The first result of ``in_batch`` in the batches from ``start`` on; without a result, the position to continue at.
        Only batches are searched whose header claims a record of ``timestamp`` or later, or that are ``PassedBatches``."""
        at = max(start, entry.base_offset)
        try:
            key, footer = await self._footers.loaded(manifest, entry)
            chunks = footer.chunks
            for index in range(footer.chunk_index_of(Offset(at)), len(chunks)):
                chunk = chunks[index]
                if chunk.max_timestamp < timestamp and (
                    chunk.record_count == chunk.batch_count
                    or (index + 1 < len(chunks) and chunks[index + 1].max_timestamp < timestamp)
                ):
                    continue
                cached = await self._ready_chunk(key, chunk)
                found, passed = await self._scan(cached, chunk, Offset(at), timestamp, in_batch)
                self._cache.served(cached)
                if self._on_unreadable is not None:
                    for batch in passed:
                        self._on_unreadable(TopicIdPartition(manifest.topic_id, manifest.partition), batch)
                if found is not None:
                    return found, found[1]
        except ObjectMissing as error:
            await self._footers.recheck(manifest, entry, error).woken()
            return None, Offset(at)
        return None, entry.end_offset

    async def _ready_chunk(self, key: str, chunk: ChunkEntry) -> CachedChunk:
        while not (cached := self._cache.request(key, chunk)).ready:
            await RemoteWait(cached.waiters).woken()
        return cached

    async def _scan(
        self, cached: CachedChunk, chunk: ChunkEntry, start: Offset, timestamp: TimestampMs, in_batch: InBatch
    ) -> tuple[tuple[TimestampMs, Offset] | None, list[UnreadableBatch]]:
        """The result of ``in_batch``, and the batches that were skipped."""
        handle = cached.handle
        assert handle is not None
        file = handle.acquire()

        def work() -> tuple[tuple[TimestampMs, Offset] | None, list[UnreadableBatch]]:
            buffer = memoryview(bytearray(chunk.raw_bytes))
            file.pread_into(buffer, cached.position)
            return _find_in_chunk(buffer, start, timestamp, in_batch)

        try:
            return await self._pool.run(work)
        except OSError as error:
            raise storage_error(error, f"Cannot read {handle.path}") from error
        except CorruptionError:
            self._chunks.reject_damaged(cached)
            raise
        finally:
            handle.release()


def _first_in(timestamp: TimestampMs) -> InBatch:
    return lambda batch, start: first_at_or_after(batch, timestamp, start)


def _claimed_in(claimed: TimestampMs) -> InBatch:
    return lambda batch, start: greatest_at_or_after(batch, claimed, start)


def _greatest_in(best: list[tuple[TimestampMs, Offset]], above: TimestampMs) -> InBatch:
    """Keep in ``best`` the first record with the greatest timestamp of all batches, if it is greater than ``above``."""

    def in_batch(batch: memoryview, start: Offset) -> None:
        for found in timestamps_of(batch, start):
            if found[0] > (best[0][0] if best else above):
                best[:] = [found]

    return in_batch


def _find_in_chunk(
    raw: memoryview, start: Offset, timestamp: TimestampMs, in_batch: InBatch
) -> tuple[tuple[TimestampMs, Offset] | None, list[UnreadableBatch]]:
    """The result of ``in_batch``, and the earlier batches whose records cannot be decoded.

    Raises: CorruptionError if the bytes differ from the cached bytes.
    """
    passed: list[UnreadableBatch] = []

    def look_into(batches: list[tuple[int, BatchHeader]]) -> tuple[TimestampMs, Offset] | None:
        for position, header in batches:
            batch = raw[position : position + header.size_bytes]
            try:
                found = in_batch(batch, start)
            except CorruptionError as error:
                check_stored_batch(batch)  # raises if the file of the cache is damaged
                passed.append(UnreadableBatch(header.base_offset, header.end_offset, str(error)))
                continue
            if found is not None:
                return found
        return None

    doubtful = PassedBatches()
    for position, header in iter_headers(raw):
        if header.end_offset <= start:
            continue
        if header.max_timestamp < timestamp:
            doubtful.note(position, header)
            continue
        found = look_into([*doubtful.take(), (position, header)])
        if found is not None:
            return found, passed
    return look_into(doubtful.take()), passed
