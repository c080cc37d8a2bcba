"""How much of one log survives a loss of power, and the syncs that extend it.

Appends report their bytes. A sync is requested when there are many unsynced bytes, when a caller waits for them, or when a roll, a
clock or the owner needs one. A sync has three steps. It is planned on the event loop. It runs on a pool thread (``syncing.py``).
Then the event loop applies its result: the *synced end* rises to the log end of the plan. If the sync also wrote side files, the
*recovery point* rises too.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Sequence
from typing import Final, Protocol

from app.core.errors import DirectoryOffline, ErrorCode, FirnError, RequestRejected, StorageFull, clause, copy_of
from app.core.limits import MIB
from app.core.units import NO_TIMESTAMP, Offset
from app.hot.checkpoints import LEADER_EPOCHS_FILE, encode_leader_epochs
from app.hot.directory import LogDirectory, SyncedLog, run_to_end
from app.hot.epochs import LeaderEpochs
from app.hot.missing import LostRange
from app.hot.offset_queue import OffsetQueue, failed_wait
from app.hot.segment_list import SegmentList, has_stale_index
from app.hot.snapshots import ProducerSnapshots
from app.hot.syncing import SyncItem, SyncPlan, plan_aborted_write, plan_index_write
from app.machine.files import replace_file, storage_error

WRITE_BACK_BYTES: Final = 32 * MIB
"""Unsynced bytes that start a sync, so that the kernel never throttles appends because of dirty pages."""


class OwnerOfBytes(SyncedLog, Protocol):
    """The log whose durability is tracked."""

    path: str
    lost: Sequence[LostRange]

    @property
    def log_end_offset(self) -> Offset: ...

    def note_synced(self, plan: SyncPlan) -> None:
        """The synced end has risen to the planned end."""
        ...


class LogDurability:
    """Tracks the syncs of one log. Belongs to the event loop."""

    __slots__ = (
        "_checkpoint_wanted",
        "_directory",
        "_epochs",
        "_files",
        "_names_dirty",
        "_parent_dirty",
        "_path",
        "_ref",
        "_refusal",
        "_snapshots",
        "_syncing",
        "_waiting",
        "_wanted_end",
        "dirty_since_ms",
        "has_files",
        "recovery_point",
        "synced_end",
        "unsaved_bytes",
    )

    def __init__(self, log: OwnerOfBytes, directory: LogDirectory, *, new: bool, has_files: bool) -> None:
        """``new``: the name of the partition's directory may not be durable yet. Call ``adopt`` first."""
        self._ref = weakref.ref(log)
        self._directory = directory
        self._path = log.path
        self._parent_dirty = self._names_dirty = new
        self.has_files = has_files
        """Whether the log has a directory. Without it there is nothing to sync."""
        self._refusal: FirnError | None = None
        self._waiting = OffsetQueue()
        self._syncing: asyncio.Future[None] | None = None
        self.dirty_since_ms: int = NO_TIMESTAMP
        """Time of the first append that no sync has covered. The code that appends sets it."""

    @property
    def _log(self) -> OwnerOfBytes:
        """The log that owns this part. The reference is weak: a cycle would keep a deleted log until a rare garbage collection."""
        log = self._ref()
        assert log is not None, f"the log of {self._path} was deleted, but its parts are in use"
        return log

    def adopt(
        self, files: SegmentList, epochs: LeaderEpochs, snapshots: ProducerSnapshots, recovery_point: int
    ) -> None:
        """Track these contents of the log from now on. No sync may be under way."""
        self._files = files
        self._epochs = epochs
        self._snapshots = snapshots
        self.recovery_point = recovery_point
        """Everything below it, with the indexes and the producer state that go with it, survives a loss of power."""
        unsynced = [segment for segment in files.segments if segment.synced_bytes < segment.size_bytes]
        self.synced_end: int = recovery_point if unsynced else files.segments[-1].end_offset
        """Every record below it survives a loss of power."""
        self.unsaved_bytes = sum(segment.size_bytes - segment.synced_bytes for segment in unsynced)
        """Bytes appended since the last plan of a sync with side files. The code that appends adds to it."""
        self._checkpoint_wanted = False
        log_end = files.segments[-1].end_offset
        self._waiting.fail_above(
            log_end, RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The log was cut at {log_end}.")
        )
        self._wanted_end = 0
        """All records below it must be synced, even if no caller waits."""

    @property
    def syncing(self) -> bool:
        """Whether a sync is under way. It uses paths and handles, so it continues even if the log is abandoned."""
        return self._syncing is not None

    def refuse(self, error: FirnError) -> None:
        """Raise ``error`` from now on, also to all current waiters."""
        self._refusal = copy_of(error)
        self._waiting.fail(error)

    def note_new_names(self) -> None:
        """A file was created in the log's directory."""
        self._names_dirty = True

    def note_files_created(self) -> None:
        """The directory of the log and its first files were created."""
        self.has_files = True
        self._parent_dirty = self._names_dirty = True

    # --- asking for a sync ------------------------------------------------------------------------------------------

    def wait_synced(self, offset_end: int) -> Awaitable[None]:
        """An awaitable until all records below ``offset_end`` are synced. It raises StorageUnavailable if they cannot be."""
        if self._refusal is not None:
            return failed_wait(self._refusal)
        self._request()
        return self._waiting.wait(offset_end)

    def request_synced(self, offset_end: int) -> None:
        """Request a sync of all records below ``offset_end``, without waiting."""
        if offset_end > self.synced_end:
            self._wanted_end = max(self._wanted_end, offset_end)
            self._request()

    def request_checkpoint(self) -> None:
        """Request a sync of all records that also moves the recovery point."""
        self._checkpoint_wanted = True
        self._request()

    def request_if_due(self, end_offset: int, flush_messages: int) -> None:
        """Request a sync if many bytes, or ``flush.messages`` records, were appended since the last sync."""
        if self.unsaved_bytes >= WRITE_BACK_BYTES and not self._checkpoint_wanted:
            self.request_checkpoint()
        elif end_offset - self.synced_end >= flush_messages:
            self.request_synced(end_offset)

    def request_if_old(self, end_offset: int, now_ms: int, flush_ms: int) -> None:
        """Request a sync if ``flush.ms`` has passed since the first unsynced append, or if a requested sync could not begin."""
        if self._refusal is not None:
            return
        if self._wanted or (self.synced_end < end_offset and now_ms - self.dirty_since_ms >= flush_ms):
            self._request()

    def _request(self) -> None:
        log = self._ref()
        if log is not None:  # else it was deleted during a read
            self._directory.syncer.request(log)

    @property
    def _wanted(self) -> bool:
        """Whether a requested sync has not begun yet."""
        return bool(self._waiting) or self._checkpoint_wanted or self._wanted_end > self.synced_end

    # --- syncing ----------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Make all records up to the present log end durable, with indexes and producer state. The recovery point follows.

        Raises: StorageUnavailable.
        """
        end = self._log.log_end_offset
        while self.recovery_point < end or self._side_files_dirty():
            if self._refusal is not None:
                raise copy_of(self._refusal)
            if self._syncing is not None:
                await asyncio.shield(self._syncing)
                continue
            self._checkpoint_wanted = True
            await self.sync()
            if self.recovery_point < end and self._refusal is None:
                raise StorageFull(f"There is no room for the indexes of {self._path}.")

    def _side_files_dirty(self) -> bool:
        return self._names_dirty or self._parent_dirty or self._snapshots.pending

    async def flush_indexes(self) -> None:
        """Like ``flush``, and also write the indexes of later appends, so that the log can be closed.

        Raises: StorageUnavailable.
        """
        await self.flush()
        if self.unsaved_bytes or any(map(has_stale_index, self._files.segments)):
            self._checkpoint_wanted = True
            await self.sync()

    async def wait_indexes_written(self) -> None:
        """Wait until no sync will write index files of a rolled segment."""
        while self._syncing is not None and any(map(has_stale_index, self._files.segments[:-1])):
            await asyncio.shield(self._syncing)

    async def sync(self) -> None:
        """Sync all bytes written so far, in the pool. If a sync is running, only note that another one is needed.

        Raises: StorageUnavailable; the directory is offline then.
        """
        if self._syncing is not None:
            if self._wanted:
                await asyncio.shield(self._syncing)
                self._request()
            return
        if self._refusal is not None:
            raise copy_of(self._refusal)
        if not self.has_files:
            self._checkpoint_wanted = False
            return
        loop = asyncio.get_running_loop()
        done = self._syncing = loop.create_future()
        started = loop.time()
        plan: SyncPlan | None = None
        try:
            plan = self._plan()
            side_files_written = await run_to_end(self._directory.pool, plan.execute)
        except OSError as error:
            raise self._sync_failed(error) from error
        except asyncio.CancelledError:
            # The sync went on to its end, and the stop that cancelled must not retry a failed sync.
            if plan is not None and plan.failure is not None:
                self._sync_failed(plan.failure)
            raise
        else:
            self._directory.metrics.sync_seconds.observe(loop.time() - started)
            self._finish(plan, side_files_written)
        finally:
            if plan is not None:
                for item in plan.segments:
                    item.segment.handle.release()
            self._syncing = None
            done.set_result(None)

    def _sync_failed(self, error: OSError) -> FirnError:
        """Take the directory offline. Returns: the error to raise."""
        if self._refusal is not None:
            return copy_of(self._refusal)  # deleted meanwhile, and its directory is gone
        # Not retried after any error: the kernel may have dropped the pages that it could not write.
        failure = storage_error(error, f"Cannot sync {self._path}")
        self._directory.go_offline(str(failure))
        return DirectoryOffline(f"The log directory is offline: {clause(failure)}.")

    def _plan(self) -> SyncPlan:
        """Raises: StorageUnavailable if a file cannot be opened. Then all planned work remains to be done."""
        segments = self._acquire_unsynced()
        whole = self._checkpoint_wanted or self.unsaved_bytes >= WRITE_BACK_BYTES
        plan = SyncPlan(
            fs=self._directory.fs,
            directory=self._path,
            parent=self._directory.path if self._parent_dirty else None,
            new_names=self._names_dirty,
            end_offset=self._log.log_end_offset,
            whole=whole,
            segments=segments,
        )
        self._parent_dirty = self._names_dirty = False
        if whole:
            self._checkpoint_wanted = False
            self.unsaved_bytes = 0
            self._plan_side_files(plan)
        return plan

    def _acquire_unsynced(self) -> list[SyncItem]:
        """Open the files with bytes that no sync has covered, and hold them open. Raises: StorageUnavailable; then none is held."""
        items: list[SyncItem] = []
        try:
            for segment in self._files.unsynced():
                items.append(SyncItem(segment, segment.handle.acquire(), segment.size_bytes))
        except FirnError:
            for item in items:
                item.segment.handle.release()
            raise
        return items

    def _plan_side_files(self, plan: SyncPlan) -> None:
        for segment in self._files.segments:
            index_write = plan_index_write(segment)
            if index_write is not None:
                plan.indexes.append(index_write)
            aborted_write = plan_aborted_write(segment)
            if aborted_write is not None:
                plan.aborted.append(aborted_write)
        plan.snapshots.update(self._snapshots.take_for_sync(plan.end_offset))
        plan.bases = frozenset(self._files.bases)
        plan.lost = tuple(self._log.lost)
        if self._epochs.dirty:
            plan.epochs = encode_leader_epochs(self._epochs.entries())

    def _finish(self, plan: SyncPlan, side_files_written: bool) -> None:
        if self._refusal is not None:
            return  # deleted or offline meanwhile: it is not needed, and a new log may have the directory of this name
        if plan.epochs is not None and plan.epochs != encode_leader_epochs(self._epochs.entries()):
            # An epoch began while the thread wrote; the file may hold the earlier epochs.
            self.write_epochs()
        for item in plan.segments:
            segment = item.segment
            self._directory.metrics.synced_bytes.value += item.size_bytes - segment.synced_bytes
            segment.synced_bytes = item.size_bytes
            if segment.synced_bytes == segment.size_bytes and not segment.deleted:
                self._directory.descriptors.unpin(segment.handle)
        self.synced_end = max(self.synced_end, plan.end_offset)
        if plan.whole:
            if side_files_written:
                self._finish_side_files(plan)
                self.recovery_point = max(self.recovery_point, plan.end_offset)
            else:
                self._names_dirty = True
        self._waiting.reached(self.synced_end)
        self._log.note_synced(plan)
        if self._wanted:
            self._request()

    def _finish_side_files(self, plan: SyncPlan) -> None:
        for write in plan.indexes:
            segment = write.segment
            segment.index_written, segment.times_written = write.entries, write.times
        for aborted in plan.aborted:
            aborted.segment.aborted_written = aborted.entries
        self._snapshots.written(plan.snapshots)
        if plan.epochs is not None and plan.epochs == encode_leader_epochs(self._epochs.entries()):
            self._epochs.dirty = False
        for segment in self._files.segments[:-1]:
            if segment.index is not None and not segment.deleted:
                self._directory.indexes.used(segment)
        self._directory.note_recovery_point()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def write_epochs(self) -> None:
        """Write the checkpoint of leader epochs now, if the disk has space.

        Raises: StorageUnavailable; the directory is offline then.
        """
        if not self.has_files:
            return  # the first sync of the log writes them
        # Not synced here: after a loss of power a damaged checkpoint is rebuilt from the batches, and the next sync that moves the
        # recovery point makes it durable first.
        try:
            replace_file(
                self._directory.fs,
                f"{self._path}/{LEADER_EPOCHS_FILE}",
                encode_leader_epochs(self._epochs.entries()),
                durable=False,
            )
        except OSError as error:
            failure = storage_error(error, f"Cannot write the leader epochs of {self._path}")
            if not isinstance(failure, StorageFull):
                self._directory.go_offline(str(failure))
                raise failure from error

    def lower_recovery_point(self, offset: int) -> None:
        """Durably note that recovery must not trust records from ``offset`` on. Called before a truncation. Raises: OSError."""
        if self.recovery_point > offset:
            self.recovery_point = Offset(offset)
            self._directory.write_checkpoint()
