"""Opens a log from its files after a clean stop, a kill, or a loss of power.

It takes three simple steps instead of one walk that does everything:

1. Find the end. All bytes below the recovery point were synced. Above it every batch is checked. The first batch with a wrong
   length or CRC is cut off, with all bytes after it. Indexes of the checked part are rebuilt.
2. Rebuild the leader epochs if their checkpoint is missing or damaged, or contradicts the batches. The checkpoint has no
   checksum. A changed digit is found by a comparison with the batches around each start of an epoch.
3. Rebuild producer state and transaction indexes, from the newest producer snapshot on.

Runs on a pool thread before anything else uses the log. It opens files itself, and changes no shared state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from typing import Final

from app.configs import Durability, TopicConfig
from app.core.errors import CorruptionError, FirnError, clause
from app.core.limits import MIB
from app.core.units import NO_OFFSET, NO_TIMESTAMP, LeaderEpoch, Offset, TimestampMs, TopicId
from app.hot.checkpoints import (
    LEADER_EPOCHS_FILE,
    PARTITION_METADATA_FILE,
    EpochStart,
    encode_leader_epochs,
    encode_partition_metadata,
    parse_leader_epochs,
)
from app.hot.descriptors import DescriptorCache, FileHandle
from app.hot.epochs import LeaderEpochs
from app.hot.indexes import TIME_ENTRY_BYTES, AbortedTransaction, SegmentIndex, parse_aborted
from app.hot.missing import LostRange, bases_without_log, end_in_file, within, without_ended
from app.hot.producers import ProducerEntry, ProducerStates, aborted_entry, encode_snapshot, parse_snapshot
from app.hot.segments import (
    DELETED_SUFFIX,
    HEADER_WINDOW_BYTES,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    RELATIVE_OFFSET_MAX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    file_name,
    finish_times,
    index_batch,
    walk,
)
from app.hot.state_file import LogState
from app.hot.swapping import CLEANED_SUFFIX, SWAP_SUFFIX, complete
from app.machine.files import (
    FULL_ERRNOS,
    File,
    FileSystem,
    read_file,
    remove_tree,
    replace_file,
    unlink_quietly,
    write_file,
)
from app.records.batch import HEADER_BYTES, BatchHeader, parse_header
from app.records.control import EndTransactionMarker, parse_marker

OLDER_BATCHES_BYTES: Final = 8 * MIB
"""Bytes walked before a snapshot to find the older of each producer's five batches. Five batches in flight are seldom larger."""

_LEFTOVERS: Final = (".tmp", DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """The result of opening a log."""

    segments: list[Segment]
    """At least one segment; the last one is active."""
    epochs: LeaderEpochs
    producers: ProducerStates
    log_start_offset: Offset
    recovery_point: Offset
    epochs_on_disk: tuple[EpochStart, ...] | None = ()
    """The content of the checkpoint of leader epochs; None if it is damaged."""
    start_is_assumed: bool = False
    """Whether the log start is where the local segments begin for want of a checkpoint, and may be in the tier."""
    unsure_from: Offset | None = None
    """Where offsets begin to be missing above the recovery point: compaction has left them out, or a loss of power has."""
    may_have_holes: bool = False
    """Whether segments may end before the next one begins, because the log is compacted."""
    lost: tuple[LostRange, ...] = ()
    """Offsets between segments whose files are missing, oldest first. The segment before ends where they start."""
    truncated_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """Sentences for the operator about losses and repairs."""

    @property
    def end_offset(self) -> Offset:
        return Offset(self.segments[-1].end_offset)


def new_segment(descriptors: DescriptorCache, directory: str, base_offset: Offset) -> Segment:
    """An empty segment, in memory only. Its file is created when it is first opened."""
    segment = Segment(base_offset, FileHandle(descriptors, f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"))
    segment.index = SegmentIndex()
    segment.aborted = []
    return segment


def create_file(fs: FileSystem, path: str) -> None:
    fs.open(path, create=True).close()


def create_log_files(fs: FileSystem, directory: str, topic_id: TopicId, segment: Segment) -> File:
    """Make the directory and the files of an empty log. Returns: the open file of ``segment``.

    Raises: OSError, FirnError; then nothing is left of it.
    """
    fs.make_dirs(directory)
    try:
        write_file(fs, f"{directory}/{PARTITION_METADATA_FILE}", encode_partition_metadata(topic_id), durable=False)
        return segment.handle.cache.open(segment.handle, create=True)
    except (OSError, FirnError):
        remove_tree(fs, directory)
        raise


def remove_segment_files(fs: FileSystem, segment: Segment) -> None:
    for suffix in SEGMENT_SUFFIXES:
        unlink_quietly(fs, segment.path(suffix))


def snapshot_path(directory: str, offset: Offset) -> str:
    return f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"


def list_snapshots(names: Iterable[str]) -> list[Offset]:
    """Offsets of the producer snapshots among file names, rising."""
    return sorted(
        Offset(int(name[: -len(SNAPSHOT_SUFFIX)]))
        for name in names
        if name.endswith(SNAPSHOT_SUFFIX) and name[: -len(SNAPSHOT_SUFFIX)].isdigit()
    )


def read_index(fs: FileSystem, segment: Segment) -> SegmentIndex:
    """The indexes in a segment's files. Raises: CorruptionError, FileNotFoundError."""
    offsets = read_file(fs, segment.path(INDEX_SUFFIX))
    times = read_file(fs, segment.path(TIME_INDEX_SUFFIX))
    return SegmentIndex.parse(offsets, times, log_bytes=segment.size_bytes)


def read_aborted(fs: FileSystem, segment: Segment) -> list[AbortedTransaction]:
    """The aborted transactions whose markers are in the segment. Raises: CorruptionError."""
    try:
        return parse_aborted(read_file(fs, segment.path(TRANSACTION_INDEX_SUFFIX)))
    except FileNotFoundError:
        return []


FOR_EVER: Final = Offset(1 << 62)
"""A recovery point above the end of every log: the last stop was clean."""


def load_log(
    fs: FileSystem,
    descriptors: DescriptorCache,
    directory: str,
    *,
    config: TopicConfig,
    recovery_point: Offset,
    log_start_offset: Offset | None,
    now_ms: TimestampMs,
    cleaned: bool = False,
) -> LoadedLog:
    """Read a partition's directory and repair it. Damage is cut off, and is never an error; ``problems`` lists the repairs.

    ``recovery_point`` is ``FOR_EVER`` after a clean stop: then nothing is checked. ``cleaned``: the log was compacted, so gaps
    between offsets are not damage.

    Raises: OSError.
    """
    loader = _Loader(
        fs, descriptors, directory, config, recovery_point, log_start_offset, now_ms, cleaned or config.compacted
    )
    loaded = loader.load()
    start = loaded.log_start_offset if log_start_offset is None else log_start_offset
    if start > loaded.end_offset:
        loaded.problems.append(
            f"{directory} ends at {loaded.end_offset}, before its log start offset {start}; it continues there, empty"
        )
        for segment in loaded.segments:
            remove_segment_files(fs, segment)
        for offset in list_snapshots(fs.list_dir(directory)):
            unlink_quietly(fs, snapshot_path(directory, offset))
        loaded.segments = [new_segment(descriptors, directory, start)]
        create_file(fs, loaded.segments[0].handle.path)
        # A loss of power must not bring back the dropped files, nor take the new one with its records.
        fs.fsync_dir(directory)
        loaded.producers.clear()
        loaded.recovery_point = start
        loaded.epochs.replace(())
    loaded.log_start_offset = start
    loaded.lost = without_ended(loaded.lost, start)
    loaded.start_is_assumed = log_start_offset is None and config.tiered and start > 0
    loaded.epochs.truncate_from_end(loaded.end_offset)
    entries, on_disk = loaded.epochs.entries(), loaded.epochs_on_disk
    if on_disk is None or on_disk != entries[: len(on_disk)]:
        # At once: an epoch that is in the file but not in the log would claim records appended from now on.
        path = f"{directory}/{LEADER_EPOCHS_FILE}"
        written = _replace_if_room(fs, path, encode_leader_epochs(entries), loaded.problems, durable=True)
        # Without room it stays to be done: the next sync writes it, and recovery would hold the old one against the batches.
        loaded.epochs.dirty = not written
    else:
        # The batches have the epochs that the file lacks. It need not be synced for each of many logs before serving begins.
        loaded.epochs.dirty = on_disk != entries
    return loaded


def _replace_if_room(fs: FileSystem, path: str, data: bytes, problems: list[str], *, durable: bool) -> bool:
    """Write a file that can be rebuilt from the batches. If the disk is full, note a problem and return False, so that reads work.

    Raises: OSError, any other.
    """
    try:
        replace_file(fs, path, data, durable=durable)
    except OSError as error:
        if error.errno not in FULL_ERRNOS:
            raise
        problems.append(f"{path} cannot be written now: {error.strerror}")
        return False
    return True


class _Loader:
    def __init__(
        self,
        fs: FileSystem,
        descriptors: DescriptorCache,
        directory: str,
        config: TopicConfig,
        recovery_point: Offset,
        log_start_offset: Offset | None,
        now_ms: TimestampMs,
        gaps: bool,
    ) -> None:
        self._fs = fs
        self._descriptors = descriptors
        self._directory = directory
        self._config = config
        self._recovery_point = recovery_point
        self._log_start_offset = log_start_offset
        self._now_ms = now_ms
        self._gaps = gaps
        """Whether offsets may be missing anywhere."""
        self._names: set[str] = set()
        """File names of the directory at the start, updated with later changes of snapshots."""
        self._open: tuple[Segment, File] | None = None
        """The segment that was read last. Each step reads it again."""
        self._problems: list[str] = []
        self._truncated_bytes = 0
        self._unsure_from: Offset | None = None
        self._without_log: list[int] = []
        """Bases of which files are left, but no log file, if the log may not have gaps."""
        self._lost: list[LostRange] = []

    def load(self) -> LoadedLog:
        try:
            return self._load()
        finally:
            self._close()

    def _load(self) -> LoadedLog:
        fs, directory = self._fs, self._directory
        names = fs.list_dir(directory)
        completed = complete(fs, directory, names)
        if completed:
            self._problems += completed
            names = fs.list_dir(directory)
        for name in names:
            if name.endswith(_LEFTOVERS):
                unlink_quietly(fs, f"{directory}/{name}")
            else:
                self._names.add(name)
        segments = self._list_segments()
        if len(segments) > 1 and not self._gaps:
            self._without_log = bases_without_log(self._names)
        if self._recovery_point < FOR_EVER and self._config.firn_durability is Durability.DISK:
            # Records found here count as stored from now on, so the names of the files must not get lost either.
            fs.fsync_dir(directory)
        on_disk = self._read_epochs()
        segments = self._find_end(segments)
        epochs = LeaderEpochs(on_disk or ())
        rebuild_epochs = not on_disk or not self._epochs_fit(epochs, segments)
        if rebuild_epochs:
            epochs = LeaderEpochs()
        producers = self._rebuild_state(segments, epochs, 0 if rebuild_epochs else None)
        end = Offset(segments[-1].end_offset)
        return LoadedLog(
            segments=segments,
            epochs=epochs,
            producers=producers,
            log_start_offset=segments[0].base_offset,
            recovery_point=min(self._recovery_point, end),
            epochs_on_disk=on_disk,
            unsure_from=self._unsure_from,
            may_have_holes=self._gaps,
            lost=tuple(one for one in self._lost if one.end <= end),
            truncated_bytes=self._truncated_bytes,
            problems=self._problems,
        )

    def _file_of(self, segment: Segment) -> File:
        """The segment's file. It stays open until another file is requested. Raises: OSError."""
        if self._open is not None:
            if self._open[0] is segment:
                return self._open[1]
            self._close()
        file = self._fs.open(segment.handle.path)
        self._open = segment, file
        return file

    def _close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    # --- reading the directory ---

    def _list_segments(self) -> list[Segment]:
        bases = sorted(
            int(name[: -len(LOG_SUFFIX)])
            for name in self._names
            if name.endswith(LOG_SUFFIX) and name[: -len(LOG_SUFFIX)].isdigit()
        )
        if not bases:
            bases = [0]
            create_file(self._fs, f"{self._directory}/{file_name(Offset(0), LOG_SUFFIX)}")
            self._fs.fsync_dir(self._directory)  # or a loss of power takes the file with its records
        segments = []
        for base in bases:
            segment = new_segment(self._descriptors, self._directory, Offset(base))
            segment.index = None
            segment.size_bytes = segment.synced_bytes = self._fs.file_size(segment.handle.path)
            if file_name(Offset(base), TRANSACTION_INDEX_SUFFIX) in self._names:
                segment.aborted = None
            if segment.size_bytes:
                modified_ms = min(self._now_ms, self._fs.modified_ms(segment.handle.path))
                segment.first_append_ms = segment.last_append_ms = modified_ms
            segments.append(segment)
        for segment, follower in pairwise(segments):
            segment.end_offset = follower.base_offset
        return segments

    def _read_epochs(self) -> tuple[EpochStart, ...] | None:
        """The content of the checkpoint: empty if the file is missing, None if it is damaged."""
        path = f"{self._directory}/{LEADER_EPOCHS_FILE}"
        try:
            return tuple(parse_leader_epochs(read_file(self._fs, path)))
        except FileNotFoundError:
            return ()
        except CorruptionError as error:
            self._problems.append(f"{path}: {clause(error)}; it is rebuilt from the log")
            return None

    # --- step 1 ---

    def _find_end(self, segments: list[Segment]) -> list[Segment]:
        for number, segment in enumerate(segments):
            last = number == len(segments) - 1
            try:
                if not last and segment.end_offset <= self._recovery_point:
                    self._trust(segment)
                    self._find_missing(segment, segments[number + 1].base_offset)
                    continue
                self._check(segment, last)
            except CorruptionError as error:
                self._problems.append(str(error))
            else:
                if last:
                    return segments
                if segment.index is not None:
                    # As its roll did, or would have done: a later recovery that trusts the segment reads only its last entry.
                    finish_times(segment, segment.index)
                follower = segments[number + 1]
                if segment.end_offset == follower.base_offset:
                    continue
                hole = f"{segment.handle.path} ends at {segment.end_offset}, but the next segment begins at {follower.base_offset}"
                if self._gaps and segment.end_offset < follower.base_offset:
                    self._problems.append(f"{hole}: a loss of power may have taken records of this compacted log")
                    if self._unsure_from is None:
                        self._unsure_from = Offset(segment.end_offset)
                    segment.end_offset = follower.base_offset
                    continue
                self._problems.append(hole)
            self._drop(segments[number + 1 :])
            return segments[: number + 1]
        return segments

    def _drop(self, segments: list[Segment]) -> None:
        for segment in segments:
            self._truncated_bytes += segment.size_bytes
            self._problems.append(f"{segment.handle.path} follows lost records and is deleted")
            remove_segment_files(self._fs, segment)

    def _trust(self, segment: Segment) -> None:
        """Load a rolled segment that was synced completely. Only its greatest timestamp is needed."""
        if segment.size_bytes == 0:
            return
        try:
            times = self._fs.open(segment.path(TIME_INDEX_SUFFIX), read_only=True)
        except FileNotFoundError:
            tail = b""
        else:
            try:
                tail = times.pread(TIME_ENTRY_BYTES, max(0, times.size() - TIME_ENTRY_BYTES))
            finally:
                times.close()
        if len(tail) == TIME_ENTRY_BYTES and any(tail):
            timestamp = int.from_bytes(tail[:8], "big", signed=True)
            relative = int.from_bytes(tail[8:], "big", signed=True)
            if 0 <= relative < segment.end_offset - segment.base_offset:
                segment.max_timestamp = timestamp
                segment.max_timestamp_offset = segment.base_offset + relative
                return
        self._reindex(segment)

    def _find_missing(self, segment: Segment, follower_base: Offset) -> None:
        """End a trusted segment where its file ends, if files show that another segment was between it and the next one."""
        place = bisect_right(self._without_log, segment.base_offset)
        if place == len(self._without_log) or self._without_log[place] >= follower_base:
            return
        try:
            index = read_index(self._fs, segment)
        except (CorruptionError, FileNotFoundError):
            index = SegmentIndex()
        end = end_in_file(segment, self._file_of(segment), index)
        if any(end <= base < follower_base for base in self._without_log[place:]):
            self._lost.append(LostRange(end, follower_base))
            segment.end_offset = end

    def _reindex(self, segment: Segment, *, verify: bool = False) -> None:
        """Rebuild a complete segment's indexes. Raises: CorruptionError, after it has cut off the damage."""
        segment.index = SegmentIndex()
        segment.index_written = segment.times_written = 0
        segment.max_timestamp, segment.max_timestamp_offset = NO_TIMESTAMP, NO_OFFSET
        self._walk_to_end(segment, segment.index, 0, verify=verify, gaps=True)
        finish_times(segment, segment.index)

    def _check(self, segment: Segment, active: bool) -> None:
        """Check a segment from the recovery point on. Raises: CorruptionError, after it has cut off the damage."""
        verify = self._recovery_point < FOR_EVER
        try:
            index = read_index(self._fs, segment)
        except FileNotFoundError:
            index = SegmentIndex()
        except CorruptionError as error:
            self._problems.append(f"{segment.path(INDEX_SUFFIX)}: {clause(error)}; it is rebuilt from the log")
            index = SegmentIndex()
        entries = len(index.offsets)
        if verify:
            index.truncate(max(0, self._recovery_point - segment.base_offset), segment.size_bytes)
        if index.offsets and not index.times:
            # One of the files was lost: the greatest timestamp before the last entry is not known.
            index = SegmentIndex()
        segment.index = index
        segment.index_written = 0 if len(index.offsets) < entries else len(index.offsets)
        segment.times_written = segment.index_written and len(index.times)
        if index.times:
            segment.max_timestamp = index.times[-1]
            segment.max_timestamp_offset = segment.base_offset + index.time_offsets[-1]
        start = index.positions[-1] if index.positions else 0
        # Compaction leaves gaps, but never in the active segment.
        self._walk_to_end(segment, index, start, verify=verify, gaps=self._gaps or not active)

    def _walk_to_end(self, segment: Segment, index: SegmentIndex, start: int, *, verify: bool, gaps: bool) -> None:
        """Walk a segment from an indexed batch (or 0) to its end. Cut off damage, and then raise CorruptionError."""
        file = self._file_of(segment)
        indexed = bool(index.positions)
        position = start
        expected = segment.base_offset if not indexed else NO_OFFSET
        synced = start if verify else segment.size_bytes
        try:
            for at, header, _ in walk(file, start, segment.size_bytes, verify=verify):
                self._check_order(segment, header, at, expected, gaps)
                if at == start and indexed:
                    if header.base_offset + header.last_offset_delta != segment.base_offset + index.offsets[-1]:
                        raise CorruptionError(f"{segment.path(INDEX_SUFFIX)} does not fit its log.")
                    segment.bytes_since_index_entry = header.size_bytes
                else:
                    index_batch(segment, index, at, header, self._config.index_interval_bytes)
                expected = header.end_offset
                position = at + header.size_bytes
            segment.end_offset = max(expected, segment.base_offset)
            segment.synced_bytes = synced
            if segment.size_bytes:
                segment.rolling_timestamp = parse_header(file.pread(HEADER_BYTES, 0)).max_timestamp
            if verify and self._config.firn_durability is Durability.DISK:
                file.fdatasync()
                segment.synced_bytes = segment.size_bytes
        except CorruptionError as error:
            if indexed and position == start:
                # Perhaps only the index is wrong: the segment's own bytes decide.
                index.truncate(0, 0)
                segment.index_written = segment.times_written = 0
                segment.bytes_since_index_entry = 0
                segment.max_timestamp, segment.max_timestamp_offset = NO_TIMESTAMP, NO_OFFSET
                self._problems.append(f"{segment.path(INDEX_SUFFIX)}: {clause(error)}; it is rebuilt from the log")
                self._walk_to_end(segment, index, 0, verify=verify, gaps=gaps)
                return
            lost = segment.size_bytes - position
            self._cut(segment, file, position, max(expected, segment.base_offset))
            raise CorruptionError(
                f"{segment.handle.path}: {clause(error)}; the last {lost} bytes are cut off."
            ) from error

    @staticmethod
    def _check_order(segment: Segment, header: BatchHeader, position: int, expected: int, gaps: bool) -> None:
        # The CRC does not cover the base offset, so its place among the others has to tell.
        if (
            header.base_offset < max(expected, segment.base_offset)
            or header.end_offset - 1 - segment.base_offset > RELATIVE_OFFSET_MAX
            or (not gaps and expected >= 0 and header.base_offset != expected)
        ):
            raise CorruptionError(f"Offset {header.base_offset} at position {position} is out of order.")

    def _cut(self, segment: Segment, file: File, position: int, end_offset: int) -> None:
        self._truncated_bytes += segment.size_bytes - position
        file.truncate(position)
        file.fdatasync()
        segment.size_bytes = segment.synced_bytes = position
        segment.end_offset = end_offset
        if segment.index is not None:
            segment.index.truncate(end_offset - segment.base_offset, position)
        segment.index_written = segment.times_written = 0

    # --- steps 2 and 3 ---

    def _epochs_fit(self, epochs: LeaderEpochs, segments: list[Segment]) -> bool:
        """Whether the batches before and after each start of an epoch have the epochs of the checkpoint.

        Only synced batches are compared. Later entries of the checkpoint are dropped, because later batches are walked anyway.
        """
        start = max(segments[0].base_offset, self._log_start_offset or 0)
        end = min(self._recovery_point, segments[-1].end_offset)
        epochs.truncate_from_end(Offset(max(end, segments[0].base_offset)))
        starts = [entry.start_offset for entry in epochs.entries() if start < entry.start_offset < end]
        wanted = sorted({start, end - 1, *starts, *(one - 1 for one in starts)})
        for offset, header in self._batches_at(segments, [offset for offset in wanted if start <= offset < end]):
            if header.leader_epoch < 0:
                continue
            said = epochs.epoch_of(Offset(max(offset, header.base_offset)))
            if said != header.leader_epoch:
                self._problems.append(
                    f"{self._directory}/{LEADER_EPOCHS_FILE} has offset {max(offset, header.base_offset)} in leader epoch "
                    f"{said}, and the log has it in {header.leader_epoch}; it is rebuilt from the log"
                )
                return False
        return True

    def _batches_at(self, segments: list[Segment], offsets: list[int]) -> Iterator[tuple[int, BatchHeader]]:
        """For each of the rising ``offsets``: the batch that contains it, or the next batch after a gap.

        Offsets without a batch are left out. Each segment is opened only once, because there may be many starts of epochs.
        """
        place = partial(bisect_right, [segment.base_offset for segment in segments])
        for number, some in groupby(offsets, key=place):
            yield from self._batches_of(segments[number - 1], deque(some))

    def _batches_of(self, segment: Segment, offsets: deque[int]) -> Iterator[tuple[int, BatchHeader]]:
        try:
            index = read_index(self._fs, segment) if segment.index is None else segment.index
        except (CorruptionError, FileNotFoundError):
            index = SegmentIndex()
        file = self._file_of(segment)
        try:
            while offsets:
                start = index.position_before(offsets[0] - segment.base_offset)
                for position, header, _ in walk(file, start, segment.size_bytes, verify=False):
                    if header.end_offset <= offsets[0]:
                        continue
                    while offsets and header.end_offset > offsets[0]:
                        yield offsets.popleft(), header
                    # The index helps again only past the batches that the walk has read already.
                    if (
                        not offsets
                        or index.position_before(offsets[0] - segment.base_offset) > position + HEADER_WINDOW_BYTES
                    ):
                        break
                else:
                    return
        except CorruptionError:
            # The walk that rebuilds producer state meets it too, and cuts it off.
            return

    def _rebuild_state(self, segments: list[Segment], epochs: LeaderEpochs, epochs_from: int | None) -> ProducerStates:
        """Walk the headers from the newest usable snapshot, or from ``epochs_from`` if that is lower."""
        while True:
            try:
                return self._replay(segments, epochs, epochs_from)
            except _DamageBelow as damage:
                # Synced bytes differ from the written ones. Only the bytes before them can be kept.
                self._problems.append(str(damage))
                number = segments.index(damage.segment)
                try:
                    self._reindex(damage.segment, verify=True)
                except CorruptionError as error:
                    self._problems.append(str(error))
                self._drop(segments[number + 1 :])
                del segments[number + 1 :]

    def _replay(self, segments: list[Segment], epochs: LeaderEpochs, epochs_from: int | None) -> ProducerStates:
        end = segments[-1].end_offset
        # Transaction indexes are sound below the recovery point, unless they are damaged; markers from there on are applied
        # again, so no snapshot from behind it is used.
        indexes_end = self._sound_transaction_indexes_end(segments)
        producers, start = self._load_snapshot(segments, Offset(end), min(self._recovery_point, indexes_end))
        snapshots = set(list_snapshots(self._names))
        walk_from = start if epochs_from is None else min(start, epochs_from)
        # Without a snapshot where the walk begins, and with segments gone before it, the next snapshot knows better.
        unknown_before = 0 < start == segments[0].base_offset and start not in snapshots
        for number, segment in enumerate(segments):
            if unknown_before and segment.base_offset > start:
                self._correct(producers, segment.base_offset, snapshots)
            trusted_end = min(self._recovery_point, indexes_end, segment.end_offset)
            if segment.end_offset <= walk_from and number < len(segments) - 1:
                continue
            aborted = self._aborted_below(segment, trusted_end)
            if segment.base_offset > start and segment.base_offset not in snapshots:
                self._save_snapshot(segment.base_offset, producers)
            if segment.end_offset > walk_from and segment.size_bytes:
                self._replay_segment(segment, producers, epochs, aborted, start, walk_from, trusted_end)
            segment.aborted = aborted
        if unknown_before:
            self._correct(producers, Offset(end), snapshots)
        if producers.entries and start > segments[0].base_offset:
            producers.remember_older(self._headers_before(segments, start))
        newest_base = segments[-1].base_offset
        bases = {segment.base_offset for segment in segments}
        newest = max((offset for offset in snapshots if offset <= end), default=newest_base)
        for offset in snapshots:
            if offset not in bases and offset != newest and not within(self._lost, offset):
                self._remove_snapshot(offset)  # that of a missing segment shows the next start what is missing
        return producers

    def _correct(self, producers: ProducerStates, offset: Offset, snapshots: set[Offset]) -> None:
        if offset in snapshots:
            try:
                producers.correct(parse_snapshot(read_file(self._fs, snapshot_path(self._directory, offset))))
            except CorruptionError as error:
                self._problems.append(f"{snapshot_path(self._directory, offset)}: {error}")

    def _sound_transaction_indexes_end(self, segments: list[Segment]) -> Offset:
        """Base offset of the first segment whose transaction index is damaged; ``FOR_EVER`` if none is."""
        for segment in segments:
            try:
                if segment.aborted is None:
                    read_aborted(self._fs, segment)
            except CorruptionError as error:
                self._problems.append(
                    f"{segment.path(TRANSACTION_INDEX_SUFFIX)}: {clause(error)}; it is rebuilt from the log"
                )
                return segment.base_offset
        return FOR_EVER

    def _load_snapshot(self, segments: list[Segment], end: Offset, usable_end: int) -> tuple[ProducerStates, Offset]:
        """State and offset of the newest sound snapshot at or below ``usable_end``. Snapshots past ``end`` are removed."""
        producers = ProducerStates()
        first = segments[0].base_offset
        for offset in reversed(list_snapshots(self._names)):
            path = snapshot_path(self._directory, offset)
            if offset > end:
                self._remove_snapshot(offset)
                continue
            if offset < first:
                break
            if offset > usable_end and offset != first:
                # The remaining log begins at the first segment. Only its snapshot knows of earlier records.
                continue
            try:
                producers.load_rows(parse_snapshot(read_file(self._fs, path)))
            except CorruptionError as error:
                self._problems.append(f"{path}: {clause(error)}; producer state is rebuilt from the log")
                self._remove_snapshot(offset)
                continue
            return producers, offset
        return producers, first

    def _remove_snapshot(self, offset: Offset) -> None:
        unlink_quietly(self._fs, snapshot_path(self._directory, offset))
        self._names.discard(file_name(offset, SNAPSHOT_SUFFIX))

    def _aborted_below(self, segment: Segment, trusted_end: int) -> list[AbortedTransaction]:
        try:
            known = file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX) in self._names
            aborted = read_aborted(self._fs, segment) if known else []
        except CorruptionError:
            aborted = []
        kept = [entry for entry in aborted if entry.last_offset < trusted_end]
        segment.aborted_written = 0 if len(kept) < len(aborted) else len(kept)
        return kept

    def _replay_segment(
        self,
        segment: Segment,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        aborted: list[AbortedTransaction],
        state_from: int,
        walk_from: int,
        trusted_end: int,
    ) -> None:
        index = segment.index
        start = 0 if index is None else index.position_before(max(0, walk_from - segment.base_offset))
        file = self._file_of(segment)
        try:
            for _, header, view in walk(file, start, segment.size_bytes, verify=False):
                if header.leader_epoch > epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
                if header.base_offset >= state_from and header.producer_id >= 0:
                    if not header.is_control:
                        producers.apply_header(header)
                    elif (marker := self._marker(segment, view)) is not None:
                        completed = producers.apply_marker(marker)
                        if completed is not None and completed.aborted and marker.offset >= trusted_end:
                            aborted.append(aborted_entry(completed, producers.last_stable_offset_after(completed)))
        except CorruptionError as error:
            raise _DamageBelow(segment, str(error)) from error

    def _marker(self, segment: Segment, batch: memoryview) -> EndTransactionMarker | None:
        try:
            return parse_marker(batch)
        except CorruptionError as error:
            # Its CRC may be right all the same: it was written so, and cannot be read here.
            self._problems.append(f"{segment.handle.path}: {error}")
            return None

    def _headers_before(self, segments: list[Segment], offset: int) -> list[BatchHeader]:
        """Headers of the batches in the last few MiB before ``offset``; fewer if some are damaged."""
        parts: list[list[BatchHeader]] = []
        room = OLDER_BATCHES_BYTES
        for segment in reversed(segments):
            if segment.base_offset >= offset or segment.size_bytes == 0:
                continue
            stop, start = segment.size_bytes, 0
            try:
                if offset < segment.end_offset or stop > room:
                    index = segment.index if segment.index is not None else read_index(self._fs, segment)
                    if offset < segment.end_offset:
                        stop = index.position_before(offset - 1 - segment.base_offset)
                    slot = index.slot_at_most(stop - room)
                    start = index.positions[slot] if slot >= 0 else 0
                parts.append(self._headers_between(segment, start, offset))
            except (CorruptionError, FileNotFoundError) as error:
                self._problems.append(f"{segment.handle.path}: older batches of producers are not known: {error}")
                break
            room -= stop - start
            if room <= 0:
                break
        return [header for part in reversed(parts) for header in part]

    def _headers_between(self, segment: Segment, start: int, offset: int) -> list[BatchHeader]:
        headers = []
        for _, header, _ in walk(self._file_of(segment), start, segment.size_bytes, verify=False):
            if header.base_offset >= offset:
                break
            headers.append(header)
        return headers

    def _save_snapshot(self, offset: Offset, producers: ProducerStates) -> None:
        path = snapshot_path(self._directory, offset)
        if _replace_if_room(self._fs, path, encode_snapshot(producers.rows()), self._problems, durable=False):
            self._names.add(file_name(offset, SNAPSHOT_SUFFIX))


def restore_log(
    fs: FileSystem, descriptors: DescriptorCache, directory: str, state: LogState, *, gaps: bool = False
) -> LoadedLog | None:
    """The log as it was at a clean stop. None if its active segment has changed since: then the log is read from its files.

    ``gaps``: the log is compacted, so offsets between segments may be missing without a loss. Raises: OSError.
    """
    segments = []
    for saved in state.segments:
        segment = new_segment(descriptors, directory, Offset(saved.base_offset))
        segment.end_offset = saved.end_offset
        segment.size_bytes = segment.synced_bytes = saved.size_bytes
        segment.max_timestamp = saved.max_timestamp
        segment.max_timestamp_offset = saved.max_timestamp_offset
        segment.rolling_timestamp = saved.rolling_timestamp
        segment.first_append_ms = saved.first_append_ms
        segment.last_append_ms = saved.last_append_ms
        if saved.size_bytes and saved.last_append_ms < 0:
            segment.last_append_ms = fs.modified_ms(segment.handle.path)
        segment.bytes_since_index_entry = saved.bytes_since_index_entry
        if saved.size_bytes:
            segment.index = None
        if saved.has_aborted:
            segment.aborted = None
        segments.append(segment)
    try:
        if not segments or fs.file_size(segments[-1].handle.path) != segments[-1].size_bytes:
            return None
    except FileNotFoundError:
        return None
    producers = ProducerStates()
    opened: list[tuple[int, int]] = []
    for known in state.producers:
        entry = producers.entries[known.producer_id] = ProducerEntry(known.epoch)
        entry.last_sequence = known.last_sequence
        entry.last_timestamp = known.last_timestamp
        entry.coordinator_epoch = known.coordinator_epoch
        entry.transaction_first_offset = known.transaction_first_offset
        entry.batches = list(known.batches)
        if known.transaction_first_offset >= 0:
            opened.append((known.transaction_first_offset, known.producer_id))
    producers.open_transactions = {producer_id: first_offset for first_offset, producer_id in sorted(opened)}
    epochs = LeaderEpochs(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in state.leader_epochs)
    return LoadedLog(
        segments=segments,
        epochs=epochs,
        producers=producers,
        log_start_offset=Offset(state.log_start_offset),
        recovery_point=Offset(segments[-1].end_offset),
        may_have_holes=gaps,
        lost=()
        if gaps
        else without_ended(
            [
                LostRange(Offset(segment.end_offset), follower.base_offset)
                for segment, follower in pairwise(segments)
                if segment.end_offset < follower.base_offset
            ],
            state.log_start_offset,
        ),
    )


def replay_producers(fs: FileSystem, directory: str, segments: list[Segment], offset: Offset) -> ProducerStates:
    """Producer state as of ``offset``, from the newest sound snapshot at or below it and the log after that.

    Raises: OSError, CorruptionError.
    """
    producers = ProducerStates()
    start = segments[0].base_offset
    for candidate in reversed(list_snapshots(fs.list_dir(directory))):
        if segments[0].base_offset <= candidate <= offset:
            try:
                producers.load_rows(parse_snapshot(read_file(fs, snapshot_path(directory, candidate))))
            except CorruptionError:
                continue
            start = candidate
            break
    for segment in segments:
        if segment.end_offset <= start or segment.base_offset >= offset or segment.size_bytes == 0:
            continue
        file = fs.open(segment.handle.path, read_only=True)
        try:
            for _, header, view in walk(file, 0, segment.size_bytes, verify=False):
                if header.base_offset < start or header.producer_id < 0:
                    continue
                if header.base_offset >= offset:
                    break
                if not header.is_control:
                    producers.apply_header(header)
                elif (marker := parse_marker(view)) is not None:
                    producers.apply_marker(marker)
        finally:
            file.close()
    return producers


class _DamageBelow(Exception):
    """A walk found damage in synced bytes. The loader cuts the damage off and repeats the step."""

    def __init__(self, segment: Segment, message: str) -> None:
        super().__init__(f"{segment.handle.path}: {message}")
        self.segment = segment
