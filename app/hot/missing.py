"""Segment files that are missing in the middle of a log, as a start finds them.

A segment that was synced is not read again at a start. Its end is the base of the next segment file, so a missing file between the
two would not show. But a roll leaves more names than the log file: indexes, and the producer snapshot at the base. A name without
its log file is the sign of a loss, or of a deletion that a kill interrupted. Only then the tail of the segment before is read. It
decides.

A segment of which every file is gone leaves no sign. Nor is a log looked at that was compacted, or that may be: there offsets are
missing with and without a loss.

Tests: ``tests/hot/test_missing.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from app.core.errors import CorruptionError
from app.core.units import Offset
from app.hot.indexes import SegmentIndex
from app.hot.segments import LOG_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, Readable, Segment, walk

_SIDE_SUFFIXES = tuple(suffix for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX) if suffix != LOG_SUFFIX)


class LostRange(NamedTuple):
    """Offsets between two segments whose files are missing: [start, end)."""

    start: Offset
    end: Offset

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


def bases_without_log(names: Collection[str]) -> list[int]:
    """Rising offsets of the side files and snapshots among ``names`` that have no log file."""
    logs, sides = set(), set()
    for name in names:
        number, dot, suffix = name.partition(".")
        if dot and number.isdigit():
            if dot + suffix == LOG_SUFFIX:
                logs.add(int(number))
            elif dot + suffix in _SIDE_SUFFIXES:
                sides.add(int(number))
    return sorted(sides - logs)


def end_in_file(segment: Segment, file: Readable, index: SegmentIndex) -> Offset:
    """One past the last offset in the file of a rolled segment. Reads the headers behind the last entry of ``index``.

    Damage ends the segment before it: the bytes behind it cannot be read either.
    """
    end = segment.base_offset
    for start in (index.positions[-1] if index.positions else 0, 0):
        try:
            for _, header, _ in walk(file, start, segment.size_bytes, verify=False):
                end = Offset(header.end_offset)
            return end
        except CorruptionError:
            if start == 0:
                break  # a read of the damaged batch raises
            end = segment.base_offset  # the index may not fit the segment: its first batch does
    return end


def within(lost: Iterable[LostRange], offset: int) -> bool:
    """Whether an offset is in one of the ranges."""
    return any(one.start <= offset < one.end for one in lost)


def without_ended(lost: Sequence[LostRange], start: int) -> tuple[LostRange, ...]:
    """The ranges that do not end at or below ``start``, the first offset that counts."""
    return tuple(one for one in lost if one.end > start)
