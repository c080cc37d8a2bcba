"""A share of something: a bucket that fills at the rate of its limit, and from which requests take, into debt if need be."""

from __future__ import annotations


class Bucket:
    """One share. Pure; time is an argument."""

    __slots__ = ("_at_s", "_balance", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now_s: float) -> None:
        self.rate = rate
        """What comes in each second."""
        self.capacity = capacity
        self._balance = capacity
        self._at_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """Take ``amount``, into debt if need be. Returns: the seconds until the debt is paid; 0 if there is none."""
        self._balance = balance = self.balance(now_s) - amount
        self._at_s = now_s
        return 0.0 if balance >= 0 else -balance / self.rate

    def balance(self, now_s: float) -> float:
        """What is in it; below 0 in debt."""
        return min(self.capacity, self._balance + (now_s - self._at_s) * self.rate)

    def wait_s(self, amount: float, now_s: float) -> float:
        """The seconds until so much is in it, which is no more than its capacity; 0 if it is now."""
        return max(0.0, (amount - self.balance(now_s)) / self.rate)

    def change(self, rate: float, capacity: float, now_s: float) -> None:
        """From now on it has another limit. A debt of more than a full bucket is cut to that: it was made under the old one."""
        self._balance = max(min(self.balance(now_s), capacity), -capacity)
        self._at_s = now_s
        self.rate, self.capacity = rate, capacity
