"""Reads below the local log: from chunks of remote segments, through the chunk cache.

``read`` never waits. It returns the bytes that are ready, or an object to wait on. It has then already requested all missing
chunks, and these requests are never cancelled. So a Fetch returns the bytes that are ready, and this Fetch or the next one
finds a chunk.

**Sequential readers** request the offset at which their last response ended. For each of them a window of bytes is read ahead,
across chunks and segments. A window begins with one chunk, and doubles whenever its reader had to wait. So it grows to
bandwidth × latency and no further. All windows together stay within ``read_ahead_bytes``. If they fill this budget, a waiting
reader takes bytes from the largest windows until its own window has an equal share. A reader near the tiered end returns the
bytes that it does not need. Footers of the next segments are requested before a window reaches them, so no window waits for a
footer.

**A missing object** is first compared with the manifest. If the segment was deleted or replaced, the read continues in the
replacement, or returns OFFSET_OUT_OF_RANGE. Otherwise a missing object is a storage error, like corrupt bytes: retriable,
counted, and never served.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from app.core.errors import (
    CorruptionError,
    ErrorCode,
    FirnError,
    RequestRejected,
    StorageUnavailable,
    clause,
    copy_of,
    without_frames,
)
from app.core.faults import Faults
from app.core.limits import MIB
from app.core.metrics import Registry
from app.core.seams import BlockingPool
from app.core.units import LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId, TopicIdPartition
from app.hot.descriptors import FileHandle
from app.hot.unreadable import UnreadableBatch
from app.machine.files import File, storage_error
from app.metadata.manifest.manifest import SegmentEntry, SegmentManifest
from app.objectstore.api import ObjectMissing
from app.records.batch import BatchHeader, check_stored_batch, iter_headers
from app.records.validation import PassedBatches, first_at_or_after, greatest_at_or_after, timestamps_of
from app.tiering.read.chunk_cache import READ_BYTES_MAX, CachedChunk, ChunkCache
from app.tiering.read.waiting import Waiters
from app.tiering.store.segment_format import AbortedTransaction, ChunkEntry, SegmentFooter, decode_footer
from app.tiering.store.store_work import StoreWork

InBatch = Callable[[memoryview, Offset], tuple[TimestampMs, Offset] | None]
"""Searches one batch for a record at or above an offset."""

STREAMS_MAX: Final = 4096
STREAM_IDLE_S: Final = 30.0
WINDOW_IDLE_S: Final = 2.0
"""A stream that was not read for this time gives its window to a stream that needs it."""
FOOTER_CACHE_BYTES_MAX: Final = 16 * MIB
"""Encoded bytes of the decoded footers in memory. Decoded they take about six times as much."""
RECHECK_S: Final = 5.0
"""How long the check of a missing object against the manifest stays valid."""
FOOTER_ERROR_S: Final = 1.0
BLOCKS_KEPT_MAX: Final = 4
"""Walked blocks that a chunk remembers. A reader needs one only if it starts within a block."""

_Block = list[tuple[int, BatchHeader]]
"""(position in the chunk, header) of successive batches."""


class RemoteRange(NamedTuple):
    """Whole batches in one local file: ``[position, position + length)``. Hold the handle (``acquire``) while you read."""

    handle: FileHandle
    position: int
    length: int
    start_offset: Offset
    end_offset: Offset
    lasting: bool = False
    """Whether these bytes are never overwritten, even after the release of the handle."""
    ends_chunk: bool = False
    """Whether the range ends its chunk."""


_PAST: Final = RemoteRange(None, -1, 0, Offset(-1), Offset(-1))  # type: ignore[arg-type] # only ever compared by identity


class RemoteRead(NamedTuple):
    """The bytes that are ready."""

    ranges: list[RemoteRange]
    """In order and without gaps. Empty only if the first batch is longer than the requested size."""
    length: int
    end_offset: Offset
    """The offset of the next read."""
    aborted: list[AbortedTransaction]
    """Aborted transactions that overlap the returned ranges."""


class RemoteWait(NamedTuple):
    """No bytes are ready yet."""

    waiters: Waiters

    def __call__(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` once, when a new read can make progress. Returns: a function that cancels this."""
        return self.waiters.add(wake)


@dataclass(slots=True, eq=False)
class _FooterSlot:
    """A footer: loading, loaded, or failed."""

    key: str
    """Size of the object."""
    waiters: Waiters = field(default_factory=Waiters)
    footer: SegmentFooter | None = None
    encoded_bytes: int = 0
    error: FirnError | None = None
    expires_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Recheck:
    """A check of the manifest because an object was missing."""

    waiters: Waiters = field(default_factory=Waiters)
    done: bool = False
    expires_s: float = 0.0
    error: FirnError | None = None
    """Why the manifest could not be read."""


@dataclass(slots=True, eq=False)
class _Stream:
    """One sequential reader."""

    place: tuple[TopicIdPartition, Offset]
    """The offset of the reader's next request."""
    used_s: float
    asked_end: Offset
    reads: int = 0
    """Number of responses so far."""
    stalled: bool = False
    """Whether the reader waits now. Its window was doubled for this wait."""
    window_bytes: int = 0
    window_bytes_min: int = 0
    """The chunk being read and the next one. A smaller window would read nothing ahead."""
    ahead_bytes: int = 0
    ahead: deque[tuple[Offset, int]] = field(default_factory=deque)
    """(end offset, raw bytes) of the chunks that were requested ahead of the reader."""
    footers_asked: tuple[uuid.UUID, int] | None = None
    """Segment at the end of the window, and bytes of the window, for which footers were requested."""
    awaits_footer: bool = False
    is_full: bool = False
    """Whether the window is too full for the next chunk."""


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
        self._on_unreadable = on_unreadable
        self._fault_log = faults
        self._work, self._cache, self._manifest_of, self._pool = work, cache, manifest_of, pool
        # A chunk that is read ahead is to be there still when its reader comes to it.
        self._read_ahead_bytes = min(read_ahead_bytes, cache.capacity_bytes // 2)
        self._footers: OrderedDict[uuid.UUID, _FooterSlot] = OrderedDict()
        """By segment id."""
        self._footer_bytes = 0
        self._rechecks: dict[str, _Recheck] = {}
        self._streams: OrderedDict[tuple[TopicIdPartition, Offset], _Stream] = OrderedDict()
        self._window_bytes = 0
        """Window bytes of all streams together."""
        self._windows = 0
        """Streams with a window."""
        self._nothing_above_bytes: int | None = None
        """The share for which no window could be shrunk the last time, if no window has changed since. Readers without a window try
        again with each read, and must not look at the windows of all others each time."""
        self._group: asyncio.TaskGroup | None = None
        self._served_bytes = registry.counter(
            "firn_remote_served_bytes_total", "Record bytes served from remote segments"
        )
        self._stalls = registry.counter("firn_remote_stalls_total", "Sequential reads that had to wait for the store")
        self._missing = registry.counter("firn_remote_missing_objects_total", "Reads that found an object missing")
        self._corruptions = registry.counter(
            "firn_remote_corruptions_total", "Chunks and footers whose bytes differ from the written bytes"
        )
        registry.gauge(
            "firn_read_ahead_window_bytes", "Sum of all read-ahead windows", lambda: [((), self._window_bytes)]
        )

    async def run(self) -> None:
        """Serve until cancelled. Before this starts, reads that need the store raise StorageUnavailable."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await group.create_task(self._cache.run())
            finally:
                self._group = None

    # --- Fetch ------------------------------------------------------------------------------------------------------

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
        stream = self.stream_at(at, offset)
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
                wait = self._look_again(manifest, at, end)
                break
            try:
                slot = self._footer(manifest, entry)
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
                wait = self._recheck(manifest, entry, error)
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
            self._note_stall(stream)
            self._extend(stream, manifest, offset)
            return wait
        self._note_served(stream, at, end)
        # Not now: the next chunk might evict the chunk of this answer, which has no user yet.
        asyncio.get_running_loop().call_soon(self._extend_from_place, stream)
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
            found = self._cut(
                cached, chunk, offset, footer.chunk_end_offset(index), max_bytes, is_first=first, min_one=min_one
            )
            if isinstance(found, RemoteWait):
                return found
            self._cache.served(cached, goes_on=sequential and found is not None and not found.ends_chunk)
            if found is not _PAST:
                return found
            # The offset lies after the chunk's last batch, where compaction once left none: go on in the next chunk.
        return footer.end_offset

    def _cut(
        self,
        cached: CachedChunk,
        chunk: ChunkEntry,
        offset: Offset,
        chunk_end: Offset,
        max_bytes: int,
        *,
        is_first: bool,
        min_one: bool,
    ) -> RemoteRange | RemoteWait | None:
        """The range of a chunk for a read. None: its first batch does not fit. ``_PAST``: the chunk has no batch from there on."""
        batches, handle = cached.batches, cached.handle
        assert batches is not None
        assert handle is not None
        if handle.file is None:
            self._open(cached, handle)
        block = max(bisect_right(batches.offsets, offset) - 1, 0)
        start, start_offset = batches.positions[block], Offset(batches.offsets[block])
        walked: _Block | None = None
        if start_offset < offset:
            found = self._block(cached, chunk, block)
            if isinstance(found, RemoteWait):
                return found
            walked = [one for one in found if one[1].end_offset > offset]
            if walked:
                start, start_offset = walked[0][0], walked[0][1].base_offset
            elif block + 1 < len(batches.positions):
                # Every batch of the block ends below the offset: the next block starts past it.
                block += 1
                start, start_offset, walked = batches.positions[block], Offset(batches.offsets[block]), None
            else:
                return _PAST
        end_max = start + max_bytes
        if chunk.raw_bytes <= end_max:
            position, length = cached.position + start, chunk.raw_bytes - start
            return RemoteRange(handle, position, length, start_offset, chunk_end, cached.in_place, ends_chunk=True)
        following = bisect_right(batches.positions, end_max) - 1
        end, end_offset = batches.positions[following], Offset(batches.offsets[following])
        if end <= start:
            if not is_first:
                return None  # less than a block is not worth a walk
            if walked is None:
                found = self._block(cached, chunk, block)
                if isinstance(found, RemoteWait):
                    return found
                walked = found
            fitting = [one for one in walked if one[0] + one[1].size_bytes <= end_max]
            if not fitting and not min_one:
                return None
            position, header = fitting[-1] if fitting else walked[0]
            end, end_offset = position + header.size_bytes, header.end_offset
        return RemoteRange(handle, cached.position + start, end - start, start_offset, end_offset, cached.in_place)

    def _open(self, cached: CachedChunk, handle: FileHandle) -> None:
        """Open the file of a chunk. Raises: ObjectMissing if the file is gone; then the chunk is dropped."""
        try:
            handle.acquire()
        except StorageUnavailable as error:
            self._cache.reject(cached)
            raise ObjectMissing(f"{cached.key[0]}: {clause(error)}.") from error
        handle.release()

    def _block(self, cached: CachedChunk, chunk: ChunkEntry, block: int) -> _Block | RemoteWait:
        """The batches from one entry of a chunk's batch index to the next, from the page cache or through a pool thread."""
        known = cached.blocks.get(block)
        if known is not None:
            return known
        waiters = cached.block_waiters.get(block)
        if waiters is not None:
            return RemoteWait(waiters)
        batches, handle = cached.batches, cached.handle
        assert batches is not None
        assert handle is not None
        start = batches.positions[block]
        end = batches.positions[block + 1] if block + 1 < len(batches.positions) else chunk.raw_bytes
        buffer = memoryview(bytearray(end - start))
        file = handle.acquire()
        try:
            if file.preadv_nowait(buffer, cached.position + start) == end - start:
                return _keep_block(cached, block, start, buffer)
        except OSError as error:
            raise storage_error(error, f"Cannot read {handle.path}") from error
        except CorruptionError:
            self._reject_damaged(cached)
            raise
        finally:
            handle.release()
        waiters = cached.block_waiters[block] = Waiters()
        handle.acquire()
        self._spawn(self._load_block(cached, handle, file, block, start, buffer))
        return RemoteWait(waiters)

    async def _load_block(
        self, cached: CachedChunk, handle: FileHandle, file: File, block: int, start: int, buffer: memoryview
    ) -> None:
        try:
            await self._pool.run(lambda: file.pread_into(buffer, cached.position + start))
            _keep_block(cached, block, start, buffer)
        except OSError as error:
            self._tell_of_cache(f"cannot read {handle.path}, so its chunk is fetched again: {error.strerror or error}")
            self._cache.reject(cached)  # the next read fetches the chunk again, or meets the disk's error there
        except CorruptionError:
            self._reject_damaged(cached)
        finally:
            handle.release()
            cached.block_waiters.pop(block).wake()

    def _reject_damaged(self, cached: CachedChunk) -> None:
        """The disk has changed bytes that were verified when they were fetched. The next read fetches them again."""
        self._corruptions.value += 1
        name = "the chunk cache" if cached.handle is None else cached.handle.path
        self._tell_of_cache(
            f"{name} differs from the bytes that were written to it, so its chunk of {cached.key[0]} is fetched again"
        )
        self._cache.reject(cached)

    def _tell_of_cache(self, sentence: str) -> None:
        """Readers are still served, but every read costs a request to the store. Only this line reports that."""
        if self._fault_log is not None:
            self._fault_log.met("reading from", "the chunk cache", sentence)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._group is None:
            work.close()
            raise StorageUnavailable("The remote reader is not running.")
        self._group.create_task(work)

    # --- footers ----------------------------------------------------------------------------------------------------

    def _footer(self, manifest: SegmentManifest, entry: SegmentEntry) -> _FooterSlot:
        """The footer of a segment. Requests it if it is not ready. Raises: as ``read``, ObjectMissing."""
        segment_id = entry.segment_id
        slot = self._footers.get(segment_id)
        if slot is not None and slot.error is not None:
            if slot.expires_s >= _now_s():
                raise copy_of(slot.error)
            self._forget_footer(segment_id)
            slot = None
        if slot is None:
            slot = _FooterSlot(manifest.object_key(entry))
            self._spawn(self._load_footer(manifest, entry, slot))
            self._footers[segment_id] = slot
        self._footers.move_to_end(segment_id)
        return slot

    async def _load_footer(self, manifest: SegmentManifest, entry: SegmentEntry, slot: _FooterSlot) -> None:
        key = slot.key
        try:
            found = await self._work.read_footer(key, (entry.footer_position, entry.size_bytes))
            footer = decode_footer(found.tail, found.object_bytes, key)
            told = (footer.topic_id, footer.partition, footer.segment_id, footer.base_offset, footer.end_offset)
            known = (manifest.topic_id, manifest.partition, entry.segment_id, entry.base_offset, entry.end_offset)
            if told != known:
                raise CorruptionError(f"{key}: the footer is of {told}, the manifest says {known}.")
            slot.footer = footer
            slot.encoded_bytes = len(found.tail)
            self._footer_bytes += slot.encoded_bytes
            self._trim_footers()
        except FirnError as error:
            if isinstance(error, CorruptionError):
                self._corruptions.value += 1
            slot.error = without_frames(error)
            slot.expires_s = _now_s() + FOOTER_ERROR_S
        slot.waiters.wake()

    def _trim_footers(self) -> None:
        for segment_id in list(self._footers):
            if self._footer_bytes <= FOOTER_CACHE_BYTES_MAX:
                return
            if self._footers[segment_id].footer is not None and len(self._footers) > 1:
                self._forget_footer(segment_id)

    def _forget_footer(self, segment_id: uuid.UUID) -> None:
        self._footer_bytes -= self._footers.pop(segment_id).encoded_bytes

    # --- missing objects --------------------------------------------------------------------------------------------

    def _recheck(self, manifest: SegmentManifest, entry: SegmentEntry, error: ObjectMissing) -> RemoteWait:
        """Read the manifest again because an object is missing. Raises: StorageUnavailable if it still names the object."""
        key = manifest.object_key(entry)
        now_s = _now_s()
        known = self._rechecks.get(key)
        if known is not None and known.done:
            if known.expires_s >= now_s:
                raise StorageUnavailable(f"{key} is missing, although the manifest names it.") from error
            known = None
        if known is None:
            self._forget_old_rechecks()
            self._missing.value += 1
            known = _Recheck()
            self._spawn(self._refresh(manifest, entry.segment_id, key, known))
            self._rechecks[key] = known
        return RemoteWait(known.waiters)

    def _look_again(self, manifest: SegmentManifest, at: TopicIdPartition, offset: Offset) -> RemoteWait:
        """Read the manifest again because no segment covers an offset that the local log has not either: it may lack entries (T4).

        Raises: RequestRejected OFFSET_OUT_OF_RANGE below the log start. If the manifest was just read also past the tiered end, and
        CorruptionError if records are missing; the error that has kept it from being read.
        """
        out_of_range = RequestRejected(ErrorCode.OFFSET_OUT_OF_RANGE, f"No remote segment of {at} covers {offset}.")
        if offset < manifest.log_start_offset:
            raise out_of_range  # it never goes back
        key = f"{at.topic_id}/{at.partition}"
        known = self._rechecks.get(key)
        if known is not None and known.done:
            if known.expires_s >= _now_s():
                if known.error is not None:
                    raise copy_of(known.error)
                if offset < manifest.tiered_end:
                    raise CorruptionError(f"No segment of {at} covers {offset}, and nothing has expired there.")
                raise out_of_range
            known = None
        if known is None:
            self._forget_old_rechecks()
            known = _Recheck()
            self._spawn(self._poll(manifest, known))
            self._rechecks[key] = known
        return RemoteWait(known.waiters)

    async def _poll(self, manifest: SegmentManifest, check: _Recheck) -> None:
        try:
            await manifest.refresh()
        except FirnError as error:
            check.error = without_frames(error)
            check.expires_s = _now_s() + FOOTER_ERROR_S
        else:
            check.expires_s = _now_s() + RECHECK_S
        check.done = True
        check.waiters.wake()

    def _forget_old_rechecks(self) -> None:
        now_s = _now_s()
        for old in [old for old, check in self._rechecks.items() if check.done and check.expires_s < now_s]:
            del self._rechecks[old]

    async def _refresh(self, manifest: SegmentManifest, segment_id: uuid.UUID, key: str, check: _Recheck) -> None:
        try:
            await manifest.refresh()
        except FirnError:
            # Not known to be gone: the read that is woken meets the missing object again and says so.
            self._missing.value += 1
        self._cache.forget_object(key)
        slot = self._footers.get(segment_id)
        if slot is not None and slot.error is not None:
            self._forget_footer(segment_id)
        check.done = True
        check.expires_s = _now_s() + RECHECK_S
        check.waiters.wake()

    # --- read-ahead -------------------------------------------------------------------------------------------------

    def stream_at(self, at: TopicIdPartition, offset: Offset) -> _Stream:
        stream = self._streams.get((at, offset))
        now_s = _now_s()
        if stream is None:
            stream = _Stream((at, offset), now_s, offset)
            self._streams[at, offset] = stream
            while len(self._streams) > STREAMS_MAX or next(iter(self._streams.values())).used_s < now_s - STREAM_IDLE_S:
                _, idle = self._streams.popitem(last=False)
                self._set_window(idle, 0)
        else:
            stream.used_s = now_s
            self._streams.move_to_end((at, offset))
        return stream

    def _note_stall(self, stream: _Stream) -> None:
        """A sequential reader waits. If its window was full, it was too small, and is doubled once for this wait."""
        if stream.reads and not stream.stalled:
            stream.stalled = True
            self._stalls.value += 1
            if stream.is_full:
                self.grow(stream, stream.window_bytes)

    def _note_served(self, stream: _Stream, at: TopicIdPartition, end: Offset) -> None:
        if stream.place != (at, end):
            del self._streams[stream.place]
            other = self._streams.pop((at, end), None)
            if other is not None:
                self._set_window(other, 0)
            self._streams[at, end] = stream
            stream.place = at, end
        stream.reads += 1
        stream.stalled = False
        while stream.ahead and stream.ahead[0][0] <= end:
            stream.ahead_bytes -= stream.ahead.popleft()[1]

    def grow(self, stream: _Stream, by_bytes: int) -> None:
        while self._window_bytes + by_bytes > self._read_ahead_bytes:
            oldest = next(iter(self._streams))
            idle = self._streams[oldest]
            if idle is stream or idle.used_s > _now_s() - WINDOW_IDLE_S:
                break
            # Readers leave without a word, and one that comes back begins again: it does not starve the others meanwhile.
            del self._streams[oldest]
            self._set_window(idle, 0)
        # A window of more than may be under way would not keep its reader from waiting either.
        wanted_bytes = max(0, min(by_bytes, READ_BYTES_MAX - stream.window_bytes))
        free_bytes = self._read_ahead_bytes - self._window_bytes
        if wanted_bytes > free_bytes:
            free_bytes += self._take_from_larger(stream, wanted_bytes - free_bytes)
        self._set_window(stream, stream.window_bytes + min(wanted_bytes, free_bytes))

    def _take_from_larger(self, stream: _Stream, wanted_bytes: int) -> int:
        """Shrink windows with more than an equal share, the largest first, for a window with less. Returns: freed bytes.

        Chunks that a shrunk window has read ahead stay. Its next chunk is requested when enough of them were served.
        """
        share_bytes = self._read_ahead_bytes // (self._windows + (0 if stream.window_bytes else 1))
        wanted_bytes = left_bytes = max(0, min(wanted_bytes, share_bytes - stream.window_bytes))
        if not wanted_bytes or (self._nothing_above_bytes is not None and self._nothing_above_bytes <= share_bytes):
            return 0
        holders = [one for one in self._streams.values() if one.window_bytes and one is not stream]
        for holder in sorted(holders, key=lambda one: one.window_bytes, reverse=True):
            spared_bytes = holder.window_bytes - max(share_bytes, holder.window_bytes_min)
            if left_bytes <= 0:
                break
            if spared_bytes <= 0:
                continue  # its chunks are larger than those of others
            taken_bytes = min(left_bytes, spared_bytes)
            self._set_window(holder, holder.window_bytes - taken_bytes)
            left_bytes -= taken_bytes
        if left_bytes == wanted_bytes:
            self._nothing_above_bytes = share_bytes
        return wanted_bytes - left_bytes

    def _set_window(self, stream: _Stream, window_bytes: int) -> None:
        if window_bytes == stream.window_bytes:
            return
        self._window_bytes += window_bytes - stream.window_bytes
        self._windows += (window_bytes > 0) - (stream.window_bytes > 0)
        self._nothing_above_bytes = None
        stream.window_bytes = window_bytes

    def _extend(self, stream: _Stream, manifest: SegmentManifest, offset: Offset) -> None:
        """Request chunks ahead until the window is full. ``offset`` is the reader's position."""
        if stream.reads < 2 and not stream.stalled:
            return  # it may be after a single record
        at = max(stream.asked_end, offset)
        for entry, slot in self._segments_from(manifest, at):
            self._ask_footers(stream, manifest, entry)
            footer = slot.footer
            if footer is None:
                self._extend_after(stream, slot.waiters)
                return
            for index in range(footer.chunk_index_of(max(at, entry.base_offset)), len(footer.chunks)):
                chunk = footer.chunks[index]
                if stream.window_bytes_min > 2 * chunk.raw_bytes:
                    self._nothing_above_bytes = None  # others may take more of this window now
                stream.window_bytes_min = 2 * chunk.raw_bytes
                if stream.window_bytes < stream.window_bytes_min:
                    self.grow(stream, stream.window_bytes_min - stream.window_bytes)
                stream.is_full = stream.ahead_bytes + chunk.raw_bytes > stream.window_bytes
                if stream.is_full:
                    return
                if not self._cache.ask_ahead(slot.key, chunk):
                    return
                end = footer.chunk_end_offset(index)
                stream.ahead.append((end, chunk.raw_bytes))
                stream.ahead_bytes += chunk.raw_bytes
                stream.asked_end = end
        # No chunk is left to ask for: other streams may need the part of the window beyond the chunks on their way.
        self._set_window(stream, min(stream.window_bytes, stream.ahead_bytes))

    def _ask_footers(self, stream: _Stream, manifest: SegmentManifest, entry: SegmentEntry) -> None:
        """Load the footers of the segments after ``entry`` that the window will reach."""
        asked = entry.segment_id, stream.window_bytes
        if stream.footers_asked == asked:
            return
        stream.footers_asked = asked
        left = stream.window_bytes
        for following, _ in self._segments_from(manifest, entry.end_offset):
            left -= following.size_bytes
            if left <= 0:
                return

    def _extend_after(self, stream: _Stream, footer: Waiters) -> None:
        """Extend the window when the footer is loaded, even if the reader has not come back yet."""
        if stream.awaits_footer:
            return
        stream.awaits_footer = True

        def extend() -> None:
            stream.awaits_footer = False
            self._extend_from_place(stream)

        footer.add(extend)

    def _extend_from_place(self, stream: _Stream) -> None:
        """Call ``_extend`` if the reader and its partition still exist."""
        at, offset = stream.place
        manifest = self._manifest_of(at)
        if manifest is not None and self._streams.get(stream.place) is stream:
            self._extend(stream, manifest, offset)

    def _segments_from(self, manifest: SegmentManifest, offset: Offset) -> Iterator[tuple[SegmentEntry, _FooterSlot]]:
        entry = manifest.find(offset)
        while entry is not None:
            try:
                slot = self._footer(manifest, entry)
            except FirnError:
                return  # the reader will meet the error when it gets there
            yield entry, slot
            entry = manifest.find(entry.end_offset)

    # --- lookups ----------------------------------------------------------------------------------------------------

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

    def _served(self, partition: TopicIdPartition) -> SegmentManifest:
        manifest = self._manifest_of(partition)
        if manifest is None:
            raise RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition} is not served here.")
        return manifest

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
                    _, footer = await self._loaded_footer(manifest, entry)
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
            key, footer = await self._loaded_footer(manifest, entry)
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
            await _woken(self._recheck(manifest, entry, error))
            return None, Offset(at)
        return None, entry.end_offset

    async def _loaded_footer(self, manifest: SegmentManifest, entry: SegmentEntry) -> tuple[str, SegmentFooter]:
        """Key of the object, and its footer."""
        while (footer := (slot := self._footer(manifest, entry)).footer) is None:
            await _woken(RemoteWait(slot.waiters))
        return slot.key, footer

    async def _ready_chunk(self, key: str, chunk: ChunkEntry) -> CachedChunk:
        while not (cached := self._cache.request(key, chunk)).ready:
            await _woken(RemoteWait(cached.waiters))
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
            self._reject_damaged(cached)
            raise
        finally:
            handle.release()


def _keep_block(cached: CachedChunk, block: int, start: int, data: memoryview) -> _Block:
    found = [(start + position, header) for position, header in iter_headers(data)]
    while len(cached.blocks) >= BLOCKS_KEPT_MAX:
        del cached.blocks[next(iter(cached.blocks))]
    cached.blocks[block] = found
    return found


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


async def _woken(wait: RemoteWait) -> None:
    woken = asyncio.Event()
    take_back = wait(woken.set)
    try:
        await woken.wait()
    finally:
        take_back()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
