"""In which objects of which write-ahead logs the records of a partition are (ADR 0037, J16 to J21). Pure.

The ranges stand in the partition's record of the cluster log, oldest first. All are closed but perhaps the last, which is that of
the present leader. Each function takes the ranges of a record and returns those of the next.

Tests: ``tests/wal/test_trimming.py``, ``tests/metadata/test_wal_changes.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from app.core.errors import CorruptionError


class PartitionDurability(IntEnum):
    """By which rule records of a partition count as stored. Numbers are those of its record."""

    REPLICAS = 0
    """By replicas (ADR 0024)."""
    TO_OBJECT = 1
    """By both: it changes to ``OBJECT``, and fails over as with ``REPLICAS`` (J40, J42)."""
    OBJECT = 2
    """By the write-ahead log of its leader."""
    FROM_OBJECT = 3
    """By both: it changes to ``REPLICAS``, and fails over as with ``OBJECT`` (J41, J42)."""

    @property
    def by_log(self) -> bool:
        """Whether leaders follow one another by the write-ahead log, and not by replicas (J42)."""
        return self in (PartitionDurability.OBJECT, PartitionDurability.FROM_OBJECT)

    @property
    def needs_disks(self) -> bool:
        """Whether records are, or are to be, nowhere but on the disks of its replicas (J47)."""
        return self is not PartitionDurability.OBJECT


OPEN: Final = -1
"""In place of the last number, while the leader writes."""


class WalId(NamedTuple):
    """A write-ahead log: a broker under one broker epoch (J1)."""

    broker_id: int
    broker_epoch: int

    def __str__(self) -> str:
        return f"{self.broker_id}/{self.broker_epoch}"


class WalRange(NamedTuple):
    """Records of the partition may be in the objects [first, last] of a log."""

    broker_id: int
    broker_epoch: int
    leader_epoch: int
    """Of the leadership that wrote them. Other sections of the partition in these objects do not count (J20)."""
    first: int
    last: int
    """``OPEN`` while its broker leads."""

    @property
    def wal(self) -> WalId:
        return WalId(self.broker_id, self.broker_epoch)

    @property
    def is_open(self) -> bool:
        return self.last == OPEN

    def covers(self, number: int) -> bool:
        """Whether records of the partition may be in that object."""
        return self.first <= number and (self.last == OPEN or number <= self.last)


WalRanges = tuple[WalRange, ...]


def opened(ranges: WalRanges, wal: WalId, leader_epoch: int, next_number: int) -> WalRanges:
    """A broker begins to lead. ``next_number``: a number that it had not begun when it told (J19); 0 if it never told."""
    assert not any(each.is_open for each in ranges), ranges
    return (*ranges, WalRange(*wal, leader_epoch, next_number, OPEN))


def released(ranges: WalRanges, wal: WalId, last: int) -> WalRanges:
    """The leader gives the partition up, and ``last`` is the last object with records of it (J18); lower if there is none."""
    return _closed(ranges, wal, last)


def sealed(ranges: WalRanges, wal: WalId, end: int) -> WalRanges:
    """The whole log was sealed at ``end`` (J16, J21). Ranges of other logs stay as they are.

    Raises: CorruptionError if a closed range has numbers from ``end`` on.
    """
    for each in ranges:
        if each.wal == wal and not each.is_open and each.last >= end:
            raise CorruptionError(
                f"Write-ahead log {wal} is sealed at {end}, and the partition's record names its objects up to {each.last}: "
                "the store has lost objects that were confirmed."
            )
    return _closed(ranges, wal, end - 1) if ranges and ranges[-1].is_open and ranges[-1].wal == wal else ranges


def dropped(ranges: WalRanges, done: Sequence[WalRange]) -> WalRanges:
    """The ranges without ``done``: closed ranges whose records the leader has tiered (J35)."""
    return tuple(each for each in ranges if each.is_open or each not in done)


def _closed(ranges: WalRanges, wal: WalId, last: int) -> WalRanges:
    *before, newest = ranges
    assert newest.is_open, ranges
    assert newest.wal == wal, (ranges, wal)
    return tuple(before) if last < newest.first else (*before, newest._replace(last=last))
