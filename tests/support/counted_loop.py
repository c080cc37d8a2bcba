"""An event loop whose clock of CPU time is moved by the work itself, for tests of portions (``app/core/turns.py``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

from app.core.turns import PORTION_S

P = ParamSpec("P")


class CountedLoop(asyncio.SelectorEventLoop):
    cpu_s = 0.0

    def portion_cpu_s(self) -> float:
        return self.cpu_s


def work(seconds: float) -> None:
    """Take CPU time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountedLoop)
    loop.cpu_s += seconds


def on_counted_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on a ``CountedLoop``."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=CountedLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def count_turns(work: Coroutine[Any, Any, Any]) -> int:
    """How often the loop turns while something is done."""
    done = asyncio.ensure_future(work)
    turns = 0
    while not done.done():
        turns += 1
        await asyncio.sleep(0)
    await done
    return turns


class LookedAtLoop(asyncio.SelectorEventLoop):
    """A loop on which each look at the clock of CPU time costs a tenth of a portion, so that a portion is ten looks."""

    _looks = 0

    def portion_cpu_s(self) -> float:
        self._looks += 1
        return self._looks * PORTION_S / 10


def on_looked_at_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on a ``LookedAtLoop``."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=LookedAtLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def growth_in_turns(value: Callable[[], float]) -> AsyncIterator[list[float]]:
    """How much a value grows in each turn of the loop in which it grows."""
    grown: list[float] = []

    async def look() -> None:
        before = value()
        while True:
            await asyncio.sleep(0)
            now = value()
            if now != before:
                grown.append(now - before)
            before = now

    looking = asyncio.ensure_future(look())
    try:
        yield grown
    finally:
        looking.cancel()
        await asyncio.wait([looking])


class TurnCounts:
    """Counts events by the turn of the loop in which they happen. It keeps no loop awake, so time of a virtual loop passes."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        """Of each turn that had events."""
        self._counting = False

    def note(self) -> None:
        """One event happens now."""
        if not self._counting:
            self._counting = True
            self.counts.append(0)
            asyncio.get_running_loop().call_soon(self._turned)
        self.counts[-1] += 1

    def _turned(self) -> None:
        self._counting = False

    @property
    def all(self) -> int:
        return sum(self.counts)
