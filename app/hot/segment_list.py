"""The segments of one log as a list of files: their holds, their deletion and their replacement.

A log owns its list and calls it only from the event loop. All methods are synchronous. To delete a file is to rename it, which
takes microseconds; its bytes are freed later, in the pool.

Tests: ``tests/hot/test_replicas.py``, ``tests/hot/test_append.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.core.errors import ConflictError, FirnError
from app.core.units import Offset, TimestampMs
from app.hot.directory import LogDirectory
from app.hot.indexes import AbortedTransaction, SegmentIndex, encode_aborted
from app.hot.recovery import new_segment
from app.hot.segments import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    CleanedSegment,
    RolledSegment,
    Segment,
    SegmentHold,
    SegmentView,
)
from app.hot.state_file import SegmentState
from app.hot.swapping import put_in_place
from app.machine.files import replace_file, storage_error


class SegmentList:
    """At least one segment, in order of offset. The last segment is active."""

    __slots__ = ("_directory", "_path", "bases", "segments")

    def __init__(self, directory: LogDirectory, path: str, segments: list[Segment]) -> None:
        self._directory = directory
        self._path = path
        self.segments = segments
        self.bases: list[int] = [segment.base_offset for segment in segments]
        """Base offsets of ``segments``. Both lists are changed in place, because readers keep references to them."""

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.bases.append(segment.base_offset)

    # --- for other modules ---------------------------------------------------------------------------------------

    def views(self, count: int | None = None) -> list[SegmentView]:
        """A copy of the list of the oldest ``count`` segments, or of all."""
        active = self.segments[-1]
        return [
            SegmentView(
                base_offset=segment.base_offset,
                end_offset=Offset(segment.end_offset),
                size_bytes=segment.size_bytes,
                max_timestamp=TimestampMs(segment.max_timestamp),
                rolling_timestamp=TimestampMs(segment.rolling_timestamp),
                path=segment.handle.path,
                active=segment is active,
                first_append_ms=TimestampMs(segment.first_append_ms),
                last_append_ms=TimestampMs(segment.last_append_ms),
            )
            for segment in self.segments[:count]
        ]

    def rolled(self) -> list[RolledSegment]:
        """All segments except the active one, as candidates for compaction."""
        return [
            RolledSegment(
                segment.base_offset,
                segment.end_offset,
                segment.size_bytes,
                segment.max_timestamp,
                segment.rolling_timestamp,
            )
            for segment in self.segments[:-1]
        ]

    def states(self) -> list[SegmentState]:
        """A copy of all segments for the state file of a clean stop."""
        return [
            SegmentState(
                segment.base_offset,
                segment.end_offset,
                segment.size_bytes,
                segment.max_timestamp,
                segment.max_timestamp_offset,
                segment.rolling_timestamp,
                segment.first_append_ms,
                segment.bytes_since_index_entry,
                segment.aborted is None or bool(segment.aborted),
                segment.last_append_ms,
            )
            for segment in self.segments
        ]

    def unsynced(self) -> list[Segment]:
        """Segments with bytes that no sync has covered, oldest first."""
        unsynced = []
        for segment in reversed(self.segments):
            if segment.synced_bytes >= segment.size_bytes:
                if segment.size_bytes:
                    break
                continue
            unsynced.append(segment)
        unsynced.reverse()
        return unsynced

    # --- holds ------------------------------------------------------------------------------------------------------

    def hold(self, base_offset: int, on_end: Callable[[], None] | None = None) -> SegmentHold:
        """Keep a segment's file until the hold is released, or ended by a cut (``end_holds_above``).

        Raises: ConflictError if it is gone or will be replaced.
        """
        for segment in self.segments:
            if segment.base_offset == base_offset and not segment.replacing:
                return SegmentHold(segment, on_end)
        raise ConflictError(f"Segment {base_offset} of {self._path} is not on this disk.")

    @property
    def held(self) -> bool:
        return any(segment.holds for segment in self.segments)

    def end_holds_above(self, offset: int) -> None:
        """End the holds of all segments with records at or above ``offset``, which are about to be cut away."""
        for segment in reversed(self.segments):
            if segment.end_offset <= offset:
                break
            for hold in segment.holds:
                hold.end()

    def keep_holds(self, before: Sequence[Segment]) -> None:
        """Let the holds of ``before``, these segments as they were before they were read again, continue."""
        held = {segment.base_offset: segment for segment in before if segment.holds}
        if not held:
            return
        for segment in self.segments:
            old = held.pop(segment.base_offset, None)
            if old is not None:
                segment.holds, old.holds = old.holds, ()
                for hold in segment.holds:
                    hold.segment = segment
        assert not held, (self._path, list(held))

    # --- going ------------------------------------------------------------------------------------------------------

    def discard(self, segment: Segment) -> None:
        """Remove a segment's files from the directory now, and free their bytes later. The segment stays in the lists.

        Raises: StorageUnavailable; the directory is offline then.
        """
        segment.deleted = True
        self._directory.indexes.forget(segment)
        self._directory.descriptors.delete(segment.handle)
        fs = self._directory.fs
        for suffix in SEGMENT_SUFFIXES:
            path = segment.path(suffix)
            try:
                fs.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._offline(error, f"cannot delete {path}") from error
            self._directory.throw_away(path + DELETED_SUFFIX)

    def discard_oldest(self, count: int) -> None:
        """Drop ``count`` segments from the start. Raises: as ``discard``."""
        for segment in self.segments[:count]:
            self.discard(segment)
        del self.segments[:count], self.bases[:count]

    def discard_newest(self) -> None:
        """Drop the active segment. Raises: as ``discard``."""
        self.discard(self.segments.pop())
        self.bases.pop()

    def close(self) -> None:
        """Close every file. Active readers can finish."""
        for segment in self.segments:
            segment.deleted = True
            self._directory.indexes.forget(segment)
            self._directory.descriptors.delete(segment.handle)

    # --- being replaced by compaction -------------------------------------------------------------------------------

    def keep_for_replacement(self, holds: Sequence[SegmentHold]) -> None:
        """Refuse further holds on these segments, because they will be replaced.

        Raises: ConflictError if a segment already has another hold, or if a hold has been ended.
        """
        if any(hold not in hold.segment.holds for hold in holds):
            raise ConflictError(f"Segments of {self._path} were cut, or are no longer compacted.")
        if any(len(hold.segment.holds) > 1 for hold in holds):
            raise ConflictError(f"A segment of {self._path} is being copied; try again.")
        for hold in holds:
            hold.segment.replacing = True

    def replace(self, holds: Sequence[SegmentHold], cleaned: CleanedSegment) -> None:
        """As ``PartitionLog.replace_segments``. Raises: StorageUnavailable; the directory is offline then."""
        old = [hold.segment for hold in holds]
        first = self.segments.index(old[0])
        end = first + len(old)
        assert self.segments[first:end] == old, self._path
        assert end < len(self.segments), self._path
        for hold in holds:
            hold.release()
        segment = new_segment(self._directory.descriptors, self._path, old[0].base_offset)
        segment.end_offset = old[-1].end_offset
        segment.size_bytes = segment.synced_bytes = cleaned.size_bytes
        segment.max_timestamp = cleaned.max_timestamp
        segment.max_timestamp_offset = cleaned.max_timestamp_offset
        segment.rolling_timestamp = cleaned.rolling_timestamp
        segment.bytes_since_index_entry = cleaned.bytes_since_index_entry
        segment.first_append_ms = old[0].first_append_ms
        segment.last_append_ms = old[-1].last_append_ms
        segment.index = None
        if cleaned.has_aborted:
            segment.aborted = None
        for gone in old:
            # The first goes first: as long as it is there, recovery knows that all are.
            self.discard(gone)
        try:
            put_in_place(self._directory.fs, self._path, segment.base_offset)
        except OSError as error:
            raise self._offline(error, f"cannot put a compacted segment of {self._path} in place") from error
        self.segments[first:end] = [segment]
        self.bases[first:end] = [segment.base_offset]

    # --- side files -------------------------------------------------------------------------------------------------

    def write_indexes(self, segment: Segment, index: SegmentIndex) -> None:
        """Write both sparse indexes whole. Raises: OSError."""
        fs = self._directory.fs
        replace_file(fs, segment.path(INDEX_SUFFIX), index.encode_offsets(), durable=False)
        replace_file(fs, segment.path(TIME_INDEX_SUFFIX), index.encode_times(), durable=False)

    def write_aborted(self, segment: Segment, aborted: Sequence[AbortedTransaction]) -> None:
        """Write the transaction index whole, durably. Raises: OSError."""
        data = b"".join(map(encode_aborted, aborted))
        replace_file(self._directory.fs, segment.path(TRANSACTION_INDEX_SUFFIX), data, durable=True)

    def _offline(self, error: OSError, what: str) -> FirnError:
        failure = storage_error(error, what)
        self._directory.go_offline(str(failure))
        return failure


def has_stale_index(segment: Segment) -> bool:
    """Whether the files lack entries of the segment's sparse indexes."""
    index = segment.index
    return index is not None and (
        len(index.offsets) > segment.index_written or len(index.times) > segment.times_written
    )
