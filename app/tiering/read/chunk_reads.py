"""The part of a cached chunk that a read returns: ranges of whole batches, found by the chunk's batch index.

Tests: ``tests/tiering/test_reader.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from contextvars import Context
from typing import Final, NamedTuple

from app.core.errors import CorruptionError, StorageUnavailable, clause
from app.core.faults import Faults
from app.core.metrics import Counter, Registry
from app.core.seams import BlockingPool
from app.core.units import Offset
from app.core.wake import Wake
from app.hot.descriptors import FileHandle
from app.machine.files import File, storage_error
from app.objectstore.api import ObjectMissing
from app.records.batch import BatchHeader, iter_headers
from app.tiering.read.chunk_cache import CachedChunk, ChunkCache
from app.tiering.read.waiting import ReadTasks, RemoteWait
from app.tiering.store.segment_format import ChunkEntry

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


PAST: Final = RemoteRange(None, -1, 0, Offset(-1), Offset(-1))  # type: ignore[arg-type] # only ever compared by identity


class ChunkReads:
    """Ranges of cached chunks. Belongs to one event loop."""

    def __init__(
        self, cache: ChunkCache, tasks: ReadTasks, *, pool: BlockingPool, registry: Registry, faults: Faults | None
    ) -> None:
        self._cache, self._tasks, self._pool = cache, tasks, pool
        self._fault_log = faults
        self._corruptions = corruption_counter(registry)

    def cut(
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
        """The range of a chunk for a read. None: its first batch does not fit. ``PAST``: the chunk has no batch from there on."""
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
                return PAST
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
            self.reject_damaged(cached)
            raise
        finally:
            handle.release()
        waiters = cached.block_waiters[block] = Wake()
        handle.acquire()
        # In an empty context: it wakes requests that have other traces.
        self._tasks.spawn(self._load_block(cached, handle, file, block, start, buffer), context=Context())
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
            self.reject_damaged(cached)
        finally:
            handle.release()
            cached.block_waiters.pop(block).wake()

    def reject_damaged(self, cached: CachedChunk) -> None:
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


def corruption_counter(registry: Registry) -> Counter:
    """The counter of chunks and footers with wrong bytes."""
    return registry.counter(
        "firn_remote_corruptions_total", "Chunks and footers whose bytes differ from the written bytes"
    )


def _keep_block(cached: CachedChunk, block: int, start: int, data: memoryview) -> _Block:
    found = [(start + position, header) for position, header in iter_headers(data)]
    while len(cached.blocks) >= BLOCKS_KEPT_MAX:
        del cached.blocks[next(iter(cached.blocks))]
    cached.blocks[block] = found
    return found
