"""Deletions of more offsets than one turn should delete: some go, the event loop turns, and it goes on. Pure.

- Of a **group** the first batch says that all is gone (``EVERYTHING``); the tombstones that follow only have the log say so in the
  common way. Whoever loads it after a crash writes those that are missing.
- Of **offsets that somebody has named** each goes by itself. Whoever asked is answered once the last tombstone is written, or the
  first that cannot be; after a crash, when nobody was answered, some may be there and some not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from app.coordinator.shell import Reply, Turn
from app.errors import ErrorCode, RequestRejected
from app.groups.offsets import OffsetStore, group_prefix
from app.limits import KIB
from app.metrics import Counter

TOMBSTONES_AT_ONCE: Final = 1_000
"""Tombstones of one batch, and offsets that are looked at before the event loop turns."""

TOMBSTONES_BYTES_MAX: Final = 512 * KIB
"""Of one batch, for groups with long ids: half of what the topic takes."""

_PLACE_BYTES_MAX: Final = 300
"""Of one tombstone beside the group: the longest name of a topic, and what is around it."""

RETRY_MS: Final = 5_000
"""After an append that failed, until it is tried again."""


def tombstones_at_once(group_id: str) -> int:
    """How many tombstones of a group's offsets are written in one batch."""
    return min(TOMBSTONES_AT_ONCE, TOMBSTONES_BYTES_MAX // (len(group_prefix(group_id)) + _PLACE_BYTES_MAX))


class DeletionDue(NamedTuple):
    """Key of the timer by which a deletion goes on."""

    number: int


class Deletion(Protocol):
    """What is to be deleted."""

    is_decided: bool
    """Nobody sees it any more, so that its tombstones have to be written sooner or later."""

    def go_on(self, turn: Turn) -> bool:
        """Delete some; answers whether that was the last. Raises: what an append raises, and may be called again."""
        ...


class DeletionOfGroup:
    """The offsets that a deleted group had. What is committed to a new group of that name meanwhile stays."""

    is_decided = True

    def __init__(self, group_id: str, places: Iterable[bytes], offsets: OffsetStore, deleted: Counter) -> None:
        """``places``: what follows the group in their keys. ``deleted`` counts them."""
        self._group_id = group_id
        self._prefix = group_prefix(group_id)
        self._at_once = tombstones_at_once(group_id)
        self._offsets = offsets
        self._deleted = deleted
        self._places = iter(places)
        self._next: list[bytes] = []
        """Taken from ``_places``, and not written yet."""

    def go_on(self, turn: Turn) -> bool:
        places = self._next = self._next or list(islice(self._places, self._at_once))
        gone = [place for place in places if not self._offsets.has(self._group_id, place)]
        if gone:
            turn.append([(self._prefix + place, None) for place in gone])
            self._deleted.value += len(gone)
        self._next = []
        return len(places) < self._at_once


class DeletionOfOffsets:
    """Offsets that somebody has named, of a group that goes on. What is committed meanwhile stays."""

    is_decided = False

    def __init__(
        self,
        group_id: str,
        named: Iterable[tuple[str, int]],
        offsets: OffsetStore,
        forget: Callable[[Turn, str, Sequence[tuple[str, int]]], None],
    ) -> None:
        """``forget`` writes tombstones and then forgets; it raises what an append raises."""
        self._group_id = group_id
        self._named = iter(named)
        self._at_once = tombstones_at_once(group_id)
        self._offsets = offsets
        self._forget = forget
        self._log_end = offsets.newest_log_end

    def go_on(self, turn: Turn) -> bool:
        some = list(islice(self._named, self._at_once))
        gone = [place for place in some if self._offsets.is_known(self._group_id, *place, self._log_end)]
        self._forget(turn, self._group_id, gone)
        return len(some) < self._at_once


class Deletions:
    """Those under way in one shard."""

    def __init__(self) -> None:
        self._under_way: dict[DeletionDue, tuple[Deletion, Reply[ErrorCode] | None]] = {}
        self._count = 0

    def begin(self, turn: Turn, deletion: Deletion, reply: Reply[ErrorCode] | None) -> None:
        """Delete what can be deleted in this turn, and go on in others. ``reply`` is for who waits, if anybody does."""
        self.due(turn, self._add(deletion, reply))

    def go_on(self, turn: Turn, deletion: Deletion) -> None:
        """Delete in other turns, for nobody who waits: it began in this one, or at a coordinator before this one."""
        turn.set_timer(self._add(deletion, None), 0)

    def _add(self, deletion: Deletion, reply: Reply[ErrorCode] | None) -> DeletionDue:
        self._count += 1
        key = DeletionDue(self._count)
        self._under_way[key] = deletion, reply
        return key

    def due(self, turn: Turn, key: DeletionDue) -> None:
        """Go on with a deletion."""
        deletion, reply = self._under_way.pop(key)
        code, wait_ms = ErrorCode.NONE, None
        try:
            if not deletion.go_on(turn):
                wait_ms = 0
        except RequestRejected as error:
            code = error.code
            if deletion.is_decided:
                wait_ms = RETRY_MS
        if reply is not None and wait_ms != 0:
            turn.answer(reply, code)
            reply = None
        if wait_ms is not None:
            self._under_way[key] = deletion, reply
            turn.set_timer(key, wait_ms)

    def unloaded(self, turn: Turn) -> None:
        """Nothing more can be written here: whoever coordinates the group next finds what is left."""
        for _, reply in self._under_way.values():
            if reply is not None:
                turn.answer(reply, ErrorCode.NOT_COORDINATOR)
        self._under_way.clear()
