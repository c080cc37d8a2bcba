"""Waits until an end of a log, such as its synced end, has passed an offset."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable

from app.core.errors import FirnError, copy_of


class OffsetQueue:
    """Waits of one log, in the order of offsets. Belongs to one event loop. A wait costs a future and an entry, and no task."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, offset_end: int) -> Awaitable[None]:
        """An awaitable until ``reached`` is called with ``offset_end`` or more. It raises the error of ``fail``."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting
        if waiting and offset_end < waiting[-1][0]:
            # A duplicate, whose original lies before records that came later.
            waiting.insert(bisect_right(waiting, offset_end, key=_offset_end), (offset_end, future))
        else:
            waiting.append((offset_end, future))
        return future

    def reached(self, end: int) -> None:
        """The end of the log has passed all offsets below ``end``."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= end:
            _, future = waiting.popleft()
            if not future.done():
                future.set_result(None)

    def fail(self, error: FirnError) -> None:
        """End all present waits with a copy of ``error``."""
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            _fail(future, error)

    def fail_above(self, end: int, error: FirnError) -> None:
        """The log has been cut at ``end``: end the waits for offsets above it with a copy of ``error``. They would wait for other
        records, or for ever."""
        waiting = self._waiting
        while waiting and waiting[-1][0] > end:
            _fail(waiting.pop()[1], error)


def _fail(future: asyncio.Future[None], error: FirnError) -> None:
    if not future.done():
        future.set_exception(copy_of(error))
        future.exception()  # its owner may have been cancelled, and not look at it


def failed_wait(error: FirnError) -> Awaitable[None]:
    """An awaitable that raises a copy of ``error``."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(copy_of(error))
    return future


def _offset_end(waiting: tuple[int, asyncio.Future[None]]) -> int:
    return waiting[0]
