"""The active segment of one log: writes of its bytes and index entries, and the roll to the next segment.

A full or old segment does not close itself: the code that appends asks first, and then begins the next segment. As in Kafka,
the age of a segment is the time from the greatest timestamp of its first append to the timestamps of the new records. A replay
of old data therefore rolls by its own time. The clock counts only if records have no timestamps.

Tests: ``tests/hot/test_append.py``, ``tests/hot/test_recovery.py``.
"""

from __future__ import annotations

from app.configs import TopicConfig
from app.configs.numbers import LONG_MAX
from app.core.errors import FirnError, StorageFull
from app.core.units import Offset
from app.hot.directory import LogDirectory
from app.hot.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, SegmentIndex
from app.hot.recovery import new_segment
from app.hot.segment_list import SegmentList
from app.hot.segments import RELATIVE_OFFSET_MAX, Segment, finish_times
from app.machine.files import File, storage_error


class SegmentWriter:
    """Writes to one log's active segment. The log itself tracks the segment's size and end."""

    __slots__ = (
        "_config",
        "_directory",
        "_files",
        "_path",
        "index_entries_max",
        "index_interval_bytes",
        "segment",
        "segment_bytes",
        "time_entries_max",
        "torn",
    )

    def __init__(self, directory: LogDirectory, path: str, files: SegmentList, config: TopicConfig) -> None:
        self._directory = directory
        self._path = path
        self._files = files
        self.segment = files.segments[-1]
        self.torn = False
        """Whether a failed write left bytes that could not be cut off. Then ``mend`` must run before the next write."""
        self.update_config(config)

    def update_config(self, config: TopicConfig) -> None:
        """Apply changed settings of the topic."""
        self._config = config
        self.segment_bytes = config.segment_bytes
        self.index_interval_bytes = config.index_interval_bytes
        self.index_entries_max = max(1, config.segment_index_bytes // OFFSET_ENTRY_BYTES)
        self.time_entries_max = max(1, config.segment_index_bytes // TIME_ENTRY_BYTES)
        if self.segment.size_bytes:
            self._set_roll_times()

    # --- when it is full or old -------------------------------------------------------------------------------------

    def must_roll(self, length: int, end_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether records of ``length`` bytes up to ``end_offset``, with ``max_timestamp`` in a batch, need a new segment."""
        segment = self.segment
        return segment.size_bytes > 0 and (
            segment.size_bytes + length > self.segment_bytes
            or max_timestamp > segment.roll_after_timestamp
            or now_ms > segment.roll_after_now_ms
            or end_offset - 1 - segment.base_offset > RELATIVE_OFFSET_MAX
        )

    def roll(self, base_offset: int) -> Segment:
        """Close the active segment, whose index is loaded, and begin another at ``base_offset``.

        Raises: StorageFull, StorageUnavailable; then nothing was done.
        """
        old = self.segment
        segment = new_segment(self._directory.descriptors, self._path, Offset(base_offset))
        self._directory.descriptors.open(segment.handle, create=True)
        assert old.index is not None
        finish_times(old, old.index)
        self._files.append(segment)
        self.segment = segment
        self._directory.metrics.rolls.value += 1
        return segment

    def note_first_append(self, max_timestamp: int, now_ms: int) -> None:
        """Note that the segment has its first records. Its age counts from now on."""
        self.segment.first_append_ms = now_ms
        self.segment.rolling_timestamp = max_timestamp
        self._set_roll_times()

    def _set_roll_times(self) -> None:
        segment, config = self.segment, self._config
        wait_ms = config.segment_ms
        if config.compacted:
            # Records in the active segment cannot be compacted (KIP-354).
            wait_ms = min(wait_ms, max(1, config.max_compaction_lag_ms))
        if config.segment_jitter_ms > 0:
            wait_ms -= self._directory.rng.randrange(min(config.segment_jitter_ms, wait_ms + 1))
        segment.roll_after_timestamp = segment.roll_after_now_ms = LONG_MAX
        if segment.rolling_timestamp >= 0:
            segment.roll_after_timestamp = segment.rolling_timestamp + wait_ms
        else:
            segment.roll_after_now_ms = segment.first_append_ms + wait_ms
        if segment.index is not None:
            self._roll_if_full(segment.index)

    # --- index entries ----------------------------------------------------------------------------------------------

    def add_index_entry(self, index: SegmentIndex, last_offset: int, position: int) -> None:
        """Add the batch at ``position``, which ends with ``last_offset``, to both indexes of the active segment."""
        segment = self.segment
        index.offsets.append(last_offset - segment.base_offset)
        index.positions.append(position)
        index.add_time(segment.max_timestamp, segment.max_timestamp_offset - segment.base_offset)
        self._roll_if_full(index)

    def _roll_if_full(self, index: SegmentIndex) -> None:
        if len(index.offsets) >= self.index_entries_max or len(index.times) >= self.time_entries_max:
            # Full: the next batch goes to a new segment.
            self.segment.roll_after_now_ms = -1

    # --- failed writes ----------------------------------------------------------------------------------------------

    def undo(self, file: File, error: OSError) -> FirnError:
        """Cut off the bytes of a failed write. Returns: the error to raise. Except for StorageFull the directory is then
        offline."""
        segment = self.segment
        try:
            file.truncate(segment.size_bytes)
        except OSError:
            # The next append tries again before it writes; until then nothing reads past the segment's size.
            self.torn = True
        failure = storage_error(error, f"Cannot write to {segment.handle.path}")
        if not isinstance(failure, StorageFull):
            self._directory.go_offline(str(failure))
        return failure

    def mend(self) -> None:
        """Cut off the bytes of a failed write, if that was not possible at once. Raises: StorageUnavailable."""
        if not self.torn:
            return
        segment = self.segment
        try:
            self._directory.descriptors.open(segment.handle).truncate(segment.size_bytes)
        except OSError as error:
            raise storage_error(error, f"Cannot cut off a failed write in {segment.handle.path}") from error
        self.torn = False
