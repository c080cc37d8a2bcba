"""The seams through which time, randomness and blocking work come in.

Nothing below the composition root (``app/broker/``) builds a clock, a thread pool or a source of randomness: they are
passed in, so that the same code runs on the machine's clock in production and on a virtual clock in the simulation.

Loop time (``app/core/loop_time.py`` and ``asyncio.sleep``) may be used directly by asynchronous shells, because
the simulation runs them on a virtual event loop; wall-clock time may not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from app.core.units import TimestampMs

T = TypeVar("T")


class Clock(Protocol):
    """Wall-clock time, for values that are stored or shown. Never used to decide who may write (INV-2)."""

    def now_ms(self) -> TimestampMs:
        """Milliseconds since the Unix epoch. May step backwards, as machines' clocks do."""
        ...


class BootClock(Protocol):
    """Time that passes while a process is stopped and a machine is suspended: by it a broker finds that it stood still.

    It begins anywhere and never steps. A hypervisor that stops a guest together with its clocks hides that from it.
    """

    def __call__(self) -> float:
        """Seconds."""
        ...


class BlockingPool(Protocol):
    """Where blocking system calls and long computations go, so that the event loop never waits for them."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` on a pool thread and return its result.

        The work is not cancelled with the caller: a cancelled ``run`` leaves it to finish by itself.

        Raises: the errors of ``work``.
        """
        ...


# --- waiting together -------------------------------------------------------------------------------------------------

MOMENT_S: Final = 0.5
"""Waits that need not be exact end at multiples of this on the loop's clock."""
MOMENT_APART_S: Final = 0.005
"""A wait that would be shorter goes on to its end: the moment is the one that it began at, up to a rounding."""


def shared_wait_s(now_s: float, wait_s: float) -> float:
    """How long to wait where ``wait_s`` is the longest: until the last of the shared moments within it, if there is one.

    The repeated work of an idle broker then falls together, and it wakes up once for all of it. A wait that begins at a shared
    moment and is a multiple of ``MOMENT_S`` keeps its length.
    """
    shared_s = (now_s + wait_s) // MOMENT_S * MOMENT_S - now_s
    return shared_s if shared_s >= MOMENT_APART_S else wait_s
