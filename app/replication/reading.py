"""Reads of a partition in both of its tiers: the local log, and the object store below the local log start.

``read`` takes the bytes at hand and does not wait. If more are wanted, the result names the missing part: bytes of this
disk, bytes of the object store, or the reader's turn to read there. All other code that has to know in which tier an offset is asks
``PartitionReads`` as well: searches by time, and the ends of leader epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.errors import FirnError, StorageUnavailable, without_frames
from app.core.units import LeaderEpoch, Offset, TimestampMs
from app.hot.reads import FileRange, LocalRead, PageMiss
from app.tiering.read.waiting import RemoteWait

if TYPE_CHECKING:
    from app.core.seams import BlockingPool
    from app.hot import indexes
    from app.hot.log import PartitionLog
    from app.tiering.read.reader import RemoteReader
    from app.tiering.store import segment_format

    AbortedTransaction = indexes.AbortedTransaction | segment_format.AbortedTransaction

RANGES_MAX: Final = 16
"""Ranges of one read. Each range keeps a file open until it is released."""
SEARCHES_MAX: Final = 8
"""Searches of a partition by time. A search starts again if a start of the log moved meanwhile."""


class Awaited(NamedTuple):
    """Something that comes by itself: bytes that the object store was asked for, or a turn to ask."""

    add: Callable[[Callable[[], None]], Callable[[], None]]
    """Takes a function to call once, when it is worth reading again. Returns: a function that cancels this."""
    of_store: bool
    """Whether the object store was asked."""


class PartitionRead:
    """The bytes at hand of one read, in order and without gaps. Call ``release`` after use."""

    __slots__ = ("aborted", "end_offset", "is_cut", "is_local", "lacks", "length", "ranges")

    def __init__(self, offset: int) -> None:
        self.ranges: list[FileRange] = []
        self.length = 0
        """Bytes of all ranges."""
        self.end_offset = offset
        """The offset of the next read."""
        self.aborted: dict[tuple[int, int], AbortedTransaction] = {}
        """Aborted transactions in the ranges, by producer id and first offset, if committed records were asked for."""
        self.lacks: PageMiss | Awaited | None = None
        """Why the read ended, if the next bytes are not at hand. For a ``PageMiss``, fetch its bytes and read again."""
        self.is_cut = False
        """Whether the read ended because of its number of ranges, or because of an error that the next read will raise."""
        self.is_local = True
        """Whether no range is of the object store."""

    def release(self) -> None:
        """Let go of the files. The ranges cannot be read afterwards."""
        for one in self.ranges:
            one.release()
        self.ranges = []


class PartitionReads:
    """Reads both tiers of all partitions of a broker. Belongs to its loop."""

    def __init__(self, remote: RemoteReader, pool: BlockingPool) -> None:
        self._remote = remote
        self._pool = pool

    # --- records ------------------------------------------------------------------------------------------------------

    def read(
        self,
        log: PartitionLog,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int,
        committed: bool,
        min_one_batch: bool = True,
        enough_bytes: int = 1,
        turn: Callable[[], Awaited | None] | None = None,
    ) -> PartitionRead:
        """Whole batches from ``offset`` on, below ``end_offset``, at most ``max_bytes``: the bytes that are at hand.

        ``offset`` is not below the log start, and below ``end_offset``, which is the high watermark or the last stable offset. With
        ``min_one_batch`` the first batch comes even if it is larger (KIP-74). Reads continue across segments, and from the object
        store into the local log, because a reader that wants many bytes should not wait at every seam. After ``enough_bytes`` the
        object store is not asked for more. ``turn`` returns None if this reader may read from the object store now, or else
        its turn to wait for.

        Raises: FirnError, if it prevents the first range. RequestRejected: the offset is in neither tier (OFFSET_OUT_OF_RANGE),
        or the tier is not served here.
        """
        read = PartitionRead(offset)
        ranges = read.ranges
        try:
            while offset < end_offset and (read.length < max_bytes or not ranges):
                if len(ranges) >= RANGES_MAX:
                    read.is_cut = True
                    break
                room = max(max_bytes - read.length, 0)
                if offset < log.local_log_start_offset:
                    if ranges and read.length >= enough_bytes:
                        break
                    if turn is not None and (awaited := turn()) is not None:
                        read.lacks = awaited
                        break
                    remote = self._remote.read(
                        log.topic_id, log.partition, Offset(offset), room, min_one_batch=min_one_batch and not ranges
                    )
                    if isinstance(remote, RemoteWait):
                        read.lacks = Awaited(remote.waiters.add, True)
                        break
                    if not remote.length:
                        break
                    read.is_local = False
                    if committed:
                        for one in remote.aborted:
                            read.aborted[one.producer_id, one.first_offset] = one
                    for part in remote.ranges:
                        ranges.append(FileRange(part.handle, part.position, part.length, lasting=part.lasting))
                        read.length += part.length
                        read.end_offset = part.end_offset
                    offset = read.end_offset = remote.end_offset
                else:
                    local = log.plan_read(
                        offset, room, end_offset=end_offset, min_one_batch=min_one_batch and not ranges
                    )
                    if not local.length:
                        break
                    aborted = log.aborted_transactions(offset, local.end_offset) if committed else ()
                    # All below the end is committed, so nothing is ever written over it.
                    ranges.append(FileRange(local.handle, local.position, local.length, warm=local.warm, lasting=True))
                    for found in aborted:
                        read.aborted[found.producer_id, found.first_offset] = found
                    read.length += local.length
                    offset = read.end_offset = local.end_offset
                    if local.is_full:
                        break
        except PageMiss as miss:
            read.lacks = without_frames(miss)
        except FirnError:
            if not ranges:
                raise
            read.is_cut = True
        return read

    async def read_when_ready(
        self, log: PartitionLog, offset: int, max_bytes: int, *, end_offset: int, committed: bool
    ) -> PartitionRead:
        """Like ``read``, but indexes and headers that are not in memory are read in the pool. Raises: as ``read``."""
        while True:
            read = self.read(log, offset, max_bytes, end_offset=end_offset, committed=committed)
            if read.ranges or not isinstance(read.lacks, PageMiss):
                return read
            await read.lacks.fetch(self._pool)

    async def take(self, read: PartitionRead) -> bytes | bytearray:
        """The bytes of a read, which is released. Bytes that are not in the page cache are read in the pool, all at once.

        Raises: StorageUnavailable, CorruptionError.
        """
        try:
            parts = [
                LocalRead(one.handle, one.position, one.length, Offset(0), Offset(0), self._pool, one.warm)
                for one in read.ranges
            ]
            found = [part.try_read_now() for part in parts]
            missing = [number for number, data in enumerate(found) if data is None]
            late = await asyncio.gather(*(parts[number].read_bytes() for number in missing))
            for number, data in zip(missing, late, strict=True):
                found[number] = data
            return found[0] if len(found) == 1 and found[0] is not None else b"".join(data for data in found if data)
        finally:
            read.release()

    # --- searches -----------------------------------------------------------------------------------------------------

    async def offset_for_timestamp(
        self, log: PartitionLog, timestamp: TimestampMs
    ) -> tuple[TimestampMs, Offset] | None:
        """Timestamp and offset of the first record that is at least as new as ``timestamp``; None if there is none.

        The record may be at or past the high watermark. Raises: StorageUnavailable, also if the log's starts kept moving during the
        search; CorruptionError; FirnError.
        """

        async def search() -> tuple[TimestampMs, Offset] | None:
            if log.local_log_start_offset > log.log_start_offset:
                claimed = next((one.max_timestamp for one in log.segments() if one.size_bytes), timestamp)
                found = await self._remote.lookups.offset_for_timestamp(
                    log.topic_id,
                    log.partition,
                    timestamp,
                    claimed_from=log.local_log_start_offset if claimed >= timestamp else None,
                )
                if found is not None and log.log_start_offset <= found[1] < log.local_log_start_offset:
                    return found
            return await log.offset_for_timestamp(timestamp)

        return await _while_starts_stay(log, search)

    async def max_timestamp_offset(self, log: PartitionLog) -> tuple[TimestampMs, Offset] | None:
        """Timestamp and offset of the first record with the greatest timestamp; None if there is none. Raises: as
        ``offset_for_timestamp``."""

        async def search() -> tuple[TimestampMs, Offset] | None:
            tiered = log.local_log_start_offset > log.log_start_offset
            newest = await log.max_timestamp_offset()
            found = await self._remote.lookups.max_timestamp_offset(log.topic_id, log.partition) if tiered else None
            return found if found is not None and (newest is None or found[0] >= newest[0]) else newest

        return await _while_starts_stay(log, search)

    # --- leader epochs ------------------------------------------------------------------------------------------------

    def epoch_end(self, log: PartitionLog, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The greatest epoch not above ``epoch``, and the offset at which it ended; (-1, -1) if there is none.

        A log whose checkpoint of epochs was rebuilt from its batches knows the epochs of the local records alone. The manifest is
        asked until its epochs are in the log (ADR 0024, T7). Raises: RequestRejected if this broker knows no manifest.
        """
        found = log.epoch_end_offset(epoch)
        start = log.log_start_offset
        if log.local_log_start_offset > start and (found[0] < 0 or log.epoch_of(start) < 0):
            remote = self._remote.lookups.epoch_end_offset(log.topic_id, log.partition, epoch)
            if remote is not None:
                return remote
        return found


async def _while_starts_stay(
    log: PartitionLog, search: Callable[[], Awaitable[tuple[TimestampMs, Offset] | None]]
) -> tuple[TimestampMs, Offset] | None:
    """The result of a search during which no start of the log moved.

    Otherwise the result may be deleted, and records that left the local disk meanwhile may have been searched in neither tier.
    """
    for _ in range(SEARCHES_MAX):
        starts = log.log_start_offset, log.local_log_start_offset
        found = await search()
        if (log.log_start_offset, log.local_log_start_offset) == starts:
            return found
    raise StorageUnavailable(f"{log.topic}-{log.partition} moves to the tier faster than it can be searched.")
