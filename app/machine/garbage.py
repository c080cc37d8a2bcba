"""Short garbage collections (INV-15): the interpreter's own ones of old objects hold the loop for as long as the heap is large.

The interpreter looks at young objects by itself, 10,000 or 30,000 at a time: 1 to 3 ms, and several times as much if the
machine is busy. ``ShortCollections`` looks at old ones in a callback of its own, soon after 30,000 more have become old. If
that takes half a portion, all that is there now is set aside (``gc.freeze``), so the next look has only newer objects. An
object that was set aside goes as before when nothing refers to it any more. Only a cycle that was set aside while it was in
use, and is dropped later, stays. Firn's own long-lived objects break their cycles when they end.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

GARBAGE_THRESHOLD: Final = 10_000
"""Objects made and not freed between two looks at the youngest generation."""
MIDDLE_THRESHOLD: Final = 1
"""One look fewer at the youngest generation than there are before one at the middle one. If the machine is busy, a look at 60,000
objects takes up to 50 ms of CPU."""
NEVER: Final = 1_000_000
OLD_AFTER: Final = 1
"""Looks at the middle generation after which old objects are looked at."""
SET_ASIDE_FROM_S: Final = 0.005
"""CPU time of a look at old objects from which on they are set aside."""


class ShortCollections:
    """Takes over the collection of old objects in a process with one event loop. ``end`` gives it back."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        """``call_soon``: has something called in a turn of the loop; it is called in the loop's thread and in others."""
        self._call_soon = call_soon
        self._cpu_s = cpu_s
        self._thresholds = gc.get_threshold()
        self._due = False
        self.longest_s = 0.0
        """Of the looks at old objects."""
        self.set_aside = 0
        """How often objects were set aside."""

    def begin(self) -> None:
        """From now on."""
        self._thresholds = gc.get_threshold()
        gc.set_threshold(GARBAGE_THRESHOLD, MIDDLE_THRESHOLD, NEVER)
        gc.callbacks.append(self._collected)

    def end(self) -> None:
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
            gc.set_threshold(*self._thresholds)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 1 and not self._due and gc.get_count()[2] >= OLD_AFTER:
            self._due = True
            try:
                self._call_soon(self.look)
            except RuntimeError:
                self.end()  # the loop is closed

    def look(self) -> None:
        """Collect old objects now, and set aside those that are left if it took long."""
        self._due = False
        began_s = self._cpu_s()
        gc.collect()
        took_s = self._cpu_s() - began_s
        self.longest_s = max(self.longest_s, took_s)
        if took_s >= SET_ASIDE_FROM_S:
            gc.freeze()
            self.set_aside += 1
