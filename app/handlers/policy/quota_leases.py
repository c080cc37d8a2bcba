"""Limits of a whole cluster: tokens that brokers lease in blocks from one place (ADR 0032, QT). Pure; time is an argument.

A ``LeasedBucket`` stands for one broker's part of a share. All tokens in it were leased; it does not fill by itself. Requests take
from it as from any bucket, into debt if need be, without a message. Now and then the broker asks for the next block of all buckets
that are low (``Leases.wanted``), and gets some tokens (``granted``). While the request fails (``failed``), each bucket fills at the
limit divided by the number of known brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from app.core.buckets import AHEAD_S, Bucket

BLOCK_S: Final = 0.2
"""So many seconds' worth of a limit is one block."""
LEASE_S: Final = 2.0
"""A block that was not used up for so long is lost: the place where it came from has long been giving out the next ones."""
RATE_WEIGHT: Final = 0.3
"""Weight of the newest grant in the rate from which the waits of clients are computed."""
ASKS_MAX: Final = 500
"""Shares in one request for blocks."""


class Ask(NamedTuple):
    """A broker wants tokens of one share."""

    share: tuple[str, str | None, str | None]
    """The key of the limit, and the user and client id of the share."""
    rate: float
    """The limit: tokens a second of the whole cluster."""
    capacity: float
    """Tokens that are kept of it while no broker asks."""
    tokens: float
    """Wanted tokens. The grant may be smaller."""


class LeasedBucket(Bucket):
    """One broker's part of a share. ``rate`` and ``capacity`` are those of the whole cluster."""

    __slots__ = ("_brokers", "_fills", "_got_s", "_leases", "_told_rate", "_waits", "share")

    def __init__(
        self,
        rate: float,
        capacity: float,
        now_s: float,
        leases: Leases,
        share: tuple[str, str | None, str | None],
    ) -> None:
        super().__init__(rate, capacity, now_s)
        self.share = share
        self._leases = leases
        self._brokers = leases.brokers()
        self.left = 0.0  # nothing is leased yet
        self._fills = leases.away
        """Whether it fills by itself, because requests for tokens fail."""
        self._got_s = now_s
        """Time of the last grant."""
        self._told_rate = rate / self._brokers
        self._waits = False
        """Whether it is among the buckets that want tokens."""

    def take(self, amount: float, now_s: float) -> float:
        self.left = balance = self.balance(now_s) - amount
        self._at_s = now_s
        self.ahead = 0.0
        if balance < self.rate * BLOCK_S / 2 and not self._waits and not self._fills:
            self._waits = True
            self._leases.want(self)
        return 0.0 if balance >= 0 else -balance / self._told_rate

    def balance(self, now_s: float) -> float:
        if self._fills:
            filled = self.left + self.ahead + (now_s - self._at_s) * self._told_rate
            return min(self.capacity / self._brokers, filled)
        balance = self.left + self.ahead
        if balance > 0 and now_s - self._got_s > LEASE_S:
            return 0.0
        return balance

    def take_ahead(self) -> None:
        wanted = self.rate * AHEAD_S / self._brokers - self.ahead
        if wanted <= self.left:
            self.left -= wanted
            self.ahead += wanted

    def asks(self, now_s: float) -> Ask | None:
        """The tokens that it wants now; None if it has enough."""
        wanted = self.rate * BLOCK_S - self.balance(now_s)
        return Ask(self.share, self.rate, self.capacity, wanted) if wanted > 0 else None

    def has_enough(self) -> None:
        """It wants no tokens any more."""
        self._waits = False

    def granted(self, tokens: float, wanted: float, now_s: float) -> None:
        """It gets ``tokens`` of the ``wanted`` ones."""
        before = self.balance(now_s)
        self._waits = False
        passed_s = max(now_s - self._got_s, 0.01)
        if tokens < wanted:  # it would have taken more: that is as fast as they come
            told = (1 - RATE_WEIGHT) * self._told_rate + RATE_WEIGHT * tokens / passed_s
            self._told_rate = min(self.rate, max(told, self.rate / (4 * self._brokers)))
        else:
            self._told_rate = self.rate
        self.left, self.ahead, self._at_s, self._got_s = before + tokens, 0.0, now_s, now_s
        if self.left < self.rate * BLOCK_S / 2:
            self._waits = True
            self._leases.want(self)

    def alone(self, brokers: int, now_s: float) -> None:
        """Requests for tokens fail: from now on it fills at its part of the limit."""
        self.left, self.ahead, self._at_s = self.balance(now_s), 0.0, now_s
        self._brokers = brokers
        self._told_rate = self.rate / brokers
        self._fills = True
        self._waits = False

    def together(self, now_s: float) -> None:
        """There are tokens to lease again."""
        if not self._fills:
            return
        self.left = min(self.balance(now_s), self.rate * BLOCK_S)
        self.ahead = 0.0
        self._at_s = self._got_s = now_s
        self._fills = False
        self._waits = True
        self._leases.want(self)

    def change(self, rate: float, capacity: float, now_s: float) -> None:
        super().change(rate, capacity, now_s)
        self._told_rate = rate / self._brokers


class Leases:
    """The leased buckets of one broker."""

    def __init__(self, brokers: Callable[[], int], wake: Callable[[], None] = lambda: None) -> None:
        """``brokers``: the number of living brokers, as far as this one knows. ``wake`` is called when a bucket wants tokens."""
        self._count = brokers
        self.away = True
        """Whether the last request for tokens has failed, or none was answered yet."""
        self._wake = wake
        self._buckets: set[LeasedBucket] = set()
        self._wanting: dict[LeasedBucket, None] = {}

    def brokers(self) -> int:
        """The number of brokers that share a limit: this one at least."""
        return max(1, self._count())

    def bucket(
        self, share: tuple[str, str | None, str | None], rate: float, capacity: float, now_s: float
    ) -> LeasedBucket:
        bucket = LeasedBucket(rate, capacity, now_s, self, share)
        self._buckets.add(bucket)
        return bucket

    def keep(self, buckets: Iterable[Bucket]) -> None:
        """Forget all buckets but these."""
        self._buckets.intersection_update(buckets)
        self._wanting = {bucket: None for bucket in self._wanting if bucket in self._buckets}

    def want(self, bucket: LeasedBucket) -> None:
        if not self._wanting:
            self._wake()
        self._wanting[bucket] = None

    @property
    def wants(self) -> bool:
        """Whether any bucket wants tokens."""
        return bool(self._wanting)

    def wanted(self, now_s: float) -> list[tuple[LeasedBucket, Ask]]:
        """The requests to make now, of as many buckets as fit into one message: those first that have waited longest."""
        asked = []
        for bucket in tuple(self._wanting)[:ASKS_MAX]:
            del self._wanting[bucket]
            ask = bucket.asks(now_s)
            if ask is not None:
                asked.append((bucket, ask))
            else:
                bucket.has_enough()
        return asked

    def granted(self, asked: Sequence[tuple[LeasedBucket, Ask]], tokens: Sequence[float], now_s: float) -> None:
        """Give the granted ``tokens`` to the buckets of ``asked``."""
        for (bucket, ask), got in zip(asked, tokens, strict=True):
            bucket.granted(min(max(0.0, got), ask.tokens), ask.tokens, now_s)

    def failed(self, now_s: float) -> None:
        """The request for tokens has failed. Called again and again while that lasts, since brokers come and go."""
        self.away = True
        self._wanting.clear()
        brokers = self.brokers()
        for bucket in self._buckets:
            bucket.alone(brokers, now_s)

    def answered(self, now_s: float) -> None:
        """A request for tokens was answered, perhaps after failures."""
        if not self.away:
            return
        self.away = False
        for bucket in self._buckets:
            bucket.together(now_s)
