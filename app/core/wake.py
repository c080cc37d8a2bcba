"""Waits for one moment, such as the arrival of a chunk: callbacks that are called once, all together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Wake:
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

    async def wait(self) -> None:
        """Wait for the next ``wake``. Look at the state again afterwards: it may have changed once more by then."""
        woken = asyncio.Event()
        cancel = self.add(woken.set)
        try:
            await woken.wait()
        finally:
            cancel()

    def __len__(self) -> int:
        return len(self._callbacks)


def _drop(callbacks: dict[int, Callable[[], None]], number: int) -> None:
    callbacks.pop(number, None)
