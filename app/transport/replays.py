"""How much time of the event loop replays may take.

A reader of history (a replay) reads as fast as it is answered. Its answers go through the same event loop, on the same cores, as
the records of producers. So while others keep the loop busy, replays share a part of the time that is left. After each answer a
replay rests: the longer the answer took and the busier the loop is, the longer it rests. If there is no other work, replays never
wait.

``ReplayPace`` decides, from times that it is told. ``ReplayTurns`` is the queue, in order of arrival, with one timer. Times are
wall time within callbacks. On a machine with too few cores the same work takes longer, so replays rest longer. That is intended:
their readers, and the store process, need the same cores.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from app.core.loop_time import loop_time_s

REST_PER_BUSY: Final = 2.0
"""A replay leaves others so many times the share of the loop that they take: their own, and as much again, so that they need not
wait."""
SHARE_MIN: Final = 0.1
"""Share of the loop that replays may always take, however busy it is."""
WINDOW_S: Final = 0.25
"""How busy others keep the loop is averaged over this time."""
REST_S_MAX: Final = 0.25
WATCH_S: Final = 5.0
"""For so long after the last replay it is noted how much time the others take."""
TURN_S: Final = 0.001
"""Time between two replays that may go on. Timers of the loop are not finer."""


class ReplayPace:
    """Decides when the next answer of a replay may begin. Pure: it is told all times."""

    __slots__ = ("_busy", "_free_at_s", "_seen_at_s", "_seen_s", "others_s")

    def __init__(self) -> None:
        self.others_s = 0.0
        """Time that all other requests have taken so far. Their servers add to it."""
        self._seen_s = 0.0
        self._seen_at_s = -math.inf
        self._busy = 0.0
        self._free_at_s = -math.inf

    def took(self, now_s: float, spent_s: float) -> None:
        """A replay has taken ``spent_s``. How long it rests depends on how busy others keep the loop."""
        passed_s = now_s - self._seen_at_s
        if passed_s > 0:
            share = (self.others_s - self._seen_s) / passed_s
            self._busy += (min(share, 1.0) - self._busy) * -math.expm1(-passed_s / WINDOW_S)
            self._seen_s, self._seen_at_s = self.others_s, now_s
        allowed = max(SHARE_MIN, 1.0 - REST_PER_BUSY * self._busy)
        rest_s = min(spent_s * (1.0 / allowed - 1.0), REST_S_MAX)
        self._free_at_s = max(now_s, self._free_at_s) + rest_s

    def wait_s(self, now_s: float) -> float:
        """How long the next replay has to wait; 0 if not at all."""
        return max(0.0, self._free_at_s - now_s)


class ReplayTurns:
    """The clients that wait to go on with a replay, in order of arrival. Belongs to one event loop.

    A client may read the end of one partition and the history of another. Then its request is answered, without history, before
    its turn comes. It keeps its place in the queue, and may go on with the first request after its turn has come.
    """

    def __init__(self, elapsed_s: Callable[[], float] = loop_time_s) -> None:
        """``elapsed_s``: seconds since any moment, fine enough to time a callback. In a simulated loop callbacks take no time, so
        no replay ever waits."""
        self.elapsed_s = elapsed_s
        self.pace = ReplayPace()
        self._places: dict[object, Callable[[], None] | None] = {}
        """By client, the callback for its turn; None while it does not wait."""
        self._called: set[object] = set()
        """Whose turn it is, until they take it."""
        self._timer: asyncio.TimerHandle | None = None
        self.watched = False
        """Whether ``account`` is wanted of others than replays: there was a replay a moment ago. Otherwise requests are
        spared reading the clock twice."""
        self._watched_until_s = -math.inf

    def account(self, began_s: float, is_replay: bool) -> None:
        """The loop has worked for a client since ``began_s``."""
        now_s = self.elapsed_s()
        if is_replay:
            self._watch(now_s)
            self.pace.took(now_s, now_s - began_s)
        else:
            self.pace.others_s += now_s - began_s
            self.watched = now_s <= self._watched_until_s

    def _watch(self, now_s: float) -> None:
        self.watched = True
        self._watched_until_s = now_s + WATCH_S

    def may_go_on(self, client: object) -> bool:
        """Whether a replay may be answered now. If so, this is its turn. If not, ``wait`` and ask again."""
        if client in self._called:
            self._called.discard(client)
            return True
        now_s = self.elapsed_s()
        self._watch(now_s)
        return not self._places and not self.pace.wait_s(now_s)

    def wait(self, client: object, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` once, when it is the client's turn. Returns a function that cancels that, and does nothing afterwards."""
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
