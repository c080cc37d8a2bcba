"""A virtual clock: what happens next happens at once, in the order of its time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Timeline:
    """The heap of what is to happen. Events of the same time happen in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []

    def after(self, delay_ms: float, do: Callable[..., Any], *args: Any) -> None:
        """Call ``do(*args)`` in ``delay_ms``."""
        self.events += 1
        heappush(self._heap, (self.now_ms + delay_ms, self.events, do, args))

    def run_until(self, end_ms: float) -> None:
        """Let everything before ``end_ms`` happen."""
        heap = self._heap
        while heap and heap[0][0] < end_ms:
            self.now_ms, _, do, args = heappop(heap)
            do(*args)
        self.now_ms = end_ms
