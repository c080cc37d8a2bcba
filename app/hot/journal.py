"""Records of a log that count as stored when a journal has them, wherever the local files are (``firn.durability=object``).

The log asks the journal before each append, and hands it the batches behind the append, in the same turn of the loop (ADR 0037,
J7). The journal tells how far it has stored them (J5).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from app.core.errors import FirnError
from app.hot.offset_queue import OffsetQueue, failed_wait


class Journal(Protocol):
    """Takes the batches of one log in one leadership. It must not change the log from within these calls."""

    def admit(self, size_bytes: int, batches: int = 1) -> None:
        """Whether the log may append so many bytes in so many batches now. ``take`` accepts all of them then.

        Raises: RequestRejected NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS. Then nothing is appended.
        """
        ...

    def take(self, written: Sequence[memoryview]) -> None:
        """Keep batches that were just appended, with their offsets. Each piece has whole batches, and begins where the piece before
        it ends. They are copied. It must not raise."""
        ...


class JournaledEnd:
    """How far the journal has stored the records of one log in one leadership, and who waits for it."""

    __slots__ = ("_failure", "_waiting", "end", "journal")

    def __init__(self, journal: Journal, end: int) -> None:
        """``end``: the log end at the beginning of the leadership. Everything below is in the tier or in ended journals."""
        self.journal = journal
        self.end = end
        self._waiting = OffsetQueue()
        self._failure: FirnError | None = None

    def wait(self, offset_end: int) -> Awaitable[None] | None:
        """None if all records below ``offset_end`` are stored; else an awaitable until they are. It raises ``fail``'s error."""
        if offset_end <= self.end:
            return None
        return self._waiting.wait(offset_end) if self._failure is None else failed_wait(self._failure)

    def reached(self, end: int) -> None:
        """All records below ``end`` are stored."""
        if end <= self.end:
            return
        self.end = end
        self._waiting.reached(end)

    def end_waits(self, error: FirnError) -> None:
        """Present waiters get ``error``. The journal goes on."""
        self._waiting.fail(error)

    def fail(self, error: FirnError) -> None:
        """The journal cannot tell whether the records above the end are stored. All waiters get ``error``, now and later."""
        self._failure = error
        self._waiting.fail(error)
