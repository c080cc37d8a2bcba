"""Which partitions want a look, now or at a time, among thousands that do not (ADR 0024, R3 to R8). Pure; time is an argument.

A partition is looked at once for all reasons. A time that was named is kept: a later one does not take its place, because a look
that comes early costs little, and finds the later time again.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

STALE_MAX: Final = 64
"""Times that are void and may be kept, on top of as many as are valid."""


class Looks(Generic[T]):
    """Belongs to one loop."""

    def __init__(self) -> None:
        self._now: dict[T, None] = {}
        self._at_ms: dict[T, int] = {}
        self._times: list[tuple[int, int, T]] = []
        """A heap. Those that ``_at_ms`` does not have are void."""
        self._count = 0

    def want(self, one: T) -> None:
        """Look at ``one`` now."""
        self._now[one] = None

    def want_at(self, one: T, time_ms: int) -> None:
        """Look at ``one`` at a time, or before."""
        known_ms = self._at_ms.get(one)
        if known_ms is not None and known_ms <= time_ms:
            return
        self._at_ms[one] = time_ms
        self._count += 1  # partitions do not compare
        heappush(self._times, (time_ms, self._count, one))
        if len(self._times) > 2 * len(self._at_ms) + STALE_MAX:
            self._times = [each for each in self._times if self._at_ms.get(each[2]) == each[0]]
            heapify(self._times)

    def forget(self, one: T) -> None:
        """Do not look at ``one`` for any reason that was named so far."""
        self._now.pop(one, None)
        self._at_ms.pop(one, None)

    def take(self, now_ms: int, at_most: int) -> list[T]:
        """Those to look at now, ``at_most`` of them. Nothing more is wanted of them after it."""
        times = self._times
        while times and times[0][0] <= now_ms:
            time_ms, _, one = heappop(times)
            if self._at_ms.get(one) == time_ms:
                self._now[one] = None
        taken = list(self._now) if len(self._now) <= at_most else list(self._now)[:at_most]
        for one in taken:
            del self._now[one]
            self._at_ms.pop(one, None)
        return taken

    @property
    def wanted(self) -> bool:
        """Whether one is to be looked at now, for another reason than a time."""
        return bool(self._now)

    def next_ms(self) -> int | None:
        """The first time that was named; None if there is none. There may be nothing to look at then."""
        return self._times[0][0] if self._times else None
