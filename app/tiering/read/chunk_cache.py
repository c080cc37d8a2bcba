"""The chunk cache: raw chunks of remote segments on the local disk, shared by all readers of a broker.

Guarantees:

- A started read of the store is never cancelled. Its result serves all readers that request the chunk.
- There is at most one read of a chunk at a time, however many readers request it.
- Entries never change. A requested entry is pinned until it is served. An entry that a sequential reader is still reading is
  pinned until the reader reaches its end, for at most ``PIN_S`` each time. Pinned entries are not evicted, so a client finds
  the data when it comes back. Eviction skips an entry once if it was read ahead and not served yet: such an entry was used
  longer ago than entries that readers have finished, but it will be requested next.
- If pins and reads under way fill the budget, further reads queue in the order of their arrival. Read-ahead is refused instead. A
  queued read is dropped if no reader waits for it and none has requested it within ``PIN_S``: readers leave without notice, and
  other readers must not wait for their requests.
- The bytes of entries and of reads under way stay within the budget. The only exception is a single chunk that is larger than the
  budget.
- Files of an earlier run are deleted at start, because the process that checked their checksums is gone.

If objects are local files, a verbatim chunk is served from its object: its entry takes no space.

A failed read leaves its error in the entry for waiting readers, for at most ``ERROR_S``. Then the next request tries again. All
state changes happen in synchronous methods on the event loop; ``run`` owns the tasks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextvars import Context
from dataclasses import dataclass, field
from typing import Final

from app.core.errors import CorruptionError, FirnError, StorageUnavailable, copy_of, without_frames
from app.core.faults import Faults
from app.core.limits import MIB
from app.core.loop_time import loop_time_s
from app.core.metrics import Registry
from app.core.seams import BlockingPool
from app.core.wake import Wake
from app.hot.descriptors import DescriptorCache, FileHandle
from app.machine.files import FileSystem, storage_error, unlink_quietly
from app.records.batch import BatchHeader
from app.tiering.store.segment_format import ChunkEntry
from app.tiering.store.store_work import BatchIndex, ChunkLocation, StoreWork

PIN_S: Final = 5.0
"""A client that continues comes back at once. A client that left must not delay others."""
ERROR_S: Final = 1.0
READS_MAX: Final = 32
"""Maximum chunk reads under way: enough to hide 100 ms a request at a GB/s with chunks of 4 MiB."""
READ_BYTES_MAX: Final = 128 * MIB
"""Maximum raw bytes of chunk reads under way, because the store process holds them in memory. A single larger read is allowed."""
ENTRIES_MAX: Final = 16_384
"""Maximum entries. An entry takes a few KiB of memory for its batch index, even if it takes no space on the disk."""
QUEUE_MAX: Final = 16_384
"""Maximum requested chunks that wait for space. Further requests are refused as if the store were unreachable."""

ChunkKey = tuple[str, int]
"""Object key, and position of the chunk in the object."""


@dataclass(slots=True, eq=False)
class CachedChunk:
    """One chunk: waiting, being read, ready, or failed."""

    key: ChunkKey
    chunk: ChunkEntry
    handle: FileHandle | None = None
    """Handle of the file that contains the chunk, when it is ready."""
    position: int = 0
    """Position of the chunk's first byte in that file."""
    batches: BatchIndex | None = None
    error: FirnError | None = None
    pinned_until_s: float = 0.0
    """End of the pin, in loop time; 0 if not pinned."""
    requested: bool = False
    """Whether a reader waits for the chunk, and not only read-ahead."""
    requested_s: float = 0.0
    """Loop time of the last request by a reader."""
    passed_over: bool = False
    """Whether the chunk was served, or eviction has already skipped it once."""
    reading: bool = False
    charged_bytes: int = 0
    expires_s: float = 0.0
    """Loop time at which a failed entry is forgotten."""
    waiters: Wake = field(default_factory=Wake)
    """Woken when the chunk is ready or has failed."""
    blocks: dict[int, list[tuple[int, BatchHeader]]] = field(default_factory=dict)
    """By index entry: (position in the chunk, header) of the batches from this entry of the batch index to the next. Kept for reads
    that start within a block."""
    block_waiters: dict[int, Wake] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return self.handle is not None

    @property
    def in_place(self) -> bool:
        """Whether the chunk is in an object of the store, which never changes. Files of the cache are reused."""
        return self.ready and not self.charged_bytes


class ChunkCache:
    """See the module's docstring."""

    def __init__(
        self,
        work: StoreWork,
        directory: str,
        capacity_bytes: int,
        *,
        fs: FileSystem,
        pool: BlockingPool,
        descriptors: DescriptorCache,
        registry: Registry,
        faults: Faults | None = None,
    ) -> None:
        self._fault_log = faults
        self._work, self._directory, self._capacity_bytes = work, directory, capacity_bytes
        self._fs, self._pool, self._descriptors = fs, pool, descriptors
        self._entries: OrderedDict[ChunkKey, CachedChunk] = OrderedDict()
        """Entries by key. Ready and failed entries are in order of use, the longest unused first."""
        self._queue: deque[CachedChunk] = deque()
        self._objects: dict[str, tuple[FileHandle, int]] = {}
        """Handles of objects that are served in place, with the number of their entries."""
        self._unlinks: deque[str] = deque()
        self._spares: list[str] = []
        """Unused files that reads of this turn of the loop can reuse. The remaining files are deleted."""
        self._reading = self._reading_bytes = 0
        self._used_bytes = 0
        self._file_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup | None = None
        self._unlink_wanted = asyncio.Event()
        self.latency_s = 0.05
        """Smoothed duration of a chunk read."""
        self._hits = registry.counter("firn_chunk_cache_hits_total", "Requested chunks that the cache had")
        self._misses = registry.counter(
            "firn_chunk_cache_misses_total", "Requested chunks that were read from the store"
        )
        self._failures = registry.counter("firn_chunk_cache_failures_total", "Chunk reads that failed")
        self._corruptions = registry.counter(
            "firn_remote_corruptions_total", "Chunks and footers whose bytes differ from the written bytes"
        )
        self._read_bytes = registry.counter(
            "firn_chunk_cache_read_bytes_total", "Raw bytes of chunks read from the store"
        )
        registry.gauge("firn_chunk_cache_used_bytes", "Space that chunks use", lambda: [((), self._used_bytes)])
        registry.gauge("firn_chunk_cache_queued_chunks", "Chunks that wait for space", lambda: [((), len(self._queue))])

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Delete an earlier run's files, then serve until cancelled. Reads that are requested before wait for this.

        Raises: StorageUnavailable if the directory cannot be used.
        """
        await self._pool.run(self._drop_all_files)
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                self._start_reads()
                while True:
                    await self._unlink_wanted.wait()
                    self._unlink_wanted.clear()
                    await self._unlink_evicted()
            finally:
                self._group = None
                if self._timer is not None:
                    self._timer.cancel()

    def _drop_all_files(self) -> None:
        try:
            self._fs.make_dirs(self._directory)
            for name in self._fs.list_dir(self._directory):
                unlink_quietly(self._fs, f"{self._directory}/{name}")
        except OSError as error:
            raise storage_error(error, f"Cannot use the chunk cache {self._directory}") from error

    async def _unlink_evicted(self) -> None:
        self._unlinks.extend(self._spares)
        self._spares.clear()
        while self._unlinks:
            paths = [self._unlinks.popleft() for _ in range(min(64, len(self._unlinks)))]

            def work(paths: list[str] = paths) -> None:
                for path in paths:
                    unlink_quietly(self._fs, path)

            try:
                await self._pool.run(work)
            except OSError as error:
                # The file stays until the next start, which drops everything; its room is counted as free meanwhile.
                self._failures.value += 1
                if self._fault_log is not None:
                    failure = storage_error(error, f"Cannot delete files of the chunk cache {self._directory}")
                    self._fault_log.met_error("deleting from", "the chunk cache", failure)

    # --- asking -----------------------------------------------------------------------------------------------------

    def request(self, object_key: str, chunk: ChunkEntry) -> CachedChunk:
        """The entry of a chunk that a reader needs now. Reads the chunk unless it is ready, and pins it until it is served.

        If the entry is not ``ready`` yet, its ``waiters`` are woken when it is ready or has failed. Then call this again.
        Raises: the error of a read that failed within the last ``ERROR_S``; StorageUnavailable if too many chunks wait.
        """
        now_s = loop_time_s()
        key = (object_key, chunk.position)
        entry = self._entries.get(key)
        if entry is not None and entry.error is not None:
            if entry.expires_s >= now_s:
                raise copy_of(entry.error)
            self._forget(entry)
            entry = None
        if entry is None:
            if len(self._queue) >= QUEUE_MAX:
                raise StorageUnavailable(f"{QUEUE_MAX} chunks wait to be read from the object store.")
            self._misses.value += 1
            entry = CachedChunk(key, chunk)
            self._entries[key] = entry
            self._queue.append(entry)
        elif entry.ready:
            self._hits.value += 1
            self._entries.move_to_end(key)
            return entry
        entry.requested = True
        entry.requested_s = now_s
        if not entry.reading:
            self._start_reads()
        return entry

    def peek(self, object_key: str, chunk: ChunkEntry) -> CachedChunk | None:
        """The entry of a chunk if it is ready. Never reads the store."""
        entry = self._entries.get((object_key, chunk.position))
        return entry if entry is not None and entry.ready else None

    def ask_ahead(self, object_key: str, chunk: ChunkEntry) -> bool:
        """Read a chunk that will probably be needed. Returns: whether it is ready or under way now.

        Refused while pins and reads use the budget, or requested chunks wait.
        """
        key = (object_key, chunk.position)
        if key in self._entries:
            return True
        if self._queue or self._group is None or not self._may_read(chunk) or not self._make_room(chunk.raw_bytes):
            return False
        entry = CachedChunk(key, chunk)
        self._entries[key] = entry
        self._start(entry)
        return True

    def served(self, entry: CachedChunk, *, goes_on: bool = False) -> None:
        """A reader gets bytes of the entry. The pin ends with this turn of the loop, in which the reader acquires the handle.

        ``goes_on``: a sequential reader has not reached the end of the chunk, so the chunk stays pinned. Otherwise requests of
        other readers could evict it, and it would be read again for each of the reader's requests.
        """
        entry.passed_over = True
        if goes_on:
            entry.pinned_until_s = loop_time_s() + PIN_S
        elif entry.pinned_until_s:
            entry.pinned_until_s = 0.0
            if self._queue:
                # Not now: the room may be that of this entry, whose file the reader is about to hold.
                # In an empty context: a trace of the present request has no part in reads of others.
                asyncio.get_running_loop().call_soon(self._start_reads, context=Context())

    def forget_object(self, object_key: str) -> None:
        """Drop the cached chunks of a deleted object. Reads under way continue."""
        for entry in [entry for key, entry in self._entries.items() if key[0] == object_key]:
            if entry.ready or entry.error is not None:
                self._forget(entry)

    def reject(self, entry: CachedChunk) -> None:
        """Forget an entry whose file turned out to be unreadable."""
        if self._entries.get(entry.key) is entry:
            self._forget(entry)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _start_reads(self) -> None:
        """Start queued reads, in order, while the budget allows."""
        if self._group is None:
            return
        while self._queue and self._may_read(self._queue[0].chunk):
            if self._is_abandoned(self._queue[0]):
                self._forget(self._queue.popleft())
                continue
            if not self._make_room(self._queue[0].chunk.raw_bytes):
                self._arm_timer()
                return
            self._start(self._queue.popleft())

    def _is_abandoned(self, entry: CachedChunk) -> bool:
        return not entry.waiters and entry.requested_s + PIN_S < loop_time_s()

    def _may_read(self, chunk: ChunkEntry) -> bool:
        """Whether one more read may be under way."""
        return self._reading < READS_MAX and (
            not self._reading or self._reading_bytes + chunk.raw_bytes <= READ_BYTES_MAX
        )

    def _make_room(self, raw_bytes: int) -> bool:
        now_s = loop_time_s()
        while self._used_bytes + raw_bytes > self._capacity_bytes or len(self._entries) > ENTRIES_MAX:
            over_bytes = self._used_bytes + raw_bytes > self._capacity_bytes
            victim = next(
                (
                    entry
                    for entry in self._entries.values()
                    if (entry.ready and entry.pinned_until_s <= now_s and (entry.charged_bytes or not over_bytes))
                    or (entry.error is not None and entry.expires_s < now_s and not over_bytes)
                ),
                None,
            )
            if victim is None:
                return self._used_bytes == 0
            if victim.ready and not victim.passed_over:
                victim.passed_over = True
                self._entries.move_to_end(victim.key)
                continue
            self._forget(victim)
        return True

    def _arm_timer(self) -> None:
        """Check the queue again when the oldest pin ends."""
        pins = [entry.pinned_until_s for entry in self._entries.values() if entry.pinned_until_s > loop_time_s()]
        if not pins:
            return  # only reads under way fill the budget; their end starts the next
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(min(pins) + 0.001, self._start_reads, context=Context())

    def _start(self, entry: CachedChunk) -> None:
        assert self._group is not None
        assert not entry.reading
        assert not entry.ready
        entry.reading = True
        entry.charged_bytes = entry.chunk.raw_bytes
        self._used_bytes += entry.charged_bytes
        self._reading += 1
        self._reading_bytes += entry.chunk.raw_bytes
        is_spare = bool(self._spares)
        if is_spare:
            path = self._spares.pop()
        else:
            self._file_count += 1
            path = f"{self._directory}/{self._file_count}.chunk"
        self._group.create_task(self._read(entry, path, is_spare))

    async def _read(self, entry: CachedChunk, path: str, was_spare: bool) -> None:
        started_s = loop_time_s()
        try:
            location = await self._work.fetch_chunk(entry.key[0], entry.chunk, path)
        except FirnError as error:
            self._failures.value += 1
            if isinstance(error, CorruptionError):
                self._corruptions.value += 1
            self._finish(entry)
            self._uncharge(entry)
            self._unlink(path)
            if entry.requested:
                entry.error = without_frames(error)
                entry.expires_s = loop_time_s() + ERROR_S
            else:
                self._forget(entry)
        except BaseException:
            self._finish(entry)
            self._uncharge(entry)
            self._forget(entry)
            raise
        else:
            self.latency_s += 0.2 * (loop_time_s() - started_s - self.latency_s)
            self._read_bytes.value += entry.chunk.raw_bytes
            self._finish(entry)
            if not location.in_cache and was_spare:
                self._unlink(path)
            self._keep(entry, location)
        entry.waiters.wake()
        self._start_reads()

    def _finish(self, entry: CachedChunk) -> None:
        entry.reading = False
        self._reading -= 1
        self._reading_bytes -= entry.chunk.raw_bytes

    def _uncharge(self, entry: CachedChunk) -> None:
        self._used_bytes -= entry.charged_bytes
        entry.charged_bytes = 0

    def _keep(self, entry: CachedChunk, location: ChunkLocation) -> None:
        entry.position = location.position
        entry.batches = BatchIndex(location.batch_index)
        if entry.requested:
            entry.pinned_until_s = loop_time_s() + PIN_S
        if location.in_cache:
            entry.handle = FileHandle(self._descriptors, location.path)
            return
        self._uncharge(entry)
        handle, users = self._objects.get(location.path, (None, 0))
        if handle is None:
            handle = FileHandle(self._descriptors, location.path)
        self._objects[location.path] = (handle, users + 1)
        entry.handle = handle

    def _forget(self, entry: CachedChunk) -> None:
        assert not entry.reading
        del self._entries[entry.key]
        handle = entry.handle
        if handle is None:
            return
        entry.handle = None
        if entry.charged_bytes:
            self._uncharge(entry)
            # If the file is overwritten, its pages need not be made again; but a reader at work keeps the bytes that it began with.
            is_spare = handle.users == 0
            self._descriptors.delete(handle)
            self._unlink(handle.path, is_spare=is_spare)
            return
        _, users = self._objects[handle.path]
        if users > 1:
            self._objects[handle.path] = (handle, users - 1)
        else:
            del self._objects[handle.path]
            self._descriptors.delete(handle)

    def _unlink(self, path: str, *, is_spare: bool = False) -> None:
        """Keep a file for the next read, or else unlink it."""
        (self._spares if is_spare else self._unlinks).append(path)
        self._unlink_wanted.set()

    # --- looking ----------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def capacity_bytes(self) -> int:
        return self._capacity_bytes
