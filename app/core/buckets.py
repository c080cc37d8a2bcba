"""A share of something: a bucket that fills at the rate of its limit, and from which requests take, into debt if need be.

Small requests of a busy client can do without a look at the clock. Of a bucket that holds enough, a little is taken ahead, and they
use that.
"""

from __future__ import annotations

import math
from typing import Final

AHEAD_S: Final = 1 / 64
"""So many seconds' worth of a limit is taken ahead. A bucket that fills to the brim meanwhile holds as much more."""


class Bucket:
    """One share. Pure; time is an argument."""

    __slots__ = ("_at_s", "ahead", "capacity", "left", "rate")

    def __init__(self, rate: float, capacity: float, now_s: float) -> None:
        self.rate = rate
        """The tokens that come in each second."""
        self.capacity = capacity
        self.left = capacity
        """When something was taken last, without what was taken ahead; below 0 in debt."""
        self._at_s = now_s
        self.ahead = 0.0
        """Tokens that were taken ahead, and may be used at any time without a call."""

    def take(self, amount: float, now_s: float) -> float:
        """Take ``amount``, into debt if need be. Returns: the seconds until the debt is paid; 0 if there is none."""
        self.left = balance = self.balance(now_s) - amount
        self._at_s = now_s
        self.ahead = 0.0
        return 0.0 if balance >= 0 else -balance / self.rate

    def take_ahead(self) -> None:
        """Take the tokens of the next uses ahead, if they are there."""
        wanted = self.rate * AHEAD_S - self.ahead
        if wanted <= self.left:
            self.left -= wanted
            self.ahead += wanted

    def balance(self, now_s: float) -> float:
        """The tokens in it; below 0 in debt."""
        balance = self.left + self.ahead + (now_s - self._at_s) * self.rate
        return balance if balance < self.capacity else self.capacity

    def wait_s(self, amount: float, now_s: float) -> float:
        """The seconds until so much is in it, which is no more than its capacity; 0 if it is now."""
        return max(0.0, (amount - self.balance(now_s)) / self.rate)

    def change(self, rate: float, capacity: float, now_s: float) -> None:
        """From now on it has another limit. A debt of more than a full bucket is cut to that: it was made under the old one."""
        self.left = max(min(self.balance(now_s), capacity), -capacity)
        self._at_s = now_s
        self.ahead = 0.0
        self.rate, self.capacity = rate, capacity


class _Endless(Bucket):
    """In place of a bucket, where there is no limit: a caller that takes of it never waits, and need not know that it is none."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(math.inf, math.inf, 0.0)
        self.ahead = math.inf

    def take(self, amount: float, now_s: float) -> float:
        del amount, now_s
        return 0.0

    def take_ahead(self) -> None:
        """All of it was taken."""

    def balance(self, now_s: float) -> float:
        del now_s
        return math.inf


NO_LIMIT: Final[Bucket] = _Endless()
