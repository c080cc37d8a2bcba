"""Snapshots of the producer state of one log at past offsets: in memory until a sync writes them, then in ``.snapshot`` files.

A roll takes a snapshot, so that the state at a segment's base is known. It stays in memory until the next sync. A sync also takes a
snapshot at the log end, because recovery replays the records after the newest snapshot. Only the snapshots at segment bases and the
newest one are kept.

Tests: ``tests/hot/test_recovery.py``, ``tests/hot/test_durability.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from app.core.errors import CorruptionError
from app.core.limits import MIB
from app.core.units import Offset
from app.hot.producers import ProducerStates, SnapshotRow, encode_snapshot, parse_snapshot
from app.hot.recovery import list_snapshots, replay_producers, snapshot_path
from app.hot.segments import Segment
from app.machine.files import FileSystem, read_file, replace_file, storage_error, unlink_quietly

SNAPSHOT_PRODUCERS_MAX: Final = 5_000
"""A sync between rolls takes a snapshot only up to this number of producers, because a larger copy would delay the event loop."""

REPLAY_BYTES_MAX: Final = 4 * MIB
"""After so many bytes of producers without ids a sync takes an empty snapshot, to shorten the replay in recovery."""


class ProducerSnapshots:
    """The snapshots of one log. The log owns producers and segments, and changes them in place."""

    __slots__ = ("_covered_bytes", "_fs", "_path", "_pending", "_producers", "_segments")

    def __init__(self, fs: FileSystem, path: str, producers: ProducerStates, segments: list[Segment]) -> None:
        self._fs = fs
        self._path = path
        self._producers = producers
        self._segments = segments
        self._pending: dict[int, list[SnapshotRow]] = {}
        self._covered_bytes = 0
        """Bytes of the active segment below the newest snapshot that a sync planned."""

    @property
    def pending(self) -> bool:
        """Whether a snapshot waits for a sync to write it."""
        return bool(self._pending)

    def take_at_roll(self, base_offset: int) -> None:
        """Note that the segment at ``base_offset``, which is the log end, is now active."""
        self._pending[base_offset] = self._producers.rows()
        self._covered_bytes = 0

    def take_for_sync(self, end_offset: int) -> dict[int, list[SnapshotRow]]:
        """The snapshots, by offset, that a sync up to ``end_offset`` must write. ``end_offset`` is the log end."""
        rows = self._pending.copy()
        producers, size_bytes = len(self._producers.entries), self._segments[-1].size_bytes
        if producers <= SNAPSHOT_PRODUCERS_MAX and (producers or size_bytes - self._covered_bytes >= REPLAY_BYTES_MAX):
            rows[end_offset] = self._producers.rows()
            self._covered_bytes = size_bytes
        return rows

    def written(self, offsets: Iterable[int]) -> None:
        """Note that a sync has made these snapshots durable."""
        for offset in offsets:
            self._pending.pop(offset, None)

    def encoded_at(self, offset: int) -> bytes:
        """The state at ``offset``, below the log end, in Kafka's format.

        It comes from memory, from its file, or from a replay of the log, which may take long.

        Raises: CorruptionError, StorageUnavailable.
        """
        rows = self._pending.get(offset)
        if rows is not None:
            return encode_snapshot(rows)
        try:
            data = read_file(self._fs, snapshot_path(self._path, Offset(offset)))
            parse_snapshot(data)
            return data
        except (FileNotFoundError, CorruptionError):
            return self._rebuild(offset)
        except OSError as error:
            raise storage_error(error, f"Cannot read a producer snapshot of {self._path}") from error

    def _rebuild(self, offset: int) -> bytes:
        try:
            producers = replay_producers(self._fs, self._path, self._segments, Offset(offset))
        except OSError as error:
            raise storage_error(error, f"Cannot rebuild a producer snapshot of {self._path}") from error
        return encode_snapshot(producers.rows())

    def write_pending(self, base_offset: int) -> None:
        """Write the snapshot at a segment's base durably now, unless a sync has written it. The earlier segments will be
        deleted, and then only the snapshot has their producer state. Raises: OSError."""
        rows = self._pending.get(base_offset)
        if rows:
            self.write(base_offset, rows)

    def write(self, offset: int, rows: Iterable[SnapshotRow]) -> None:
        """Write the state at ``offset`` durably. Raises: OSError."""
        replace_file(self._fs, snapshot_path(self._path, Offset(offset)), encode_snapshot(rows), durable=True)

    def delete_below(self, offset: int) -> None:
        """Delete snapshots below ``offset``. Raises: OSError."""
        self._delete(lambda snapshot: snapshot < offset)

    def delete_above(self, offset: int) -> None:
        """Delete snapshots above ``offset``; -1 deletes all. Raises: OSError."""
        self._delete(lambda snapshot: snapshot > offset)

    def _delete(self, doomed: Callable[[int], bool]) -> None:
        for snapshot in filter(doomed, list_snapshots(self._fs.list_dir(self._path))):
            unlink_quietly(self._fs, snapshot_path(self._path, snapshot))
        for pending in list(filter(doomed, self._pending)):
            del self._pending[pending]
