"""Waits for requested data: callbacks when it arrives, and the tasks that fetch it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from app.core.errors import StorageUnavailable


class Waiters:
    """Callbacks that are called once, all together, from the event loop. Each can be cancelled before."""

    __slots__ = ("_callbacks", "_next")

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` at the next ``wake``. Returns: a function that cancels it, and does nothing afterwards."""
        self._next += 1
        number = self._next
        self._callbacks[number] = callback
        return lambda: _drop(self._callbacks, number)

    def wake(self) -> None:
        """Call all callbacks once. A callback must not raise."""
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()

    def __len__(self) -> int:
        return len(self._callbacks)


def _drop(callbacks: dict[int, Callable[[], None]], number: int) -> None:
    callbacks.pop(number, None)


class RemoteWait(NamedTuple):
    """No bytes are ready yet."""

    waiters: Waiters

    def __call__(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` once, when a new read can make progress. Returns: a function that cancels this."""
        return self.waiters.add(wake)

    async def woken(self) -> None:
        """Wait until a new read can make progress."""
        woken = asyncio.Event()
        cancel = self(woken.set)
        try:
            await woken.wait()
        finally:
            cancel()


class ReadTasks:
    """The tasks that fetch data for reads. A read never waits for one, and its end cancels none."""

    def __init__(self) -> None:
        self.group: asyncio.TaskGroup | None = None
        """The group that owns the tasks; None before the reader runs, and after it."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a task. Raises: StorageUnavailable if the reader does not run."""
        if self.group is None:
            work.close()
            raise StorageUnavailable("The remote reader is not running.")
        self.group.create_task(work)
