"""A question that all requests of a process share, so that strangers cannot multiply its cost.

Tests: ``tests/http/test_asked_once.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

KEPT_S: Final = 1.0
"""How long the answer about readiness is given again."""

T = TypeVar("T")


class _Answer(Generic[T]):
    """An answer that is awaited, or was given."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.found: tuple[T] | None = None
        """None after a question that failed."""


class AskedOnce(Generic[T]):
    """Asks for one caller at a time. Callers that come meanwhile get the same answer."""

    def __init__(
        self, ask: Callable[[], Awaitable[T]] | None = None, *, keeps: bool, kept_s: float | None = None
    ) -> None:
        """``keeps``: give an answer again for ``kept_s``, or for ``KEPT_S``. ``ask``: None if each caller has its own way."""
        self._ask = ask
        self._keeps = keeps
        self._kept_s = kept_s
        self._asking: _Answer[T] | None = None
        self._kept: tuple[T] | None = None
        self._kept_until_s = 0.0

    async def answer(self, ask: Callable[[], Awaitable[T]] | None = None) -> T:
        """The answer. If the caller that asks is cancelled or meets an error, another caller asks again. ``ask``: the way of this
        caller. Raises: as ``ask``."""
        own = ask or self._ask
        assert own is not None
        loop = asyncio.get_running_loop()
        while True:
            if self._kept is not None and loop.time() < self._kept_until_s:
                return self._kept[0]
            if (asking := self._asking) is None:
                break
            await asking.done.wait()
            if asking.found is not None:
                return asking.found[0]
        self._asking = asking = _Answer()
        try:
            found = await own()
            asking.found = (found,)
            if self._keeps:
                self._kept, self._kept_until_s = (
                    (found,),
                    loop.time() + (KEPT_S if self._kept_s is None else self._kept_s),
                )
            return found
        finally:
            self._asking = None
            asking.done.set()
