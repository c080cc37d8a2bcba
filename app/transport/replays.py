"""How much of the event loop replays may take beside everything else.

A reader of history takes whatever it is given: it reads as fast as it is answered, and all that it is answered goes through the
same loop, over the same cores, as the records of producers. So while others keep the loop busy, replays share what they leave, and
not all of that: the more is going on, the longer a replay rests after each answer, in proportion to what the answer cost. Without
others nothing is held back.

``ReplayPace`` decides, from times that it is told; ``ReplayTurns`` is the queue, in order of arrival, with one timer. Times are
wall time within callbacks. On a machine whose cores are short that grows for the same work, and replays rest longer there, which
is as it should be: their readers, and the store process, want the same cores.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

REST_PER_BUSY: Final = 2.0
"""Of the loop that a replay leaves alone, for what others take of it: their part, and as much again so that they need not wait."""
SHARE_MIN: Final = 0.1
"""What replays may always take of the loop: they go on, however busy it is."""
WINDOW_S: Final = 0.25
"""Over which it is smoothed how busy others keep the loop."""
REST_S_MAX: Final = 0.25
TURN_S: Final = 0.001
"""Between two replays that are told that they may go on: the finest that the loop's timers are."""


class ReplayPace:
    """When the next answer of a replay may begin. Pure: times come in."""

    __slots__ = ("_busy", "_free_at_s", "_seen_at_s", "_seen_s", "others_s")

    def __init__(self) -> None:
        self.others_s = 0.0
        """Time that all but replays have taken so far; added to by whoever serves them."""
        self._seen_s = 0.0
        self._seen_at_s = -math.inf
        self._busy = 0.0
        self._free_at_s = -math.inf

    def took(self, now_s: float, spent_s: float) -> None:
        """A replay has taken ``spent_s``: how long it rests follows from how busy others keep the loop."""
        passed_s = now_s - self._seen_at_s
        if passed_s > 0:
            share = (self.others_s - self._seen_s) / passed_s
            self._busy += (min(share, 1.0) - self._busy) * -math.expm1(-passed_s / WINDOW_S)
            self._seen_s, self._seen_at_s = self.others_s, now_s
        allowed = max(SHARE_MIN, 1.0 - REST_PER_BUSY * self._busy)
        rest_s = min(spent_s * (1.0 / allowed - 1.0), REST_S_MAX)
        self._free_at_s = max(now_s, self._free_at_s) + rest_s

    def wait_s(self, now_s: float) -> float:
        """How long the next has to wait; 0 if not at all."""
        return max(0.0, self._free_at_s - now_s)


def loop_time_s() -> float:
    return asyncio.get_running_loop().time()


class ReplayTurns:
    """Who waits to go on with a replay, in order of arrival. Belongs to one event loop.

    Whoever has come keeps the place although the request that waited is answered without: one that reads at the end of one
    partition and history of another is answered again and again before its turn comes. When that is, it may go on with its next
    request.
    """

    def __init__(self, elapsed_s: Callable[[], float] = loop_time_s) -> None:
        """``elapsed_s``: seconds from any moment on, fine enough to time a callback. With the time of a simulated loop, in which
        callbacks take none, nothing is ever held back."""
        self.elapsed_s = elapsed_s
        self.pace = ReplayPace()
        self._places: dict[object, Callable[[], None] | None] = {}
        """By client, what to call when its turn has come; None while it does not wait."""
        self._called: set[object] = set()
        """Whose turn it is, until they take it."""
        self._timer: asyncio.TimerHandle | None = None

    def may_go_on(self, client: object) -> bool:
        """Whether a replay may be answered now; it takes its turn then. If not, ``wait`` and ask again."""
        if client in self._called:
            self._called.discard(client)
            return True
        return not self._places and not self.pace.wait_s(self.elapsed_s())

    def wait(self, client: object, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` once, when it is the client's turn. Returns what takes that back; harmless afterwards."""
        self._places[client] = wake
        self._arm()

        def take_back() -> None:
            if self._places.get(client) is wake:
                self._places[client] = None

        return take_back

    def forget(self, client: object) -> None:
        """The client has left."""
        self._places.pop(client, None)
        self._called.discard(client)

    def _arm(self) -> None:
        if self._timer is None and self._places:
            delay_s = max(TURN_S, self.pace.wait_s(self.elapsed_s()))
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._call_next)

    def _call_next(self) -> None:
        self._timer = None
        if not self.pace.wait_s(self.elapsed_s()):
            while self._places:
                client = next(iter(self._places))
                wake = self._places.pop(client)
                self._called.add(client)
                if wake is not None:
                    wake()
                    break
        self._arm()
