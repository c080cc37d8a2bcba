"""How many connections there may be, and how many a second. Pure; time is an argument.

As in Apache Kafka (KIP-402, 612): a listener at a limit accepts no connection until one leaves, or until its rate allows another,
and clients wait in the kernel's queue. The listener between brokers is protected from the clients of others: it accepts when the
broker is full, and the connection of another listener that was used least recently has to go. An address that has all
the connections that it may have is turned away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from app.core.buckets import Bucket

NO_LIMIT: Final = 2**31 - 1
"""Kafka's way to say so."""


class AdmissionLimits(NamedTuple):
    """The limits that an operator has set."""

    connections_max: int
    """Of all listeners together. The protected one is not held to it."""
    protected: str | None = None
    """The listener between brokers; None if there is only one listener."""
    protected_max: int = NO_LIMIT
    """Connections of the protected listener: the number that the process can bear, also if more are set."""
    of_listener: Mapping[str, int] = MappingProxyType({})
    of_address: int = NO_LIMIT
    of_addresses: Mapping[str, int] = MappingProxyType({})
    """By address, in place of ``of_address``."""
    rate: int = NO_LIMIT
    """Connections a second, of all listeners but the protected one."""
    rates: Mapping[str, int] = MappingProxyType({})
    """By listener, the protected one, too."""
    window_s: float = 1.0
    """So many seconds' worth of a rate may come at once. No connection waits longer for a rate."""


def pace(rate: int, window_s: float, now_s: float) -> Bucket:
    """Holds one for each connection that may come now: so many come in a second, and a window's worth at once. As in Kafka, a rate
    of 0 lets one come in each window."""
    in_a_second = rate or 1 / window_s
    return Bucket(in_a_second, max(1.0, in_a_second * window_s), now_s)


class Admission:
    """Counts the connections of a server."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.total = 0
        self.by_listener: dict[str, int] = {}
        self._by_address: dict[str, int] = {}
        self._pace: Bucket | None = None
        self._paces: dict[str, Bucket] = {}

    def change(self, limits: AdmissionLimits, now_s: float) -> None:
        """From now on these limits count. Connections above them stay."""
        old, self.limits = self.limits, limits
        if limits.rate != old.rate or limits.window_s != old.window_s:
            self._pace = None
        if limits.rates != old.rates or limits.window_s != old.window_s:
            self._paces = {
                listener: pace(rate, limits.window_s, now_s)
                for listener, rate in limits.rates.items()
                if rate < NO_LIMIT
            }
        if self._pace is None and limits.rate < NO_LIMIT:
            self._pace = pace(limits.rate, limits.window_s, now_s)

    def wait_s(self, listener: str, now_s: float) -> float:
        """How long a listener accepts no connection: 0 if it may accept, and infinity if a connection has to leave first."""
        limits = self.limits
        own = self.by_listener.get(listener, 0)
        if own >= limits.of_listener.get(listener, NO_LIMIT):
            return math.inf
        if own >= limits.protected_max if listener == limits.protected else self.total >= limits.connections_max:
            return math.inf
        return max((one.wait_s(1, now_s) for one in self._paces_of(listener)), default=0.0)

    def enter(self, listener: str, address: str, now_s: float) -> bool:
        """A client of a listener has connected, and counts until ``leave``.

        Returns: False if its address has all the connections that it may have. It is turned away, and does not count.
        """
        for one in self._paces_of(listener):
            one.take(1, now_s)
        mine = self._by_address.get(address, 0)
        limits = self.limits
        if mine >= limits.of_addresses.get(address, limits.of_address):
            return False
        self._by_address[address] = mine + 1
        self.by_listener[listener] = self.by_listener.get(listener, 0) + 1
        self.total += 1
        return True

    def turned_back(self, listener: str, now_s: float) -> None:
        """The last connection is refused by the rate of its address: it is not counted, and takes no turn of others."""
        for one in self._paces_of(listener):
            one.take(-1, now_s)

    def leave(self, listener: str, address: str) -> None:
        mine = self._by_address[address] - 1
        if mine:
            self._by_address[address] = mine
        else:
            del self._by_address[address]
        self.by_listener[listener] -= 1
        self.total -= 1
        assert self.total >= 0

    def excess(self) -> int:
        """How many connections of listeners that are not protected have to be closed."""
        limits = self.limits
        protected = 0 if limits.protected is None else self.by_listener.get(limits.protected, 0)
        return min(self.total - protected, max(0, self.total - limits.connections_max))

    def _paces_of(self, listener: str) -> tuple[Bucket, ...]:
        if self._pace is None and not self._paces:
            return ()
        own = self._paces.get(listener)
        of_all = self._pace if listener != self.limits.protected else None
        return tuple(one for one in (of_all, own) if one is not None)
