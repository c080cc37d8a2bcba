"""Tells when the event loop stood still, for how long, and where (INV-15, ADR 0039).

A thread looks at the loop's thread every ``firn.loop.stall.ms`` / 2. If the loop is at work, the thread asks it for a sign of life
(``call_soon_threadsafe``). The sign comes in the next turn. If it does not come within the limit, the thread notes the loop's work:
the Python frames of its thread, and the client whose request it serves. When the sign comes, the loop tells.

An idle loop is not asked. After ``QUIET_LOOKS`` looks at a quiet loop the thread rests. Three things end its rest:

- The loop has taken CPU time: the kernel counts it (``app/machine/cpu_alarm.py``). So no work of the loop is missed.
- A connection is read. The loop may wait for a disk in it, which takes no CPU time. It costs a read one look at an attribute.
- ``REST_S`` are over. So a timer that waits for a disk, in a broker without clients, is told if it takes that long.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Final, NamedTuple

from app.machine.cpu_alarm import CpuAlarm

WAITS_IN: Final = ("asyncio/runners.py", "selectors.py", "uvloop/__init__.py", "asyncio/base_events.py")
"""Files of the innermost frame while a loop waits for something to do."""
SCHEDULED: Final = "/proc/self/task/{}/schedstat"
"""CPU time, and time in which the thread was ready but had no processor, both in ns."""
QUIET_LOOKS: Final = 8
"""After so many looks at a quiet loop, one after the other, the thread rests."""
QUIET_SHARE: Final = 0.01
"""A loop is quiet that takes less of a core: that of a broker without clients has its timers."""
REST_S: Final = 1.0
APP: Final = "app."
NOTHING: Final = ""


class Stall(NamedTuple):
    """The loop stood still."""

    wall_s: float
    """How long, at least."""
    cpu_s: float
    """CPU time of the loop's thread meanwhile, with the work of at most half a limit before it."""
    served: str
    """The request that was served, in words; empty if it was none."""
    api: str
    """The API of that request; else the function that the loop had called."""
    place: str
    """The function and line that the loop was in; empty if it is not known."""


class Serving(NamedTuple):
    """The request that a loop serves, in words."""

    api: str
    words: str


class Clocks(NamedTuple):
    """Of the loop's thread, in seconds."""

    now_s: float
    cpu_s: float
    starved_s: float
    """For how long it was ready to run and had no processor."""


def _idle(frame: FrameType | None) -> bool:
    return frame is None or frame.f_code.co_filename.endswith(WAITS_IN)


class Watched:
    """The observations of the loop between two signs of life. Pure: it has no thread and no clock."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.last = Clocks(0.0, 0.0, 0.0)
        """At the start, at the last look at which the loop had nothing to answer, or at its last sign of life."""
        self.asked_s: float | None = None
        """When a sign of life was asked for; None if there is no open question."""
        self.quiet_looks = 0
        """Looks at which the loop was quiet, since it was last busy."""
        self._head_s = self._starved_s = 0.0

    @property
    def rests(self) -> bool:
        """Whether the loop was quiet for so long that the thread need not look at it often."""
        return self.quiet_looks >= QUIET_LOOKS

    def looks(self, now: Clocks, *, idle: bool) -> bool:
        """The thread looks at the loop. Returns: whether to ask for a sign."""
        if self.asked_s is not None:
            return False
        if idle:
            quiet = now.cpu_s - self.last.cpu_s <= QUIET_SHARE * (now.now_s - self.last.now_s)
            self.quiet_looks = self.quiet_looks + 1 if quiet else 0
            self.last = now
            return False
        self.quiet_looks = 0
        # It has been at work for as long as it took CPU time, as far as is known.
        self._head_s = min(now.now_s - self.last.now_s, now.cpu_s - self.last.cpu_s)
        self.asked_s, self._starved_s = now.now_s, now.starved_s
        return True

    def is_late(self, now_s: float) -> bool:
        """Whether the sign is so late that the loop's work is to be noted."""
        return self.asked_s is not None and now_s - self.asked_s + self._head_s >= self.limit_s / 2

    def turned(self, now: Clocks) -> tuple[float, float] | None:
        """The sign has come. Returns: how long the loop stood still and its CPU time, if that is beyond the limit.

        Time in which the machine gave the loop no processor does not count.
        """
        assert self.asked_s is not None
        wall_s = now.now_s - self.asked_s + self._head_s
        own_s = wall_s - (now.starved_s - self._starved_s)
        cpu_s = now.cpu_s - self.last.cpu_s
        self.asked_s = None
        self.last = now
        return (wall_s, min(cpu_s, wall_s)) if own_s > self.limit_s else None


class LoopWatch:
    """Watches the running loop from ``start`` to ``stop``."""

    def __init__(
        self,
        limit_s: float,
        *,
        serving: Callable[[], Serving | None],
        codes: frozenset[CodeType],
        tell: Callable[[Stall], None],
        rests: Callable[[Callable[[], None] | None], None] = lambda _: None,
    ) -> None:
        """``serving`` returns the last request; it is believed if a function of ``codes`` is being run. ``tell`` is called in the
        loop. ``rests`` is called in the watch's thread: when the watch rests, with a function to call as soon as a connection is
        read, and with None when it watches again."""
        self._watched = Watched(limit_s)
        self._limit_s = limit_s
        self._serving = serving
        self._codes = codes
        self._tell = tell
        self._rests = rests
        self._alarm: CpuAlarm | None = None
        self._starving: int | None = None
        """Descriptor of SCHEDULED; None where the system does not tell."""
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = self._native_id = 0
        self._cpu_clock = 0
        self.seen: tuple[Serving | None, str, str] | None = None
        """The loop's work: request, function that the loop had called, function and line that it was in."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id, self._native_id = threading.get_ident(), threading.get_native_id()
        self._cpu_clock = time.pthread_getcpuclockid(self._thread_id)
        # The work before the start is not of the turn that the first look finds.
        self._watched.last = self._clocks(starved=False)
        threading.Thread(target=self._run, name="firn-loop-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        alarm = self._alarm
        if alarm is not None:
            alarm.rouse()

    def _clocks(self, *, starved: bool) -> Clocks:
        """``starved``: whether that is wanted, which takes a system call."""
        starved_s = 0.0
        if starved and self._starving is not None:
            with suppress(OSError, IndexError, ValueError):  # a system that does not tell
                starved_s = int(os.pread(self._starving, 128, 0).split()[1]) / 1e9
        return Clocks(time.monotonic(), time.clock_gettime(self._cpu_clock), starved_s)

    def _run(self) -> None:
        """The thread's."""
        with suppress(OSError):  # a system that does not tell
            self._starving = os.open(SCHEDULED.format(self._native_id), os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # then the thread never rests
            self._alarm = CpuAlarm(self._cpu_clock)
        try:
            self._watch()
        finally:
            self._rests(None)
            if self._alarm is not None:
                self._alarm.close()
            starving, self._starving = self._starving, None
            if starving is not None:
                os.close(starving)

    def _watch(self) -> None:
        watched, loop = self._watched, self._loop
        assert loop is not None
        while self._waited():
            frame = sys._current_frames().get(self._thread_id)
            if watched.asked_s is None:
                idle = _idle(frame)
                if watched.looks(self._clocks(starved=not idle), idle=idle):
                    try:
                        loop.call_soon_threadsafe(self._turned)
                    except RuntimeError:
                        return  # the loop is closed
            elif self.seen is None and watched.is_late(time.monotonic()):
                self.seen = self._look_at(frame)

    def _waited(self) -> bool:
        """Wait until the next look. Returns: False if the watch was stopped."""
        alarm = self._alarm
        if alarm is None or not self._watched.rests:
            return not self._stopped.wait(self._limit_s / 2)
        self._rests(self._rouse)
        if self._stopped.is_set():
            return False
        looks = alarm.wait(REST_S, self._limit_s / 4)
        self._rests(None)
        # A request has only begun: it is time to look in a while.
        return not self._stopped.wait(0 if looks else self._limit_s / 2)

    def _rouse(self) -> None:
        """The loop's: a connection is read."""
        self._rests(None)
        self._watched.quiet_looks = 0
        assert self._alarm is not None
        self._alarm.rouse()

    def _look_at(self, frame: FrameType | None) -> tuple[Serving | None, str, str] | None:
        place, called, serves = NOTHING, NOTHING, False
        while frame is not None:
            code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
            if module.startswith(APP):
                called = f"{code.co_qualname} ({module})"
                if not place:
                    place = f"{code.co_qualname} ({module}:{frame.f_lineno})"
                serves = serves or code in self._codes
            frame = frame.f_back
        return (self._serving() if serves else None, called, place) if place else None

    def _turned(self) -> None:
        """The sign of life, in the loop."""
        if self._stopped.is_set():
            return
        found = self._watched.turned(self._clocks(starved=True))
        seen, self.seen = self.seen, None
        if found is None:
            return
        serving, called, place = (
            seen if seen is not None else (self._serving(), "code that the watch did not see", NOTHING)
        )
        self._tell(
            Stall(
                *found,
                served=serving.words if serving is not None else NOTHING,
                api=serving.api if serving is not None else called,
                place=place,
            )
        )


def sentence_of(stall: Stall) -> str:
    """The log line of a stall, for the operator."""
    what = f"while it served {stall.served}" if stall.served else f"in {stall.api}"
    where = f" It was in {stall.place}." if stall.place else ""
    return (
        f"The event loop stood still for {stall.wall_s * 1000:.0f} ms ({stall.cpu_s * 1000:.0f} ms of CPU) {what}.{where} "
        "Every client of this broker waited. If it goes on, please report this line."
    )
