"""How a write-ahead log is ended by another process, for good (ADR 0037, J9 to J13). Pure.

    List ──► ReadTails ──┬─ a seal ───────────────────► Check
      ▲                  └─ none ──► PutSeal
      │                    PutSeal ──┬─ written ──────► Check
      │                              └─ exists ──► ReadTails ──┬─ a seal ──► Check
      │                                                        └─ records ─► PutSeal of the next number, once
      │                                                 Check ──┬─ nothing above ──► Sealed
      └── objects above the window, a seal above, objects that vanish, or a writer that is faster ──┘

Each action may be repeated by the shell until its outcome is known: all of them are idempotent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from app.wal.format import WINDOW

NOTHING: Final = -1


class Found(Enum):
    """The kind of the object of a tail that was read."""

    RECORDS = auto()
    SEAL = auto()
    MISSING = auto()


class List(NamedTuple):
    """List the numbers of the log's objects above ``above``."""

    above: int


class ReadTails(NamedTuple):
    """Read the kinds of these objects."""

    numbers: tuple[int, ...]


class PutSeal(NamedTuple):
    """Put a seal at that number, if absent: the same bytes at every try."""

    number: int


class Sealed(NamedTuple):
    """The log has ended: objects below ``end`` count, and nothing else ever will."""

    end: int


Action: TypeAlias = List | ReadTails | PutSeal | Sealed


class _Stage(Enum):
    SCAN = auto()
    SCAN_TAILS = auto()
    PUT = auto()
    RIVAL = auto()
    CHECK = auto()
    CHECK_TAILS = auto()


class Sealing:
    """One attempt to end one log. The caller reports the outcome of each action, and does the next one."""

    def __init__(self, *, window: int = WINDOW) -> None:
        self._window = window
        self._stage = _Stage.SCAN
        self._listed: Collection[int] = ()
        self._number = NOTHING
        self._chased = False
        self.rounds = 0
        """How often it began: more than a few times only against a writer that is alive."""

    def start(self) -> Action:
        """The first action (J9)."""
        self._stage = _Stage.SCAN
        self._chased = False
        self.rounds += 1
        return List(NOTHING)

    def on_list(self, numbers: Collection[int]) -> Action:
        """The numbers that a ``List`` found."""
        self._listed = frozenset(numbers)
        if self._stage is _Stage.SCAN:
            self._stage = _Stage.SCAN_TAILS
            greatest = max(numbers, default=NOTHING)
            return self._read_or(range(max(0, greatest - self._window), greatest + 1))
        assert self._stage is _Stage.CHECK, self._stage
        if any(number > self._number + self._window for number in numbers):
            return self.start()  # J10: it was durable once, and trimmed
        self._stage = _Stage.CHECK_TAILS
        return self._read_or(range(self._number + 1, self._number + self._window + 1))

    def on_tails(self, found: Mapping[int, Found]) -> Action:
        """The kinds of objects that ``ReadTails`` found."""
        if Found.MISSING in found.values():
            return self.start()  # another process trims, or has sealed and deletes
        seals = [number for number, kind in found.items() if kind is Found.SEAL]
        match self._stage:
            case _Stage.SCAN_TAILS:
                if seals:
                    # Since the list was made it may have been put where records were trimmed: J10 judges this one, too.
                    self._number = max(seals)
                    return self._check()
                greatest = max(self._listed, default=NOTHING)
                first = max(0, greatest - self._window)
                return self._put(next(each for each in range(first, greatest + 2) if each not in self._listed))
            case _Stage.RIVAL:
                if seals:
                    return self._check()
                if self._chased:
                    return self.start()  # its writer is alive and faster: a round is lost, and these are counted
                self._chased = True
                return self._put(self._number + 1)
            case _Stage.CHECK_TAILS:
                return self.start() if seals else Sealed(self._number)  # J10: a seal above ends the log
            case _:
                raise AssertionError(self._stage)

    def on_put(self, *, written: bool) -> Action:
        """The outcome of ``PutSeal``, which is known: written by this taker, or there was an object."""
        assert self._stage is _Stage.PUT, self._stage
        if written:
            return self._check()
        self._stage = _Stage.RIVAL
        return ReadTails((self._number,))

    def _put(self, number: int) -> Action:
        self._stage = _Stage.PUT
        self._number = number
        return PutSeal(number)

    def _check(self) -> Action:
        self._stage = _Stage.CHECK
        return List(self._number)

    def _read_or(self, numbers: range) -> Action:
        there = tuple(number for number in numbers if number in self._listed)
        return ReadTails(there) if there else self.on_tails({})
