"""The parts that all logs of one data directory share: file system, open files, loaded indexes, and the task that syncs logs.

A failed fdatasync is never retried: the kernel may have dropped the pages that it could not write, so a second call that succeeds
proves nothing (PostgreSQL learned this about fsync). The whole directory goes offline instead.

Tests: ``tests/hot/test_durability.py``, ``tests/hot/test_manager.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from app.core.errors import DirectoryOffline, FirnError, clause
from app.core.limits import MIB
from app.core.metrics import Registry
from app.core.seams import BlockingPool
from app.hot.descriptors import DescriptorCache, FileHandle
from app.hot.unreadable import UnreadableBatches
from app.machine.files import FileSystem

if TYPE_CHECKING:
    from app.hot.segments import Segment

T = TypeVar("T")

INDEX_MEMORY_BYTES_MAX: Final = 32 * MIB
"""Number of loaded indexes of rolled segments, over all partitions. Indexes of active segments are not counted."""

SYNCS_AT_ONCE_MAX: Final = 8
"""More syncs at a time do not help: the disk only reorders them."""


RECOVERY_POINTS_BEHIND_MAX: Final = 16
"""After so many moves of recovery points the checkpoint file is written at once, because recovery scans all bytes above them."""


class LogMetrics:
    """Counters of the hot tier."""

    __slots__ = ("problems", "rolls", "sync_seconds", "synced_bytes", "truncated_bytes")

    def __init__(self, registry: Registry) -> None:
        self.rolls = registry.counter("firn_log_rolls_total", "Segments rolled")
        self.synced_bytes = registry.counter(
            "firn_log_synced_bytes_total", "Bytes of segments made durable by fdatasync"
        )
        self.sync_seconds = registry.histogram("firn_log_sync_seconds", "Time of one sync of a partition's files")
        self.truncated_bytes = registry.counter("firn_log_recovery_truncated_bytes_total", "Bytes cut off by recovery")
        self.problems = registry.counter("firn_log_recovery_problems_total", "Damaged places that recovery found")


class SyncedLog(Protocol):
    """The part of a log that the shared tasks need: to sync it, and to take it out of use."""

    async def sync(self) -> None:
        """Sync all bytes written so far. Raises: StorageUnavailable; the directory is then offline."""
        ...

    def refuse(self, error: FirnError) -> None:
        """Raise ``error`` from every operation from now on."""
        ...


class LogDirectory:
    """Shared by all logs under one path. Belongs to the event loop."""

    def __init__(
        self,
        path: str,
        *,
        fs: FileSystem,
        pool: BlockingPool,
        rng: random.Random,
        descriptors_max: int,
        now_ms: Callable[[], int],
        registry: Registry | None = None,
    ) -> None:
        self.path = path
        self.now_ms = now_ms
        self.unreadable = UnreadableBatches(_say_nothing)
        """Gets the batches that lookups by time skip. The owner of the process replaces it."""
        self.fs = fs
        self.pool = pool
        self.rng = rng
        self.descriptors = DescriptorCache(fs, descriptors_max)
        self.indexes = IndexCache(INDEX_MEMORY_BYTES_MAX)
        self.syncer = Syncer()
        self.metrics = LogMetrics(registry if registry is not None else Registry())
        self.logs: dict[SyncedLog, None] = {}
        self.offline_reason: str | None = None
        self.on_offline: Callable[[str], None] | None = None
        """Called once, when the directory goes offline."""
        self.recovery_points_moved = 0
        """Moves of recovery points since the checkpoint file was last written."""
        self.write_checkpoint: Callable[[], None] = _nothing
        """Writes the recovery points of all logs at once, and blocks. The owner of the logs sets it."""
        self.housekeeping = asyncio.Event()
        """Set when there is background work for the owner."""
        self.trash: deque[str] = deque()
        """Files that the owner's background work will unlink."""
        self.trash_added = asyncio.Event()
        self.descriptors.on_pressure = self._sync_pinned

    def throw_away(self, path: str) -> None:
        """Unlink a file in the background, because freeing a large file takes long."""
        self.trash.append(path)
        self.trash_added.set()

    @property
    def checkpoint_due(self) -> bool:
        return self.recovery_points_moved >= RECOVERY_POINTS_BEHIND_MAX

    def note_recovery_point(self) -> None:
        """A recovery point has moved, so the checkpoint file on the disk is out of date."""
        self.recovery_points_moved += 1
        if self.recovery_points_moved == RECOVERY_POINTS_BEHIND_MAX:
            self.housekeeping.set()

    def go_offline(self, reason: str) -> None:
        """Stop serving this directory for good. From now on every operation of every log raises StorageUnavailable."""
        if self.offline_reason is not None:
            return
        self.offline_reason = reason
        for log in list(self.logs):
            log.refuse(DirectoryOffline(f"The log directory is offline: {clause(reason)}."))
        if self.on_offline is not None:
            self.on_offline(reason)

    def _sync_pinned(self, handle: FileHandle) -> None:
        log = handle.owner
        if log in self.logs:
            self.syncer.request(log)


def _say_nothing(line: str) -> None:
    del line


def _nothing() -> None:
    return None


class IndexCache:
    """Loaded indexes of rolled segments. The least recently used index is dropped first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._segments: OrderedDict[Segment, int] = OrderedDict()

    def used(self, segment: Segment) -> None:
        """The segment's index was just used or loaded. All its entries are in its files."""
        if segment in self._segments:
            self._segments.move_to_end(segment)
            return
        if segment.index is None:
            return
        size = segment.index.memory_bytes
        self._segments[segment] = size
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._segments) > 1:
            oldest, size = self._segments.popitem(last=False)
            self._bytes -= size
            oldest.index = None

    def forget(self, segment: Segment) -> None:
        self._bytes -= self._segments.pop(segment, 0)


class Syncer:
    """Runs the syncs that logs request: several logs at once, but only one sync of each log at a time."""

    def __init__(self) -> None:
        self._wanted: dict[SyncedLog, None] = {}
        self._running = 0
        self._wake = asyncio.Event()

    def request(self, log: SyncedLog) -> None:
        """Request a sync of the log. Requests that arrive before the sync begins count as one."""
        self._wanted[log] = None
        self._wake.set()

    def cancel(self, log: SyncedLog) -> None:
        """Cancel a requested sync that has not begun."""
        self._wanted.pop(log, None)

    async def run(self) -> None:
        """Serve requests until cancelled. Waiters of a log have already received its errors."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._wanted and self._running < SYNCS_AT_ONCE_MAX:
                    log = next(iter(self._wanted))
                    del self._wanted[log]
                    self._running += 1
                    group.create_task(self._sync(log))

    async def _sync(self, log: SyncedLog) -> None:
        try:
            await log.sync()
        except FirnError:
            # The waiters of the log have got the error, and the log refuses appends or tries again with the next request.
            return
        finally:
            self._running -= 1
            self._wake.set()


async def run_to_end(pool: BlockingPool, work: Callable[[], T]) -> T:
    """Like ``pool.run``, but a cancellation waits until ``work`` is done. Files that ``work`` uses therefore stay open."""
    task = asyncio.ensure_future(pool.run(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise
