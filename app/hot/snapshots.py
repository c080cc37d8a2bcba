"""The producer state of one log as of offsets in the past: what rolls took and no sync has written yet, and ``.snapshot`` files.

A roll takes one, so that the state at a segment's base is known from then on; it waits in memory for the next sync. A sync takes
one as of the log end too, as recovery replays what follows the newest. Only those at the bases of segments, and the newest, stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from app.errors import CorruptionError
from app.hot.producers import ProducerStates, SnapshotRow, encode_snapshot, parse_snapshot
from app.hot.recovery import list_snapshots, replay_producers, snapshot_path
from app.hot.segments import Segment
from app.limits import MIB
from app.machine.files import FileSystem, read_file, replace_file, storage_error, unlink_quietly
from app.units import Offset

SNAPSHOT_PRODUCERS_MAX: Final = 5_000
"""Producers up to which a sync on the way takes a snapshot too; of more, copying them would hold up the loop, and only rolls do."""

REPLAY_BYTES_MAX: Final = 4 * MIB
"""Appended by producers without ids before a sync takes a snapshot though it is empty: recovery replays what follows the newest."""


class ProducerSnapshots:
    """The snapshots of one log, which owns the producers and the segments and changes them in place."""

    __slots__ = ("_covered_bytes", "_fs", "_path", "_pending", "_producers", "_segments")

    def __init__(self, fs: FileSystem, path: str, producers: ProducerStates, segments: list[Segment]) -> None:
        self._fs = fs
        self._path = path
        self._producers = producers
        self._segments = segments
        self._pending: dict[int, list[SnapshotRow]] = {}
        self._covered_bytes = 0
        """Of the active segment, below the newest snapshot that a sync was to take."""

    @property
    def pending(self) -> bool:
        """Whether there are some that no sync has written yet."""
        return bool(self._pending)

    def take_at_roll(self, base_offset: int) -> None:
        """The segment that begins at ``base_offset``, the log end, is the active one now."""
        self._pending[base_offset] = self._producers.rows()
        self._covered_bytes = 0

    def take_for_sync(self, end_offset: int) -> dict[int, list[SnapshotRow]]:
        """What a sync of everything below ``end_offset``, the log end, is to write, by offset."""
        rows = self._pending.copy()
        producers, size_bytes = len(self._producers.entries), self._segments[-1].size_bytes
        if producers <= SNAPSHOT_PRODUCERS_MAX and (producers or size_bytes - self._covered_bytes >= REPLAY_BYTES_MAX):
            rows[end_offset] = self._producers.rows()
            self._covered_bytes = size_bytes
        return rows

    def written(self, offsets: Iterable[int]) -> None:
        """A sync has made these durable."""
        for offset in offsets:
            self._pending.pop(offset, None)

    def encoded_at(self, offset: int) -> bytes:
        """The state as of ``offset``, below the log end, in Kafka's format.

        From memory, from its file, or else rebuilt from the log, which may take long.

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
            raise storage_error(error, f"cannot read a producer snapshot of {self._path}") from error

    def _rebuild(self, offset: int) -> bytes:
        try:
            producers = replay_producers(self._fs, self._path, self._segments, Offset(offset))
        except OSError as error:
            raise storage_error(error, f"cannot rebuild a producer snapshot of {self._path}") from error
        return encode_snapshot(producers.rows())

    def write_pending(self, base_offset: int) -> None:
        """Make the one at a segment's base durable now, if no sync has yet: the segments before it are about to go, and what
        producers did there is known from nowhere else then. Raises: OSError."""
        rows = self._pending.get(base_offset)
        if rows:
            self.write(base_offset, rows)

    def write(self, offset: int, rows: Iterable[SnapshotRow]) -> None:
        """Make the state as of ``offset`` durable. Raises: OSError."""
        replace_file(self._fs, snapshot_path(self._path, Offset(offset)), encode_snapshot(rows), durable=True)

    def delete_below(self, offset: int) -> None:
        """Forget those below ``offset``. Raises: OSError."""
        self._delete(lambda snapshot: snapshot < offset)

    def delete_above(self, offset: int) -> None:
        """Forget those above ``offset``; -1 is all. Raises: OSError."""
        self._delete(lambda snapshot: snapshot > offset)

    def _delete(self, doomed: Callable[[int], bool]) -> None:
        for snapshot in filter(doomed, list_snapshots(self._fs.list_dir(self._path))):
            unlink_quietly(self._fs, snapshot_path(self._path, snapshot))
        for pending in list(filter(doomed, self._pending)):
            del self._pending[pending]
