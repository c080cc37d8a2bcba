"""One append to a numbered log as a pure state machine. Input: outcomes and the time. Output: the next step.

The rules, and why (``docs/formats.md``, "Writing"):

    put       → written       ours
    put       → exists        an entry is there, perhaps our own earlier attempt: read it back
    put       → undecided     (409, 5xx, time-out, lost connection) applied, not applied, or not yet: put the SAME bytes
    read back → our nonce     ours: an earlier attempt was applied, and its response was lost
    read back → other nonce   lost: another writer has this number
    read back → missing       undecided, not "not written": put the SAME bytes
    read back → undecided     read back again
    read back → corrupt       read back again: the transfer may be damaged, and not the stored bytes

    past the deadline         give up, and stop being the writer. The number may still turn out to be ours

Different bytes are never put under the same number. So it does not matter which attempt is applied, when, or how often.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from app.metadata.log.log_format import Entry

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0


class PutOutcome(Enum):
    """The outcome of one put-if-absent."""

    WRITTEN = auto()
    EXISTS = auto()
    UNDECIDED = auto()


class ReadOutcome(Enum):
    """The outcome of a read-back that returned no entry."""

    MISSING = auto()
    UNDECIDED = auto()
    CORRUPT = auto()


@dataclass(frozen=True, slots=True)
class Put:
    """Put the entry's bytes after ``delay_s`` (the shell may vary the delay)."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Read the object under the entry's key after ``delay_s``."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Ours:
    """Done: the entry is durable."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Done: the number belongs to another entry. Our entry was not applied, and never will be."""

    winner: Entry


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The deadline passed, and the number is still undecided."""

    corrupt: bool
    """Whether the last read-back returned corrupt bytes."""


Action: TypeAlias = Put | ReadBack | Ours | Lost | GiveUp


class AppendAttempt:
    """The append of one entry under one number."""

    __slots__ = ("_deadline_s", "_failures", "_nonce", "_writer_id")

    def __init__(self, *, writer_id: str, nonce: bytes, deadline_s: float) -> None:
        """``deadline_s`` is on the same clock as every ``now_s``."""
        self._writer_id = writer_id
        self._nonce = nonce
        self._deadline_s = deadline_s
        self._failures = 0

    def start(self) -> Action:
        """The first step."""
        return Put(0.0)

    def on_put(self, outcome: PutOutcome, now_s: float) -> Action:
        """The next step after a put-if-absent."""
        if outcome is PutOutcome.WRITTEN:
            return Ours()
        if outcome is PutOutcome.EXISTS:
            return ReadBack(0.0)
        return self._again(now_s, put=True)

    def on_read(self, outcome: Entry | ReadOutcome, now_s: float) -> Action:
        """The next step after a read-back."""
        if isinstance(outcome, Entry):
            if outcome.nonce == self._nonce and outcome.writer_id == self._writer_id:
                return Ours()
            return Lost(outcome)
        return self._again(now_s, put=outcome is ReadOutcome.MISSING, corrupt=outcome is ReadOutcome.CORRUPT)

    def _again(self, now_s: float, *, put: bool, corrupt: bool = False) -> Action:
        delay_s = min(BACKOFF_FIRST_S * 2 ** min(self._failures, 10), BACKOFF_MAX_S)
        self._failures += 1
        if now_s + delay_s >= self._deadline_s:
            return GiveUp(corrupt)
        return Put(delay_s) if put else ReadBack(delay_s)
