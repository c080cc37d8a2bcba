"""An event loop on virtual time: nothing waits, nothing happens outside it, and the same seed gives the same run.

Time stands still while callbacks are ready and jumps to the next timer when none is. There is no selector, no thread and
no signal behind it, so a coroutine that waits for anything real would wait for ever: the loop then raises ``Deadlock``
instead of hanging, which is how a simulation finds an operation that never ends. Neither may the loop turn for ever while
time stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from app.core.turns import PORTION_S
from app.core.units import TimestampMs

T = TypeVar("T")

TURNS_AT_ONE_TIME_MAX = 200_000
"""Turns of the loop without the clock moving: far more than any work takes."""


class Deadlock(AssertionError):
    """The run can never go on: every task waits and no timer is set, or the same is done again and again at one time."""


class _NoSelector:
    """Stands where a selector would: "waiting" moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self._loop.advance(timeout)
        return []

    def close(self) -> None: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """``time()`` starts at 0 seconds and moves only when everybody waits."""

    def __init__(self, *, seconds_max: float = 1e7) -> None:
        super().__init__()
        self._now_s = 0.0
        self._turns = 0
        self._looks = 0
        self._seconds_max = seconds_max
        self._selector = _NoSelector(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now_s

    def portion_cpu_s(self) -> float:
        """A portion of long work ends after twenty looks at its clock, so that runs of one seed are the same."""
        self._looks += 1
        return self._looks * PORTION_S / 20

    def advance(self, seconds: float) -> None:
        """Move the clock, or not. Called by the loop itself before every turn."""
        if seconds <= 0:
            self._meet_timer()
            self._turns += 1
            if self._turns > TURNS_AT_ONE_TIME_MAX:
                self._turns = 0
                raise Deadlock(f"the loop turns and turns at {self._now_s} s")
            return
        self._turns = 0
        self._now_s += seconds
        if self._now_s > self._seconds_max:
            raise Deadlock(f"virtual time passed {self._seconds_max} s: a retry or a wait has no end")

    def _meet_timer(self) -> None:
        """Be at the time of a timer that this turn runs, which may be due by the resolution of the clock alone.

        Else tasks that wait again for the same moment would keep each other ready, and the moment would never come.
        """
        if self._scheduled:
            when_s = self._scheduled[0]._when
            if self._now_s < when_s < self._now_s + self._clock_resolution:
                self._now_s = when_s

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        raise AssertionError("a thread called into the virtual loop: blocking work must go through the pool's seam")

    def run_in_executor(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a real thread pool was asked for on the virtual loop")


class VirtualClock:
    """Wall-clock time that follows the loop, from a fixed epoch. ``skew_ms`` may be moved to play a stepping clock."""

    def __init__(self, loop: VirtualLoop, *, epoch_ms: int = 1_700_000_000_000) -> None:
        self._loop = loop
        self._epoch_ms = epoch_ms
        self.skew_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._epoch_ms + int(self._loop.time() * 1000) + self.skew_ms)


class VirtualPool:
    """Blocking work done on the loop itself, after a virtual latency given by ``latency_s``.

    Like threads, pieces of work interleave with everything that runs meanwhile and are not cancelled with their caller.
    """

    def __init__(self, latency_s: Callable[[], float]) -> None:
        self._latency_s = latency_s

    async def run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def finish() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - like a thread pool, hand whatever it was to the caller
                if not done.cancelled():
                    done.set_exception(error)
                return
            if not done.cancelled():
                done.set_result(result)

        loop.call_later(self._latency_s(), finish)
        return await done


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], *, seconds_max: float = 1e7) -> T:
    """Run ``main(loop)`` to its end on a fresh virtual loop; tasks that it leaves behind are cancelled.

    Raises: Deadlock if it can never end; AssertionError if a task that nobody awaits failed.
    """
    loop = VirtualLoop(seconds_max=seconds_max)
    lost: list[str] = []
    loop.set_exception_handler(
        lambda _loop, context: lost.append(f"{context['message']}: {context.get('exception')!r}")
    )
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(main(loop))
        leftovers = asyncio.all_tasks(loop)
        for task in leftovers:
            task.cancel()
        if leftovers:
            loop.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))
        assert not lost, lost
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()
