"""Deletions of more offsets than one turn should write tombstones for: the others follow, some at a time. Pure.

The batch that decides on a deletion has as many tombstones as one turn should write and, if those are not all, sweeps
(``sweeps.py``), so that all is gone at once and whoever loads the log after a crash goes on. What is committed meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from app.coordinator.partition import RawRecord
from app.coordinator.shell import Turn
from app.errors import RequestRejected
from app.groups.offsets import OffsetStore, group_prefix
from app.groups.sweeps import TEXT_BYTES_MAX, sweep_tombstones
from app.limits import KIB
from app.metrics import Counter

TOMBSTONES_AT_ONCE: Final = 1_000
"""Tombstones of one batch, and offsets that are looked at before the event loop turns."""

TOMBSTONES_BYTES_MAX: Final = 512 * KIB
"""Of one batch, for groups with long ids: half of what the topic takes."""

_PLACE_BYTES_MAX: Final = 300
"""Of one tombstone beside the group: the longest name of a topic, and what is around it."""

RETRY_MS: Final = 5_000
"""After an append that failed, until it is tried again, and until transactions are looked at again that have not ended."""


SWEEPS_BYTES_MAX: Final = 384 * KIB
"""Of one batch beside those tombstones. What it takes more to name is decided on by further batches of the same turn."""


def sweeps_at_once(group_id: str) -> int:
    """How many sweeps of a group are written in one batch."""
    return SWEEPS_BYTES_MAX // (len(group_prefix(group_id)) + TEXT_BYTES_MAX + _PLACE_BYTES_MAX)


def tombstones_at_once(group_id: str) -> int:
    """How many tombstones of a group's offsets are written in one batch."""
    return min(TOMBSTONES_AT_ONCE, TOMBSTONES_BYTES_MAX // (len(group_prefix(group_id)) + _PLACE_BYTES_MAX))


class DeletionDue(NamedTuple):
    """Key of the timer by which a deletion goes on."""

    number: int


class Deletion:
    """Offsets of one group that were deleted and have no tombstones yet."""

    def __init__(
        self, group_id: str, places: Iterable[bytes], sweeps: Sequence[int], offsets: OffsetStore, deleted: Counter
    ) -> None:
        """``places``: what follows the group in their keys; ``sweeps``: numbers of those that name them. ``deleted`` counts."""
        self._group_id = group_id
        self._prefix = group_prefix(group_id)
        self._at_once = tombstones_at_once(group_id)
        self._sweeps = sweeps
        self._offsets = offsets
        self._deleted = deleted
        self._places = iter(places)
        self._next: list[bytes] = []
        """Taken from ``_places``, and not written yet."""
        self._open: list[bytes] = []
        """Those that an open transaction commits anew. A tombstone would undo that; but if the transaction is aborted, what was
        deleted must not come back."""

    def go_on(self, turn: Turn) -> int | None:
        """Write some tombstones; answers in how many ms to go on, None if those were the last.

        Raises: what an append raises, and may be called again.
        """
        places = self._next = self._next or list(islice(self._places, self._at_once))
        found = [(place, *self._offsets.look_at(self._group_id, place)) for place in places]
        gone = [place for place, is_committed, is_pending in found if not (is_committed or is_pending)]
        open_now = [place for place, is_committed, is_pending in found if is_pending and not is_committed]
        is_end = len(places) < self._at_once
        is_done = is_end and not (self._open or open_now)
        records: list[RawRecord] = [(self._prefix + place, None) for place in gone]
        if is_done:
            records += sweep_tombstones(self._group_id, self._sweeps)
        if records:
            turn.append(records)
        self._deleted.value += len(gone)
        self._open += open_now
        self._next = []
        if is_done:
            return None
        if not is_end:
            return 0
        self._places, self._open = iter(self._open), []
        return RETRY_MS


class Deletions:
    """Those under way in one shard."""

    def __init__(self) -> None:
        self._under_way: dict[DeletionDue, Deletion] = {}
        self._count = 0

    def begin(self, turn: Turn, deletion: Deletion) -> None:
        """Have it go on in other turns: it was decided in this one, or by a coordinator before this one."""
        self._count += 1
        key = DeletionDue(self._count)
        self._under_way[key] = deletion
        turn.set_timer(key, 0)

    def due(self, turn: Turn, key: DeletionDue) -> None:
        """Go on with a deletion."""
        try:
            wait_ms = self._under_way[key].go_on(turn)
        except RequestRejected:
            wait_ms = RETRY_MS
        if wait_ms is None:
            del self._under_way[key]
        else:
            turn.set_timer(key, wait_ms)
