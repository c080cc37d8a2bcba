"""Many deadlines that move often and expire rarely, such as sessions that every heartbeat extends. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """At most one deadline for each key. A later deadline costs only a dictionary entry; the heap is corrected when it expires."""

    __slots__ = ("_count", "_deadlines", "_heap", "_places")

    def __init__(self) -> None:
        self._deadlines: dict[K, int] = {}
        self._places: dict[K, int] = {}
        """The least deadline of each key in the heap."""
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def set(self, key: K, deadline_ms: int) -> None:
        """Set the only deadline of the key."""
        self._deadlines[key] = deadline_ms
        place = self._places.get(key)
        if place is None or deadline_ms < place:
            self._push(key, deadline_ms)

    def _push(self, key: K, deadline_ms: int) -> None:
        self._places[key] = deadline_ms
        self._count += 1  # keys need not have an order
        heappush(self._heap, (deadline_ms, self._count, key))

    def cancel(self, key: K) -> None:
        """Remove the deadline of the key, if there is one."""
        self._deadlines.pop(key, None)

    def next_ms(self) -> int | None:
        """The time for the next call of ``pop_due``: the first deadline, or earlier. None if there is no deadline."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> K | None:
        """Remove and return a key whose deadline has passed; None if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            place, _, key = heappop(heap)
            if self._places.get(key) != place:
                continue  # an earlier entry has been put in since
            del self._places[key]
            deadline_ms = self._deadlines.get(key)
            if deadline_ms is None:
                continue
            if deadline_ms > now_ms:
                self._push(key, deadline_ms)
                continue
            del self._deadlines[key]
            return key
        return None
