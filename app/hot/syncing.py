"""One sync of a log as data. It is planned on the event loop and executed on a pool thread. The loop then applies its result.

There are two kinds. An ordinary sync makes batches durable; acknowledgements under ``firn.durability=disk`` wait for it. A
*whole* sync also writes the side files (indexes, transaction index, producer snapshots, leader epochs), and then the recovery
point may move.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from app.core.limits import MIB
from app.core.units import Offset
from app.hot.checkpoints import LEADER_EPOCHS_FILE, PARTITION_METADATA_FILE
from app.hot.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, TRANSACTION_ENTRY_BYTES, encode_aborted
from app.hot.missing import LostRange, within
from app.hot.producers import SnapshotRow, encode_snapshot
from app.hot.recovery import list_snapshots, snapshot_path
from app.hot.segments import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, Segment
from app.machine.files import FULL_ERRNOS, File, FileSystem, replace_file, unlink_quietly, write_whole

WRITER: Final = ".sync"
"""Guards files that a sync writes on a pool thread while the event loop may write the same leader epochs or snapshot."""

WRITE_BACK_STEP_BYTES: Final = 1 * MIB
"""Bytes written to the disk at a time. An append waits while the file system finds blocks for written bytes or updates its own data
(``i_data_sem`` of ext4): 20 ms and more for 32 MiB at once, 2 ms for each of these pieces."""

WRITE_BACK_STEPS_MAX: Final = 64
"""Maximum steps of one sync. If appends outrun small steps, the steps grow, before the kernel throttles appends."""


class SyncItem(NamedTuple):
    segment: Segment
    file: File
    size_bytes: int


class IndexWrite(NamedTuple):
    segment: Segment
    offset_data: bytes
    time_data: bytes
    first_entry: int
    first_time: int
    entries: int
    times: int


class AbortedWrite(NamedTuple):
    segment: Segment
    data: bytes
    first_entry: int
    entries: int


@dataclass(slots=True, kw_only=True)
class SyncPlan:
    """One sync as data: created on the loop, executed on a thread. The loop applies its result."""

    fs: FileSystem
    directory: str
    parent: str | None
    """The data directory, if the partition's own name in it is not durable yet."""
    new_names: bool
    end_offset: int
    whole: bool
    """Whether the sync writes side files. The recovery point may move afterwards."""
    segments: list[SyncItem] = field(default_factory=list)
    indexes: list[IndexWrite] = field(default_factory=list)
    aborted: list[AbortedWrite] = field(default_factory=list)
    snapshots: dict[int, list[SnapshotRow]] = field(default_factory=dict)
    bases: frozenset[int] = frozenset()
    lost: tuple[LostRange, ...] = ()
    """Snapshots in these ranges stay: they may be the only sign of the missing files at the next start."""
    epochs: bytes | None = None
    failure: OSError | None = None
    """The error that ``execute`` raised, for an owner that was cancelled meanwhile."""

    def execute(self) -> bool:
        """Returns: whether the side files were written. If the disk has no space for them, only the batches become durable.

        Raises: OSError.
        """
        try:
            return self._execute()
        except OSError as error:
            self.failure = error
            raise

    def _execute(self) -> bool:
        side_files_written = True
        if self.whole:
            try:
                self._write_side_files()
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    raise
                side_files_written = False
        # Names first: bytes of a file that cannot be found are lost. Before them whose they are: the records of a deleted topic
        # must not be taken for those of another that was made under its name.
        if self.parent is not None:
            self._sync_metadata()
            self.fs.fsync_dir(self.parent)
        if self.new_names or self.whole:
            self.fs.fsync_dir(self.directory)
        for item in self.segments:
            _write_back(item)
            item.file.fdatasync()
        if self.snapshots and side_files_written:
            self._remove_old_snapshots()
        return side_files_written

    def _remove_old_snapshots(self) -> None:
        """Delete older snapshots. Called only after the newest snapshot and its name are durable."""
        newest = max(self.snapshots)
        for offset in list_snapshots(self.fs.list_dir(self.directory)):
            if offset not in self.bases and offset < newest and not within(self.lost, offset):
                unlink_quietly(self.fs, snapshot_path(self.directory, offset))

    def _sync_metadata(self) -> None:
        try:
            file = self.fs.open(f"{self.directory}/{PARTITION_METADATA_FILE}")
        except FileNotFoundError:
            return  # lost with the power, and so was every record: none was ever synced
        try:
            file.fdatasync()
        finally:
            file.close()

    def _write_side_files(self) -> None:
        fs = self.fs
        for index in self.indexes:
            # Times first: offsets without the times that go with them would hide the greatest timestamp.
            self._write_at(
                index.segment.path(TIME_INDEX_SUFFIX),
                index.time_data,
                index.first_time * TIME_ENTRY_BYTES,
            )
            self._write_at(
                index.segment.path(INDEX_SUFFIX),
                index.offset_data,
                index.first_entry * OFFSET_ENTRY_BYTES,
            )
        for aborted in self.aborted:
            self._write_at(
                aborted.segment.path(TRANSACTION_INDEX_SUFFIX),
                aborted.data,
                aborted.first_entry * TRANSACTION_ENTRY_BYTES,
            )
        for offset, rows in self.snapshots.items():
            path = snapshot_path(self.directory, Offset(offset))
            replace_file(fs, path, encode_snapshot(rows), durable=True, writer=WRITER, sync_name=False)
        if self.epochs is not None:
            path = f"{self.directory}/{LEADER_EPOCHS_FILE}"
            replace_file(fs, path, self.epochs, durable=True, writer=WRITER, sync_name=False)

    def _write_at(self, path: str, data: bytes, position: int) -> None:
        file = self.fs.open(path, create=True)
        try:
            write_whole(file, data, position)
            if data or file.size() > position:
                file.truncate(position + len(data))
                file.fdatasync()
        finally:
            file.close()


def _write_back(item: SyncItem) -> None:
    """Start writing all bytes of a sync except the last step. ``fdatasync`` writes the rest; only it makes bytes durable.

    Raises: OSError, to be treated as a failed sync.
    """
    begin = item.segment.synced_bytes
    step = max(WRITE_BACK_STEP_BYTES, (item.size_bytes - begin) // WRITE_BACK_STEPS_MAX)
    for position in range(begin, item.size_bytes - step, step):
        item.file.finish_write_back(position, step)


def plan_index_write(segment: Segment) -> IndexWrite | None:
    """The part of a segment's sparse indexes that its files lack; None if they are complete."""
    index = segment.index
    if index is None or segment.size_bytes == 0:
        return None
    entries, times = len(index.offsets), len(index.times)
    # Files that hold nothing yet are written even if there is no entry: Kafka expects them to be there.
    if segment.index_written and entries == segment.index_written and times == segment.times_written:
        return None
    return IndexWrite(
        segment,
        index.encode_offsets(segment.index_written),
        index.encode_times(segment.times_written),
        segment.index_written,
        segment.times_written,
        entries,
        times,
    )


def plan_aborted_write(segment: Segment) -> AbortedWrite | None:
    """The part of a segment's transaction index that its file lacks; None if it is complete."""
    aborted = segment.aborted
    if aborted is None or len(aborted) == segment.aborted_written:
        return None
    data = b"".join(map(encode_aborted, aborted[segment.aborted_written :]))
    return AbortedWrite(segment, data, segment.aborted_written, len(aborted))
