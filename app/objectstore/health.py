"""Whether an object store responds, as its callers find out. Pure: the time is passed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SILENT_S: Final = 5.0
"""A store that has been asked for so long, and has answered nothing meanwhile, counts as silent. Single slow requests take less. A
store that has failed for so long counts as failing: a store process that is started again takes less."""
KNOWN_S: Final = 30.0
"""What the last request found is known for so long. Then the next one may find out."""


class StoreHealth:
    """Hears of each request to the store, and of its end."""

    __slots__ = ("_asked", "_ended_s", "_failing_since_s", "_failure", "_heard_s", "_last", "_now_s", "_silent_since_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        """``now_s``: a monotonic clock, in seconds."""
        self._now_s = now_s
        self._asked: dict[int, float] = {}
        """When each request under way began, the oldest first."""
        self._last = 0
        self._heard_s = now_s()
        self._ended_s = 0.0
        """When the last request ended without an answer."""
        self._silent_since_s: float | None = None
        """Since when requests that were given up had waited, if nothing was answered since."""
        self._failure = ""
        self._failing_since_s = 0.0

    def begin(self) -> int:
        """A request begins. Returns: its number, for one of the other methods."""
        self._last += 1
        self._asked[self._last] = self._now_s()
        return self._last

    def answered(self, request: int) -> None:
        """The store did as it was asked, or said why it does not."""
        del self._asked[request]
        self._heard_s = self._now_s()
        self._silent_since_s = None
        self._failure = ""

    def failed(self, request: int, why: str) -> None:
        """The store could not be reached, or did not do as it should. ``why`` is a sentence."""
        self._give_up(request)
        if not self._failure:
            self._failing_since_s = self._now_s()
        self._failure = why

    def given_up(self, request: int) -> None:
        """The caller does not wait any more."""
        self._give_up(request)

    def _give_up(self, request: int) -> None:
        self._ended_s = self._now_s()
        since_s = max(self._asked.pop(request), self._heard_s)
        if self._silent_since_s is None and self._now_s() - since_s >= SILENT_S:
            self._silent_since_s = since_s

    def trouble(self) -> str:
        """A sentence that says since when the store does not respond or fails; empty if it responds, as far as is known."""
        now_s = self._now_s()
        is_known = now_s - self._ended_s < KNOWN_S
        since_s = self._silent_since_s if is_known else None
        if since_s is None and self._asked:
            since_s = max(next(iter(self._asked.values())), self._heard_s)
        if since_s is not None and now_s - since_s >= SILENT_S:
            return f"The object store has not responded for {now_s - since_s:.0f} s."
        if self._failure and is_known and self._ended_s - self._failing_since_s >= SILENT_S:
            return (
                f"The object store has failed for {now_s - self._failing_since_s:.0f} s: {self._failure.rstrip('.')}."
            )
        return ""
