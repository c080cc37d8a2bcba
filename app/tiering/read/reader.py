"""Reads below the local log: from chunks of remote segments, through the chunk cache.

``read`` never waits. It returns the bytes that are ready, or an object to wait on. It has then already requested all missing
chunks, and these requests are never cancelled. So a Fetch returns the bytes that are ready, and this Fetch or the next one
finds a chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from app.core.errors import ErrorCode, RequestRejected
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.seams import BlockingPool
from app.core.units import Offset, PartitionIndex, TopicId, TopicIdPartition
from app.hot.unreadable import UnreadableBatch
from app.metadata.manifest.manifest import SegmentManifest
from app.objectstore.api import ObjectMissing
from app.tiering.read.chunk_cache import ChunkCache
from app.tiering.read.chunk_reads import PAST, ChunkReads, RemoteRange
from app.tiering.read.footers import Footers
from app.tiering.read.lookups import Lookups
from app.tiering.read.read_ahead import ReadAhead
from app.tiering.read.waiting import ReadTasks, RemoteWait
from app.tiering.store.segment_format import AbortedTransaction, SegmentFooter
from app.tiering.store.store_work import StoreWork


class RemoteRead(NamedTuple):
    """The bytes that are ready."""

    ranges: list[RemoteRange]
    """In order and without gaps. Empty only if the first batch is longer than the requested size."""
    length: int
    end_offset: Offset
    """The offset of the next read."""
    aborted: list[AbortedTransaction]
    """Aborted transactions that overlap the returned ranges."""


class RemoteReader:
    """See the module's docstring. Belongs to one event loop; ``run`` owns its tasks."""

    def __init__(
        self,
        work: StoreWork,
        cache: ChunkCache,
        manifest_of: Callable[[TopicIdPartition], SegmentManifest | None],
        *,
        pool: BlockingPool,
        registry: Registry,
        read_ahead_bytes: int,
        on_unreadable: Callable[[TopicIdPartition, UnreadableBatch], None] | None = None,
        faults: Faults | None = None,
    ) -> None:
        """``manifest_of`` returns the manifest of a partition that this broker serves, else None. ``on_unreadable`` gets each
        batch that a lookup by time skips."""
        self._cache, self._manifest_of = cache, manifest_of
        self._tasks = ReadTasks()
        self._chunks = ChunkReads(cache, self._tasks, pool=pool, registry=registry, faults=faults)
        self.footers = Footers(work, cache, self._tasks, registry=registry)
        self.read_ahead = ReadAhead(
            cache, self.footers, manifest_of, registry=registry, read_ahead_bytes=read_ahead_bytes
        )
        self.lookups = Lookups(cache, self._chunks, self.footers, self._served, pool=pool, on_unreadable=on_unreadable)
        self._served_bytes = registry.counter(
            "firn_remote_served_bytes_total", "Record bytes served from remote segments"
        )

    async def run(self) -> None:
        """Serve until cancelled. Before this starts, reads that need the store raise StorageUnavailable."""
        async with asyncio.TaskGroup() as group:
            self._tasks.group = group
            try:
                await group.create_task(self._cache.run())
            finally:
                self._tasks.group = None

    def read(
        self, topic_id: TopicId, partition: PartitionIndex, offset: Offset, max_bytes: int, *, min_one_batch: bool
    ) -> RemoteRead | RemoteWait:
        """Whole batches from the one that contains ``offset`` on: all that are ready and fit into ``max_bytes``.

        With ``min_one_batch`` the first batch is returned also if it is larger. The result may be up to 16 KiB shorter than
        possible: it ends where the next read can begin without a search.

        Raises: RequestRejected (OFFSET_OUT_OF_RANGE: below the log start or past the tiered end; NOT_LEADER_OR_FOLLOWER),
        StorageUnavailable, CorruptionError (also where records are missing).
        """
        at = TopicIdPartition(topic_id, partition)
        manifest = self._served(at)
        stream = self.read_ahead.stream_at(at, offset)
        ranges: list[RemoteRange] = []
        aborted: dict[AbortedTransaction, None] = {}
        left = max_bytes
        end = offset
        wait: RemoteWait | None = None
        while left > 0 or not ranges:
            entry = manifest.find(end)
            if entry is None:
                if ranges:
                    break
                wait = self.footers.look_again(manifest, at, end)
                break
            try:
                slot = self.footers.of(manifest, entry)
                footer = slot.footer
                if footer is None:
                    wait = RemoteWait(slot.waiters)
                    break
                found = self._read_segment(
                    slot.key, footer, end, left, first=not ranges, min_one=min_one_batch, sequential=stream.reads > 0
                )
            except ObjectMissing as error:
                if ranges:
                    break
                wait = self.footers.recheck(manifest, entry, error)
                break
            match found:
                case RemoteRange():
                    aborted |= {
                        one: None
                        for one in footer.aborted
                        if one.first_offset < found.end_offset and one.last_offset >= found.start_offset
                    }
                    ranges.append(found)
                    left -= found.length
                    end = found.end_offset
                    if not found.ends_chunk:
                        break  # the next batch did not fit
                case RemoteWait():
                    wait = found
                    break
                case None:
                    break
                case _:
                    end = found  # nothing of this segment is at or above the offset
        if not ranges and wait is not None:
            self.read_ahead.note_stall(stream)
            self.read_ahead.extend(stream, manifest, offset)
            return wait
        self.read_ahead.note_served(stream, at, end)
        # Not now: the next chunk might evict the chunk of this answer, which has no user yet.
        asyncio.get_running_loop().call_soon(self.read_ahead.extend_from_place, stream)
        self._served_bytes.value += max_bytes - left
        return RemoteRead(ranges, max_bytes - left, end, list(aborted))

    def _read_segment(
        self,
        key: str,
        footer: SegmentFooter,
        offset: Offset,
        max_bytes: int,
        *,
        first: bool,
        min_one: bool,
        sequential: bool,
    ) -> RemoteRange | RemoteWait | Offset | None:
        """One range within one chunk. None: nothing fits, or nothing more is ready after the first range. An offset: the
        segment has no batch from ``offset`` on; continue at the returned offset."""
        for index in range(footer.chunk_index_of(offset), len(footer.chunks)):
            chunk = footer.chunks[index]
            if first:
                cached = self._cache.request(key, chunk)
                if not cached.ready:
                    return RemoteWait(cached.waiters)
            else:
                peeked = self._cache.peek(key, chunk)
                if peeked is None:
                    return None
                cached = peeked
            found = self._chunks.cut(
                cached, chunk, offset, footer.chunk_end_offset(index), max_bytes, is_first=first, min_one=min_one
            )
            if isinstance(found, RemoteWait):
                return found
            self._cache.served(cached, goes_on=sequential and found is not None and not found.ends_chunk)
            if found is not PAST:
                return found
            # The offset lies after the chunk's last batch, where compaction once left none: go on in the next chunk.
        return footer.end_offset

    def _served(self, partition: TopicIdPartition) -> SegmentManifest:
        manifest = self._manifest_of(partition)
        if manifest is None:
            raise RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition} is not served here.")
        return manifest
