"""The sparse indexes of a segment: offset to file position, timestamp to offset, aborted transactions. Kafka's formats.

    .index      relative offset int32, position int32      the last offset of a batch and where the batch begins
    .timeindex  timestamp int64, relative offset int32     the greatest timestamp so far, and the last offset of its batch
    .txnindex   version int16 (0), producer id int64, first offset int64, last offset int64, last stable offset int64

While a segment is in use, its entries are in memory in machine order, and are written to the files later. The files only save a
scan of the log: recovery rebuilds any missing part. Pure: no I/O here.

Tests: ``tests/hot/test_formats.py``.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final, NamedTuple

from app.core.errors import CorruptionError
from app.core.units import Offset, ProducerId

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
_TIME_ENTRY: Final = Struct(">qi")
_TIME_BLOCK: Final = Struct(">" + "qi" * 512)
"""Packs many entries in one call: a full index has a quarter of a million."""
_TRANSACTION_ENTRY: Final = Struct(">hqqqq")
TRANSACTION_ENTRY_BYTES: Final = _TRANSACTION_ENTRY.size

_SWAP: Final = sys.byteorder == "little"


class SegmentIndex:
    """Both sparse indexes of one segment. They grow together. Offsets are relative to the segment's base offset."""

    __slots__ = ("offsets", "positions", "time_offsets", "times")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")
        self.times = array("q")
        self.time_offsets = array("i")

    @property
    def memory_bytes(self) -> int:
        return len(self.offsets) * OFFSET_ENTRY_BYTES + len(self.times) * TIME_ENTRY_BYTES

    # --- growing ---

    def add_time(self, max_timestamp: int, relative_offset: int) -> None:
        """Note the greatest timestamp so far, if it is greater than the last noted timestamp (KIP-33)."""
        if max_timestamp > (self.times[-1] if self.times else -1):
            self.times.append(max_timestamp)
            self.time_offsets.append(relative_offset)

    # --- looking up ---

    def position_before(self, relative_offset: int) -> int:
        """Position where the search for an offset starts: the batch of the greatest entry at or below the offset, or 0."""
        slot = bisect_right(self.offsets, relative_offset)
        return self.positions[slot - 1] if slot else 0

    def position_back(self, position: int, back_bytes: int) -> int:
        """Position of the first entry that is at most ``back_bytes`` before an entry's ``position``, but of one entry at least."""
        slot = min(bisect_left(self.positions, position - back_bytes), bisect_left(self.positions, position) - 1)
        return self.positions[slot] if slot >= 0 else 0

    def slot_at_most(self, position: int) -> int:
        """Number of the last entry whose batch begins at or before ``position``; -1 if there is none."""
        return bisect_right(self.positions, position) - 1

    def offset_before_time(self, timestamp: int) -> int:
        """A relative offset. All batches that end before it are older than ``timestamp``. 0 if nothing is known."""
        slot = bisect_right(self.times, timestamp)
        return self.time_offsets[slot - 1] if slot else 0

    # --- shrinking ---

    def truncate(self, relative_end: int, position_end: int) -> None:
        """Drop entries of offsets at or past ``relative_end`` or positions at or past ``position_end``."""
        keep = min(bisect_left(self.offsets, relative_end), bisect_left(self.positions, position_end))
        del self.offsets[keep:], self.positions[keep:]
        keep = bisect_left(self.time_offsets, relative_end)
        del self.times[keep:], self.time_offsets[keep:]

    # --- files ---

    def encode_offsets(self, start: int = 0) -> bytes:
        """The ``.index`` file's bytes from entry ``start`` on."""
        flat = array("i", bytes(OFFSET_ENTRY_BYTES * (len(self.offsets) - start)))
        flat[0::2] = self.offsets[start:]
        flat[1::2] = self.positions[start:]
        if _SWAP:
            flat.byteswap()
        return flat.tobytes()

    def encode_times(self, start: int = 0) -> bytes:
        """The ``.timeindex`` file's bytes from entry ``start`` on."""
        pack = _TIME_ENTRY.pack
        return b"".join(map(pack, self.times[start:], self.time_offsets[start:]))

    @classmethod
    def parse(cls, offset_data: bytes, time_data: bytes, *, log_bytes: int) -> SegmentIndex:
        """The indexes that the files hold. Trailing zero entries (Kafka preallocates) are left out.

        Raises: CorruptionError if entries do not rise, or point past the ``log_bytes`` of the segment.
        """
        index = cls()
        flat = array("i", offset_data[: len(offset_data) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES])
        if _SWAP:
            flat.byteswap()
        offsets, positions = flat[0::2], flat[1::2]
        while len(offsets) and positions[-1] == 0 and offsets[-1] == 0:
            offsets.pop()
            positions.pop()
        if not (_rises(offsets) and _rises(positions)) or (offsets and (offsets[0] < 0 or positions[0] < 0)):
            raise CorruptionError("The entries of an offset index do not rise.")
        if positions and positions[-1] >= log_bytes:
            raise CorruptionError(f"An offset index points to {positions[-1]} in a log of {log_bytes} bytes.")
        times, time_offsets = array("q"), array("i")
        time_data = time_data[: len(time_data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES]
        whole = len(time_data) // _TIME_BLOCK.size * _TIME_BLOCK.size
        for block in _TIME_BLOCK.iter_unpack(time_data[:whole]):
            times.extend(block[0::2])
            time_offsets.extend(block[1::2])
        for time, offset in _TIME_ENTRY.iter_unpack(time_data[whole:]):
            times.append(time)
            time_offsets.append(offset)
        while len(times) > 1 and times[-1] == 0 and time_offsets[-1] == 0:
            times.pop()
            time_offsets.pop()
        if not (_rises(times) and _rises(time_offsets)) or (time_offsets and time_offsets[0] < 0):
            raise CorruptionError("The entries of a time index do not rise.")
        index.offsets, index.positions, index.times, index.time_offsets = offsets, positions, times, time_offsets
        return index


def _rises(values: array[int]) -> bool:
    # Sorting a sorted list is one pass in C. Equal neighbours are let through: they do no harm.
    as_list = values.tolist()
    return as_list == sorted(as_list)


class AbortedTransaction(NamedTuple):
    """One aborted transaction of a partition, as in the transaction index."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    """Offset of the abort marker."""
    last_stable_offset: Offset
    """The last stable offset right after the marker. No transaction that aborts later begins before it."""


def encode_aborted(entry: AbortedTransaction) -> bytes:
    return _TRANSACTION_ENTRY.pack(0, *entry)


def parse_aborted(data: bytes) -> list[AbortedTransaction]:
    """Decode a ``.txnindex`` file. Raises: CorruptionError if it is truncated, has another version, or does not rise."""
    if len(data) % TRANSACTION_ENTRY_BYTES:
        raise CorruptionError(f"A transaction index of {len(data)} bytes is cut short.")
    entries: list[AbortedTransaction] = []
    for version, *fields in _TRANSACTION_ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version != 0 or (entries and entry.last_offset <= entries[-1].last_offset):
            raise CorruptionError("The entries of a transaction index do not rise or are of another version.")
        entries.append(entry)
    return entries
