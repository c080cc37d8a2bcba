"""The transactional ids of one caller's keyed requests in one HTTP process (ADR 0043, EO8). Pure.

The broker names the prefix: a hash of the principal, of a fixed length. So no principal's prefix is the beginning of another's.
Each process start adds a name of its own, so two processes never fence each other. Several requests of a caller run side by side,
each with an id of its own. An id rests after each transaction, whose markers may still be on their way: a transaction that begins
before they are written waits for them. An id whose last transaction may not have ended is set aside, so that a partition without
a leader does not hold up the requests after it.

Tests: ``tests/exactly_once/test_transactional_ids.py``.
"""

from __future__ import annotations

from collections import deque
from hashlib import sha256
from typing import Final, NamedTuple

from app.metadata.changes.internal_topics import KEYED_ID_PREFIX

HASH_CHARS: Final = 32
IDS_MAX: Final = 64
"""Keyed requests of one caller that one process serves side by side. The next one waits."""
REST_MS: Final = 500
"""An id that was used more recently is taken only if no other one may be made."""
SET_ASIDE_MS: Final = 60_000
"""The longest time-out of a transaction: after it, the coordinator has ended the transaction or is about to."""


def prefix_of(principal: str) -> str:
    """The beginning of all transactional ids of a principal's keyed requests."""
    return f"{KEYED_ID_PREFIX}{sha256(principal.encode()).hexdigest()[:HASH_CHARS]}."


def may_use(principal: str, transactional_id: str) -> bool:
    """Whether an id belongs to a principal. An id outside of the prefix of keyed requests never does."""
    return transactional_id.startswith(prefix_of(principal))


def is_of_requests(transactional_id: str) -> bool:
    """Whether an id is one of keyed requests: it needs no access rule, and is refused to other principals."""
    return transactional_id.startswith(KEYED_ID_PREFIX)


class _Resting(NamedTuple):
    until_ms: int
    transactional_id: str


class TransactionalIds:
    """The ids of one caller: at rest, in use, and set aside."""

    __slots__ = ("_aside", "_free", "_in_use", "_made", "_start")

    def __init__(self, prefix: str, process: str) -> None:
        """``prefix``: as the broker names it. ``process``: a random name of this start of the process."""
        self._start = f"{prefix}{process}."
        self._free: deque[_Resting] = deque()
        self._in_use: set[str] = set()
        self._aside: deque[_Resting] = deque()
        self._made = 0

    def take(self, now_ms: int) -> str | None:
        """An id for one transaction; None if all are in use or set aside."""
        while self._aside and self._aside[0].until_ms <= now_ms:
            self._free.appendleft(self._aside.popleft())
        if self._free and (self._free[0].until_ms <= now_ms or self._made == IDS_MAX):
            taken = self._free.popleft().transactional_id
        elif self._made < IDS_MAX:
            self._made += 1
            taken = f"{self._start}{self._made}"
        else:
            return None
        self._in_use.add(taken)
        return taken

    def put_back(self, transactional_id: str) -> None:
        """An id that was taken has begun no transaction."""
        self._in_use.remove(transactional_id)
        self._free.appendleft(_Resting(0, transactional_id))

    @property
    def aside_until_ms(self) -> int | None:
        """The time at which the first set-aside id may be taken again; None if no id is set aside."""
        return self._aside[0].until_ms if self._aside else None

    def give_back(self, transactional_id: str, now_ms: int, *, complete: bool) -> None:
        """The request is over. ``complete``: whether the end of its transaction is decided, and its markers are on their way."""
        self._in_use.remove(transactional_id)
        if complete:
            self._free.append(_Resting(now_ms + REST_MS, transactional_id))
        else:
            self._aside.append(_Resting(now_ms + SET_ASIDE_MS, transactional_id))
