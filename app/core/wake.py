"""Waits for one moment, such as the arrival of a chunk: callbacks that are called once, all together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Wake:
    """Callbacks that are called once, all together, from the event loop. Each can be cancelled before."""

    __slots__ = ("_callbacks", "_next")

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] | None = None
        """None while there are none: there is a ``Wake`` for each partition, chunk and footer."""
        self._next = 0

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` at the next ``wake``. Returns: a function that cancels it, and does nothing afterwards."""
        if self._callbacks is None:
            self._callbacks = {}
        self._next += 1
        number = self._next
        self._callbacks[number] = callback
        return lambda: self._cancel(number)

    def _cancel(self, number: int) -> None:
        if self._callbacks is not None:
            self._callbacks.pop(number, None)

    def wake(self) -> None:
        """Call all callbacks once. A callback must not raise."""
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks.values():
                callback()

    async def wait(self) -> None:
        """Wait for the next ``wake``. Look at the state again afterwards: it may have changed once more by then."""
        woken = asyncio.Event()
        cancel = self.add(woken.set)
        try:
            await woken.wait()
        finally:
            cancel()

    def __len__(self) -> int:
        return 0 if self._callbacks is None else len(self._callbacks)
