"""Who waits until records of one partition are committed: one queue in the order of offsets, which each commit pops.

A request that waits costs one entry and no task. A commit looks at the entries that it reaches, and at one more.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections import deque
from typing import Final

from app.core.errors import FirnError, copy_of

NEVER_S: Final = math.inf


class Waiter:
    """A wait until everything below ``offset_end`` is committed. Exactly one of the three methods is called, at most
    once, synchronously; it must neither raise nor change the log or the queue."""

    __slots__ = ()  # those of its fields are its subclasses', so that one of them may be something else as well

    offset_end: int
    due_s: float
    """Loop time at which it waits no longer."""

    def committed(self) -> None:
        raise NotImplementedError

    def failed(self, error: FirnError) -> None:
        """The records may never be committed, or this broker will not know. Raise a copy of ``error``."""
        raise NotImplementedError

    def out_of_time(self) -> None:
        raise NotImplementedError


class FutureWaiter(Waiter):
    """One with a future, whose owner may cancel it."""

    __slots__ = ("due_s", "future", "offset_end")

    def __init__(self, offset_end: int) -> None:
        self.offset_end = offset_end
        self.due_s = NEVER_S
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, error: FirnError) -> None:
        if not self.future.done():
            self.future.set_exception(copy_of(error))
            self.future.exception()  # its owner may have been cancelled, and not look at it


def _offset_end(waiter: Waiter) -> int:
    return waiter.offset_end


class CommitQueue:
    """Of one partition. Belongs to one event loop."""

    __slots__ = ("_timer", "_timer_s", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()
        self._timer: asyncio.Handle | None = None
        self._timer_s = NEVER_S
        """When it is due. It cannot be asked: of a wait that rounds to 0 ms uvloop returns a handle without a time."""

    @property
    def empty(self) -> bool:
        return not self._waiting

    def add(self, waiter: Waiter) -> None:
        """Call the waiter when ``reached`` is called with its offset, or ``fail`` is, or its time is up."""
        waiting = self._waiting
        if waiting and waiter.offset_end < waiting[-1].offset_end:
            # A duplicate, whose original lies before records that came later.
            waiting.insert(bisect_right(waiting, waiter.offset_end, key=_offset_end), waiter)
        else:
            waiting.append(waiter)
        due_s = waiter.due_s
        if due_s < self._timer_s:
            self._wake_at(due_s)

    def reached(self, high_watermark: int) -> None:
        """Everything below ``high_watermark`` is committed."""
        waiting = self._waiting
        while waiting and waiting[0].offset_end <= high_watermark:
            waiting.popleft().committed()

    def fail(self, error: FirnError) -> None:
        """End all waits."""
        waiting = tuple(self._waiting)
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_s = NEVER_S
        for waiter in waiting:
            waiter.failed(error)

    def _wake_at(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # It stays when the queue becomes empty: a timer in most cases fires once in a time-out, not once a request.
        self._timer_s = due_s
        self._timer = asyncio.get_running_loop().call_at(due_s, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        self._timer_s = NEVER_S
        now_s = asyncio.get_running_loop().time()
        late = [waiter for waiter in self._waiting if waiter.due_s <= now_s]
        if late:
            self._waiting = deque(waiter for waiter in self._waiting if waiter.due_s > now_s)
        next_s = min((waiter.due_s for waiter in self._waiting), default=NEVER_S)
        if next_s != NEVER_S:
            self._wake_at(next_s)
        for waiter in late:
            waiter.out_of_time()
