"""Connections whose client is not known yet: how many there may be, and for how long.

A TLS handshake or a login that is never finished costs memory and a descriptor, and anybody can begin one. So each has a deadline,
and beyond the limit a new one takes the place of the oldest. Then a flood of unfinished ones does not keep out clients that
finish soon, and clients that are known are not touched.

Tests: ``tests/transport/test_tls.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def _nothing() -> None:
    """In place of the end of a connection that was let in or has ended."""


class Arrival:
    """One client that is not known yet. ``over`` must be called once it is, or once its connection has ended."""

    __slots__ = ("_arrivals", "_end", "timer")

    def __init__(self, arrivals: Arrivals, end: Callable[[], None]) -> None:
        self._arrivals = arrivals
        self._end = end
        self.timer: asyncio.TimerHandle | None = None

    def over(self) -> None:
        """It is known, or has left. May be called again."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._end = _nothing  # it holds the connection, which may hold this
        self._arrivals.forget(self)

    def cancel(self) -> None:
        """The connection has ended (``ConnectionCore.on_close``)."""
        self.over()

    def give_up(self) -> None:
        """End the connection."""
        end = self._end
        self.over()
        end()


class Arrivals:
    """Belongs to one loop."""

    def __init__(self, *, arrivals_max: int, timeout_ms: int) -> None:
        self._wanted_max = self._max = arrivals_max
        self._timeout_s = timeout_ms / 1000
        self._open: dict[Arrival, None] = {}
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._open)

    def share(self, connections_max: int) -> None:
        """Of ``connections_max`` that there may be, half at most are not known: they alone never fill the broker."""
        self._max = min(self._wanted_max, max(1, connections_max // 2))
        while len(self._open) > self._max:
            next(iter(self._open)).give_up()

    def begin(self, end: Callable[[], None]) -> Arrival:
        """A client has connected. ``end`` ends its connection at once: it is called if the client is too slow, or is the oldest of
        too many."""
        if len(self._open) >= self._max:
            next(iter(self._open)).give_up()
        arrival = Arrival(self, end)
        arrival.timer = asyncio.get_running_loop().call_later(self._timeout_s, arrival.give_up)
        self._open[arrival] = None
        return arrival

    def forget(self, arrival: Arrival) -> None:
        self._open.pop(arrival, None)

    def end_all(self) -> None:
        """The server closes."""
        for arrival in tuple(self._open):
            arrival.give_up()
