"""Large deletions of offsets: one turn writes only some tombstones, and later turns write the others. Pure.

The batch of a deletion has as many tombstones as one turn may write. If these are not all, it also has sweep records
(``sweeps.py``). So all offsets are gone at once, and a broker that loads the log after a crash continues the deletion. Offsets
committed meanwhile stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from app.coordinator.partition import RawRecord
from app.coordinator.shell import Turn
from app.core.errors import RequestRejected
from app.core.limits import KIB
from app.core.metrics import Counter
from app.groups.offsets.offsets import OffsetStore, group_prefix
from app.groups.offsets.sweeps import TEXT_BYTES_MAX, sweep_tombstones

TOMBSTONES_AT_ONCE: Final = 1_000
"""Tombstones of one batch, and offsets that are checked before the event loop serves other work."""

TOMBSTONES_BYTES_MAX: Final = 512 * KIB
"""Maximum bytes of one batch, for groups with long ids: half of the topic's limit."""

_PLACE_BYTES_MAX: Final = 300
"""Bytes of one tombstone without the group id: the longest topic name, and the framing."""

RETRY_MS: Final = 5_000
"""Pause after a failed append, and before open transactions are checked again."""


SWEEPS_BYTES_MAX: Final = 384 * KIB
"""Bytes of sweep records in one batch beside the tombstones. More sweeps go into further batches of the same turn."""


def sweeps_at_once(group_id: str) -> int:
    """How many sweeps of a group are written in one batch."""
    return SWEEPS_BYTES_MAX // (len(group_prefix(group_id)) + TEXT_BYTES_MAX + _PLACE_BYTES_MAX)


def tombstones_at_once(group_id: str) -> int:
    """How many tombstones of a group's offsets are written in one batch."""
    return min(TOMBSTONES_AT_ONCE, TOMBSTONES_BYTES_MAX // (len(group_prefix(group_id)) + _PLACE_BYTES_MAX))


class DeletionDue(NamedTuple):
    """Timer key with which a deletion continues."""

    number: int


class Deletion:
    """Deleted offsets of one group that have no tombstones yet."""

    def __init__(
        self, group_id: str, places: Iterable[bytes], sweeps: Sequence[int], offsets: OffsetStore, deleted: Counter
    ) -> None:
        """``places``: their keys without the group id. ``sweeps``: numbers of the sweep records that name them. ``deleted``
        counts."""
        self._group_id = group_id
        self._prefix = group_prefix(group_id)
        self._at_once = tombstones_at_once(group_id)
        self._sweeps = sweeps
        self._offsets = offsets
        self._deleted = deleted
        self._places = iter(places)
        self._next: list[bytes] = []
        """Places taken from ``_places`` whose tombstones are not written yet."""
        self._open: list[bytes] = []
        """Places to which an open transaction commits again. A tombstone would undo this commit. But if the transaction is
        aborted, the deleted offset must not come back."""

    def go_on(self, turn: Turn) -> int | None:
        """Write some tombstones. Returns: the delay in ms until the next call; None if all are written.

        Raises: the errors of an append. May be called again.
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
    """Deletions under way in one shard."""

    def __init__(self) -> None:
        self._under_way: dict[DeletionDue, Deletion] = {}
        self._count = 0

    def begin(self, turn: Turn, deletion: Deletion) -> None:
        """Continue a deletion in later turns. It was decided in this turn, or by a previous coordinator."""
        self._count += 1
        key = DeletionDue(self._count)
        self._under_way[key] = deletion
        turn.set_timer(key, 0)

    def due(self, turn: Turn, key: DeletionDue) -> None:
        """Continue a deletion."""
        try:
            wait_ms = self._under_way[key].go_on(turn)
        except RequestRejected:
            wait_ms = RETRY_MS
        if wait_ms is None:
            del self._under_way[key]
        else:
            turn.set_timer(key, wait_ms)
