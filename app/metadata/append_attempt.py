"""One append to a numbered log as a pure state machine: outcomes and the time in, the next thing to do out.

The rules, and why (``docs/formats.md``, "Writing"):

    put       → written       ours
    put       → exists        somebody's entry is there, perhaps our own earlier attempt: read it back
    put       → undecided     (409, 5xx, time-out, lost connection) applied, or not, or not yet: put the SAME bytes
    read back → our nonce     ours: an earlier attempt was applied and its answer lost
    read back → other nonce   lost: another writer has this number
    read back → missing       undecided, not "not written": put the SAME bytes
    read back → undecided     read back again
    read back → corrupt       read back again; what crossed the wire may be bad rather than what is stored

    past the deadline         give up: stop being the writer. The number may still turn out to be ours

Other bytes are never offered under a number, so it does not matter which attempt is applied, nor when, nor how often.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from app.metadata.log_format import Entry

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0


class PutOutcome(Enum):
    """How one put-if-absent ended."""

    WRITTEN = auto()
    EXISTS = auto()
    UNDECIDED = auto()


class ReadOutcome(Enum):
    """How a read-back ended that did not bring an entry."""

    MISSING = auto()
    UNDECIDED = auto()
    CORRUPT = auto()


@dataclass(frozen=True, slots=True)
class Put:
    """Offer the entry's bytes, after waiting ``delay_s`` (the shell may spread it)."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Read what is stored under the entry's key, after waiting ``delay_s``."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Ours:
    """Done: the entry is durable."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Done: the number belongs to another entry; ours was not and will never be applied."""

    winner: Entry


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The deadline passed with the number undecided."""

    corrupt: bool
    """The last read-back was of bytes that cannot be trusted."""


Action: TypeAlias = Put | ReadBack | Ours | Lost | GiveUp


class AppendAttempt:
    """The appending of one entry under one number."""

    __slots__ = ("_deadline_s", "_failures", "_nonce", "_writer_id")

    def __init__(self, *, writer_id: str, nonce: bytes, deadline_s: float) -> None:
        """``deadline_s`` is on the same clock as every ``now_s``."""
        self._writer_id = writer_id
        self._nonce = nonce
        self._deadline_s = deadline_s
        self._failures = 0

    def start(self) -> Action:
        """What to do first."""
        return Put(0.0)

    def on_put(self, outcome: PutOutcome, now_s: float) -> Action:
        """What to do after a put-if-absent."""
        if outcome is PutOutcome.WRITTEN:
            return Ours()
        if outcome is PutOutcome.EXISTS:
            return ReadBack(0.0)
        return self._again(now_s, put=True)

    def on_read(self, outcome: Entry | ReadOutcome, now_s: float) -> Action:
        """What to do after a read-back."""
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
