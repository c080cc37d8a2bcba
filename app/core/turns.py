"""Long work of the event loop is done in portions, so that no work holds the loop (INV-15, ADR 0039).

A ``Portion`` measures the CPU time of the loop's thread, not wall time: on a busy machine a portion does not get shorter. Work
asks ``spent`` every few elements. When the portion is spent, it awaits ``rest``, which gives the loop to other work. All long work
of a loop waits in one queue, and one piece of it goes on in each turn of the loop. So a hundred long requests together take one
portion a turn, and short requests are served in between.

**The end of a portion is a point where other requests run.** Work looks again at leadership, topic ids, epochs and rights after
each ``rest``. State that others must see whole is changed within one portion, or says that a change is in progress.

The clock of CPU time belongs to the loop: a loop may have a method ``portion_cpu_s`` that counts instead. The simulation's has.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from functools import update_wrapper
from heapq import merge
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
P = ParamSpec("P")

Steps: TypeAlias = Generator[None, None, T]
"""Work that yields after every few elements, and returns its result at its end."""

PORTION_S: Final = 0.010
"""CPU time of one portion."""
ORDERED_AT_ONCE: Final = 2_000
"""Elements that are sorted within a portion: about 1 ms."""
STRIDE: Final = 32
"""Elements between two looks at the clock. A look costs about 0.3 µs."""


class _Queue:
    """The long work of one loop that waits for its next portion. One piece of work goes on in each turn."""

    __slots__ = ("_loop", "_waiting", "cpu_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.cpu_s: Callable[[], float] = getattr(loop, "portion_cpu_s", time.thread_time)

    def join(self) -> asyncio.Future[None]:
        waiting = self._waiting
        place: asyncio.Future[None] = self._loop.create_future()
        if not waiting:
            self._loop.call_soon(self._next)
        waiting.append(place)
        return place

    def _next(self) -> None:
        waiting = self._waiting
        while waiting:
            place = waiting.popleft()
            if not place.done():  # its caller was cancelled
                place.set_result(None)
                break
        if waiting:
            self._loop.call_soon(self._next)


_queues: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue]] = WeakKeyDictionary()


def _queue() -> _Queue:
    loop = asyncio.get_running_loop()
    found = _queues.get(loop)
    if found is None:
        found = _queues[loop] = _Queue(loop)
    return found


class Portion:
    """The portion of a piece of long work that is being done. It begins when it is made, and again after each ``rest``.

    Belongs to one piece of work of the running loop.
    """

    __slots__ = ("_cpu_s", "_ends_s", "_left", "_queue", "_urgent", "rests")

    def __init__(self, *, urgent: bool = False) -> None:
        """``urgent``: it does not wait in the queue, so that long requests cannot hold it up. Its portion is added to the turn,
        so there may be one such piece of work at a time."""
        self._queue = queue = _queue()
        self._urgent = urgent
        self._cpu_s = queue.cpu_s
        self._left = STRIDE
        self._ends_s = queue.cpu_s() + PORTION_S
        self.rests = 0
        """How often it has begun again. A bound on it is a bound of CPU time."""

    def now_s(self) -> float:
        """The clock of CPU time."""
        return self._cpu_s()

    def spent(self) -> bool:
        """Whether the portion is used up, by the clock. Ask before each element that may take 0.1 ms or more."""
        return self._cpu_s() >= self._ends_s

    def spent_by(self, elements: int = 1) -> bool:
        """As ``spent``, after so many cheap elements: most calls do not look at the clock. An element takes 0.1 ms at most."""
        self._left -= elements
        if self._left > 0:
            return False
        self._left = STRIDE
        return self._cpu_s() >= self._ends_s

    async def rest(self) -> None:
        """Give the loop to other work. Returns when the next portion begins."""
        await (asyncio.sleep(0) if self._urgent else self._queue.join())
        self._left = STRIDE
        self._ends_s = self._cpu_s() + PORTION_S
        self.rests += 1

    async def rest_if_spent(self) -> None:
        """``rest`` if the portion is ``spent``."""
        if self._cpu_s() >= self._ends_s:
            await self.rest()


async def run(steps: Steps[T], portion: Portion | None = None) -> T:
    """Run a generator that yields after every few elements to its end, in portions. Returns: its result.

    The generator must not depend on anything that other requests change. Raises: its errors.
    """
    if portion is None:
        portion = Portion()
    try:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if portion.spent():
                await portion.rest()
    finally:
        steps.close()


def whole(steps: Steps[T]) -> T:
    """Run such a generator to its end at once, where few elements are known to come. Raises: its errors."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Stepwise(Generic[P, T]):
    """Decorates a generator function that is work in steps. A call runs it to its end at once. ``steps`` makes the generator, for a
    caller that runs it in portions."""

    def __init__(self, steps: Callable[P, Steps[T]]) -> None:
        self.steps = steps
        update_wrapper(self, steps)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return whole(self.steps(*args, **kwargs))


def slices(items: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    """``items`` in pieces of at most ``count``."""
    return (items[begin : begin + count] for begin in range(0, len(items), count))


def drained(items: list[T]) -> Iterator[T]:
    """The items in their order. Each leaves the list as it is given, so that a long list is freed in portions, too: to free
    100,000 samples at once takes 70 ms."""
    items.reverse()
    while items:
        yield items.pop()


async def each(work: Callable[[T], object], items: Iterable[T], portion: Portion | None = None) -> None:
    """Call ``work`` with each item, in portions. One call may take 0.1 ms."""
    if portion is None:
        portion = Portion()
    for item in items:
        work(item)
        if portion.spent_by():
            await portion.rest()


async def ordered(items: Collection[T], portion: Portion, key: Callable[[T], Any]) -> list[T]:
    """``sorted(items, key=key)``, in portions: pieces are sorted by themselves and merged."""
    pieces = []
    for piece in slices(list(items), ORDERED_AT_ONCE):
        pieces.append(sorted(piece, key=key))
        await portion.rest_if_spent()
    found: list[T] = []
    for item in merge(*pieces, key=key):
        found.append(item)
        if portion.spent_by():
            await portion.rest()
    return found
