"""Which leader epoch began at which offset (KIP-101, KIP-279, KIP-320). Pure.

Tests: ``tests/hot/test_formats.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from app.core.units import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from app.hot.checkpoints import EpochStart


class LeaderEpochs:
    """The epochs of one log. Both epochs and start offsets rise."""

    __slots__ = ("_entries", "dirty")

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries = list(entries)
        self.dirty = False
        """Whether the epochs changed since the owner last wrote the checkpoint. The owner resets it."""

    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> LeaderEpoch:
        """-1 if there is none."""
        return self._entries[-1].epoch if self._entries else NO_LEADER_EPOCH

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Records from ``start_offset`` on belong to ``epoch``. Contradicting entries are dropped, as KIP-101 says."""
        entries = self._entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochStart(epoch, start_offset))
        self.dirty = True

    def end_offset_of(self, epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """Where the records of ``epoch`` end: the largest known epoch that is at most ``epoch``, and the end offset of its records.

        Returns: (-1, -1) if the epoch is above every one known, or none is known.
        """
        entries = self._entries
        if not entries or epoch < 0 or epoch > entries[-1].epoch:
            return NO_LEADER_EPOCH, NO_OFFSET
        if epoch == entries[-1].epoch:
            return epoch, log_end_offset
        above = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        floor = entries[above - 1].epoch if above else epoch
        return floor, entries[above].start_offset

    def epoch_of(self, offset: Offset) -> LeaderEpoch:
        """The epoch of the record at ``offset``; -1 if it is not known."""
        above = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[above - 1].epoch if above else NO_LEADER_EPOCH

    def truncate_from_end(self, end_offset: Offset) -> None:
        """Forget epochs that began at or after ``end_offset``."""
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
            self.dirty = True

    def truncate_from_start(self, start_offset: Offset) -> None:
        """Forget epochs that ended at or before ``start_offset``. The epoch of ``start_offset`` then begins there."""
        above = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if above and self._entries[above - 1].start_offset < start_offset:
            self._entries[:above] = [EpochStart(self._entries[above - 1].epoch, start_offset)]
            self.dirty = True
        elif above > 1:
            del self._entries[: above - 1]
            self.dirty = True

    def replace(self, entries: Iterable[EpochStart]) -> None:
        self._entries = list(entries)
        self.dirty = True


def between(lineage: Iterable[EpochStart], start: Offset, end: Offset) -> tuple[EpochStart, ...]:
    """The epochs of the offsets in [start, end), the first of them from ``start`` on."""
    epochs = LeaderEpochs(lineage)
    epochs.truncate_from_start(start)
    epochs.truncate_from_end(end)
    return epochs.entries()
