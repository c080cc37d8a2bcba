"""Whether an object store responds, as its callers find out. Pure: the time is passed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SILENT_S: Final = 5.0
"""A store that has been asked for so long, and has answered nothing meanwhile, counts as silent if it does not answer a probe,
either. A store that has failed for so long counts as failing: a store process that is started again takes less."""
PROBE_S: Final = 2.5
"""After so much silence the store is asked for something that is small wherever it is up. So one slow request, such as a large
body, is no silence. The probe has so long to be answered."""
PROBE_END_S: Final = 5.0
"""After this time a probe ends without an answer, so that the next one can be sent: one that hangs may be older than an answer to
another request."""
KNOWN_S: Final = 30.0
"""The result of the last request counts for so long. Then the next request may find out."""


class StoreHealth:
    """Hears of each request to the store, and of its end."""

    __slots__ = (
        "_asked",
        "_ended_s",
        "_failing_since_s",
        "_failure",
        "_heard_s",
        "_last",
        "_now_s",
        "_probe_s",
        "_probes",
        "_silent_since_s",
    )

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
        self._probe_s: float | None = None
        """When the first probe was sent that nothing was answered since."""
        self._probes = False
        """Whether a probe is under way."""

    def begin(self) -> int:
        """A request begins. Returns: its number, for one of the other methods."""
        self._last += 1
        self._asked[self._last] = self._now_s()
        return self._last

    def answered(self, request: int) -> None:
        """The store did as it was asked, or said why it does not."""
        del self._asked[request]
        self._heard()
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
        if self._silent_since_s is None and self._is_silent(since_s):
            self._silent_since_s = since_s

    def _heard(self) -> None:
        self._heard_s = self._now_s()
        self._silent_since_s = None
        self._probe_s = None

    def _is_silent(self, since_s: float) -> bool:
        """Whether a request that has waited since then, and a probe, have waited long enough."""
        now_s = self._now_s()
        return now_s - since_s >= SILENT_S and self._probe_s is not None and now_s - self._probe_s >= PROBE_S

    def probe_in_s(self) -> float | None:
        """Time until a probe is due, 0 if it is due now; None if none is due while things stay as they are."""
        if self._probes or not self._asked:
            return None
        since_s = max(next(iter(self._asked.values())), self._heard_s)
        return max(0.0, since_s + PROBE_S - self._now_s())

    def probe_begins(self) -> None:
        """A probe is sent: something else that the store answers at once wherever it is up."""
        self._probes = True
        if self._probe_s is None:
            self._probe_s = self._now_s()

    def probe_ended(self, *, answered: bool) -> None:
        """``answered``: whether the store said anything. The error of a probe says nothing of other requests."""
        self._probes = False
        if answered:
            self._heard()

    def trouble(self) -> str:
        """A sentence that says since when the store does not respond or fails; empty if it responds, as far as is known."""
        now_s = self._now_s()
        is_known = now_s - self._ended_s < KNOWN_S
        since_s = self._silent_since_s if is_known else None
        if since_s is None and self._asked:
            waits_since_s = max(next(iter(self._asked.values())), self._heard_s)
            since_s = waits_since_s if self._is_silent(waits_since_s) else None
        if since_s is not None:
            return f"The object store has not responded for {now_s - since_s:.0f} s."
        if self._failure and is_known and self._ended_s - self._failing_since_s >= SILENT_S:
            return (
                f"The object store has failed for {now_s - self._failing_since_s:.0f} s: {self._failure.rstrip('.')}."
            )
        return ""
