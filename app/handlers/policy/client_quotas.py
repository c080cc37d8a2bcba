"""Enforces quotas: decides how long a client waits that took more than its share (KIP-13, 124, 219, 599, 612; ADR 0032).

A share is a bucket. It fills at the rate of its limit, and holds as much as comes in one sample (``quota.window.size.seconds``).
A client that takes more than the bucket holds goes into debt, and waits until the debt is paid. So a client gets its rate over any
time, and a burst of one sample besides. Bytes of Produce or time that are taken ahead of a bucket (``Bucket.ahead``) come on top.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from app.core.buckets import NO_LIMIT, Bucket
from app.core.errors import ErrorCode, RequestRejected
from app.handlers.policy.callers import Quotas, Shares
from app.metadata.changes.quotas import DEFAULT
from app.metadata.image.records import QuotaEntity
from app.wire.apikeys import ApiKey
from app.wire.versions import BETWEEN_BROKERS

if TYPE_CHECKING:
    from app.configs import BrokerConfig
    from app.core.metrics import Labels, Registry
    from app.handlers.policy.callers import Caller, Remembers
    from app.handlers.policy.quota_leases import Leases

Whose = TypeVar("Whose")

PRODUCE: Final = int(ApiKey.PRODUCE)
FETCH: Final = int(ApiKey.FETCH)
SHARES_MAX: Final = 10_000
"""Limit of remembered clients, and of remembered addresses. With more, full buckets are forgotten: a new bucket is full, too."""
FREE: Final = frozenset({int(ApiKey.ENVELOPE), *map(int, BETWEEN_BROKERS)})
"""Requests between brokers count for no client's share."""
TIME: Final = "request_percentage"


class Meaning(NamedTuple):
    """How the limits of a key become buckets."""

    unit: float
    """Amount by which a limit of 1 fills a bucket in a second."""
    samples: Callable[[BrokerConfig], int]
    """How many seconds' worth a bucket holds."""
    of_cluster: bool = False
    """Whether the limit is the whole cluster's with ``firn.quota.scope=cluster``."""


def _sample(config: BrokerConfig) -> int:
    return config.quota_window_size_seconds


def _controller_window(config: BrokerConfig) -> int:
    return config.controller_quota_window_num * config.controller_quota_window_size_seconds


OF_SHARES: Final[Mapping[str, Meaning]] = {
    "producer_byte_rate": Meaning(1, _sample, of_cluster=True),
    "consumer_byte_rate": Meaning(1, _sample, of_cluster=True),
    "firn.cold_read_byte_rate": Meaning(1, _sample, of_cluster=True),
    TIME: Meaning(0.01, _sample),
    "controller_mutation_rate": Meaning(1, _controller_window),
}
"""In the order in which ``Shares`` takes them."""


class Waits:
    """Counts the requests whose clients must wait, by the quota that they exceeded."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = dict.fromkeys(OF_SHARES, 0)
        self.seconds: dict[str, float] = dict.fromkeys(OF_SHARES, 0.0)

    def told(self, quota: str, wait_s: float) -> int:
        """A client is told to wait. Returns: the wait in milliseconds."""
        self.requests[quota] += 1
        self.seconds[quota] += wait_s
        return math.ceil(wait_s * 1000)

    def register(self, registry: Registry) -> None:
        registry.describe(
            "firn_throttled_requests_total", "counter", "Requests whose client has to wait because of a quota"
        )
        registry.describe(
            "firn_throttled_seconds_total", "counter", "Time that clients have to wait because of a quota"
        )
        registry.source(self._samples)

    def _samples(self) -> Iterator[tuple[str, Labels, float]]:
        for quota, count in self.requests.items():
            labels = (("quota", quota),)
            yield "firn_throttled_requests_total", labels, count
            yield "firn_throttled_seconds_total", labels, self.seconds[quota]


class ClientQuotas(Quotas):
    """The quotas of one broker. Belongs to its loop."""

    def __init__(self, config: BrokerConfig, now_s: Callable[[], float], leases: Leases | None = None) -> None:
        """``leases``: where limits of the whole cluster are leased from; None if all limits are this broker's."""
        self._config = config
        self._leases = leases
        self.now_s = now_s
        self._limits: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._shares: dict[tuple[str, str | None], Shares] = {}
        self._buckets: dict[tuple[str, str | None, str | None], Bucket] = {}
        """By key, user and client id, as far as the limit tells these apart."""
        self._addresses: dict[str, Bucket] = {}
        """Connections that each address may open. Clients without a login have many addresses, and push out no user's share."""
        self._mark_s: float | None = None
        """When the present request began; None between requests."""
        self._began_s = 0.0
        """When ``_mark_s`` was first set."""
        self._calls_s = 0.0
        """The time between ``begin`` and the last charge before ``end``, of all calls together."""
        self._time_s_max = float(config.quota_window_size_seconds)
        self.counts_time = False
        self.terms = object()
        self.producing: Shares | None = None
        self.waits = Waits()

    def follow(self, limits: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Set the limits from now on. Bytes and time that clients took before still count."""
        self._limits = limits
        self.counts_time = any(TIME in of_entity for of_entity in limits.values())
        self._forget_shares()

    def begin(self) -> None:
        self.producing = None
        if self.counts_time:
            self._mark_s = self._began_s = self.now_s()

    def end(self) -> None:
        mark_s = self._mark_s
        if mark_s is None:
            return
        self._mark_s = None
        charged_s = mark_s
        if self.producing is not None:
            charged_s = self.now_s()
            self._spend(self.producing, charged_s - mark_s, charged_s)
        self._calls_s += charged_s - self._began_s

    def _spend(self, shares: Shares, seconds: float, now_s: float) -> None:
        time = shares.time
        ahead = time.ahead - seconds
        if ahead >= 0:
            time.ahead = ahead
        else:
            time.take(seconds, now_s)
            time.take_ahead()

    def share_out(self, shares: Sequence[Shares | None], seconds: float) -> None:
        if self._mark_s is not None:
            self._mark_s += seconds
        now_s, each_s = self.now_s(), seconds / len(shares)
        for one, count in Counter(shares).items():
            if one is not None:
                self._spend(one, each_s * count, now_s)

    def charge(self, caller: Caller, client_id: str | None, api_key: int, size_bytes: int) -> int:
        if api_key in FREE:
            self.spent(caller, None)
            return 0
        self._turn_to(None)
        shares = self.shares_of(caller, client_id)
        bucket = shares.produced if api_key == PRODUCE else shares.fetched if api_key == FETCH else NO_LIMIT
        return self._take(shares, bucket, size_bytes)

    def produced(self, caller: Caller, client_id: str | None, size_bytes: int) -> int:
        return self._produced(self.shares_of(caller, client_id), size_bytes)

    def produced_alike(self, caller: Caller, kind: Remembers, size_bytes: int) -> int:
        shares = kind.shares
        if shares.terms is not self.terms:
            shares = kind.shares = self.shares_of(caller, kind.client_id)
        return self._produced(shares, size_bytes)

    def _produced(self, shares: Shares, size_bytes: int) -> int:
        """As ``produced``, for a client with these shares."""
        self._turn_to(shares)
        bucket = shares.produced
        ahead = bucket.ahead - size_bytes
        # Most requests end here: without a look at the clock, and their time is charged with that of the others.
        if ahead >= 0 and shares.time.left >= 0:
            bucket.ahead = ahead
            return 0
        wait_ms = self._take(shares, bucket, size_bytes)
        bucket.take_ahead()
        return wait_ms

    def spent(self, caller: Caller, client_id: str | None) -> None:
        if self._mark_s is not None:
            self._turn_to(None)
            self._take(self.shares_of(caller, client_id), NO_LIMIT, 0)

    def between_calls_s(self) -> float:
        return self.now_s() - self._calls_s

    def stepped(self, caller: Caller, client_id: str | None, api_key: int, seconds: float) -> None:
        if api_key not in FREE:
            self._spend(self.shares_of(caller, client_id), seconds, self.now_s())

    def _turn_to(self, shares: Shares | None) -> None:
        """Another request is charged next, perhaps of another client. First charge the time of the Produce requests before it.

        ``shares``: of the client, if the request is a Produce and its time is charged with that of the next ones.
        """
        producing = self.producing
        if producing is not shares:
            if producing is not None and self._mark_s is not None:
                self._take(producing, NO_LIMIT, 0)
            self.producing = shares

    def _take(self, shares: Shares, bucket: Bucket, size_bytes: int) -> int:
        """Take the bytes of a request of the bucket that counts them, and the time since the mark. Returns: as ``charge``."""
        now_s, mark_s = self.now_s(), self._mark_s
        spent_s = 0.0
        if mark_s is not None:
            self._mark_s = now_s
            spent_s = now_s - mark_s
        time_wait_s = shares.time.take(spent_s, now_s)
        bytes_wait_s = bucket.take(size_bytes, now_s)
        if not (time_wait_s or bytes_wait_s):
            return 0
        time_wait_s = min(time_wait_s, self._time_s_max)
        if time_wait_s > bytes_wait_s:
            return self.waits.told(TIME, time_wait_s)
        return self.waits.told(
            "producer_byte_rate" if bucket is shares.produced else "consumer_byte_rate", bytes_wait_s
        )

    def read_cold(self, caller: Caller, client_id: str | None, size_bytes: int) -> int:
        wait_s = self.shares_of(caller, client_id).cold.take(size_bytes, self.now_s())
        return self.waits.told("firn.cold_read_byte_rate", wait_s) if wait_s else 0

    def fetch_bytes_max(self, caller: Caller, client_id: str | None) -> int | None:
        shares = self.shares_of(caller, client_id)
        bytes_max = min(shares.fetched.capacity, shares.cold.capacity)
        return None if bytes_max == math.inf else int(bytes_max)

    def mutate(self, caller: Caller, client_id: str | None, partitions: int, *, strict: bool) -> int:
        mutations = self.shares_of(caller, client_id).mutations
        now_s = self.now_s()
        if strict and mutations.balance(now_s) < 0:
            wait_s = mutations.take(0, now_s)
            self.waits.told("controller_mutation_rate", wait_s)
            raise RequestRejected(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"The quota controller_mutation_rate is used up; ask again in {wait_s:.1f} s.",
            )
        wait_s = mutations.take(partitions, now_s)
        return self.waits.told("controller_mutation_rate", wait_s) if wait_s else 0

    def connected(self, address: str) -> float:
        limit = None
        for entity in (QuotaEntity(None, None, address), QuotaEntity(None, None, DEFAULT)):
            limit = self._limits.get(entity, {}).get("connection_creation_rate")
            if limit is not None:
                break
        if limit is None:
            return 0.0
        now_s = self.now_s()
        bucket = self._addresses.get(address)
        if bucket is None:
            if len(self._addresses) >= SHARES_MAX:
                self._addresses = _lasting(self._addresses, now_s)
            bucket = self._addresses[address] = Bucket(limit, limit * self._time_s_max, now_s)
        elif bucket.rate != limit:
            bucket.change(limit, limit * self._time_s_max, now_s)
        wait_s = bucket.wait_s(1, now_s)
        if not wait_s:
            bucket.take(1, now_s)
        return wait_s

    def shares_of(self, caller: Caller, client_id: str | None) -> Shares:
        principal = caller.rights.principal
        shares = self._shares.get((principal, client_id))
        return self._resolve(principal, client_id) if shares is None else shares

    def _resolve(self, principal: str, client_id: str | None) -> Shares:
        now_s = self.now_s()
        user, client = principal.partition(":")[2], client_id or DEFAULT
        both, alone, program = (user, client), (user, None), (None, client)
        # From the most specific entity on; with each, the owner of the share.
        order = (
            (QuotaEntity(user, client, None), both),
            (QuotaEntity(user, DEFAULT, None), both),
            (QuotaEntity(user, None, None), alone),
            (QuotaEntity(DEFAULT, client, None), both),
            (QuotaEntity(DEFAULT, DEFAULT, None), both),
            (QuotaEntity(DEFAULT, None, None), alone),
            (QuotaEntity(None, client, None), program),
            (QuotaEntity(None, DEFAULT, None), program),
        )
        if len(self._buckets) + len(OF_SHARES) > SHARES_MAX:
            self._forget(now_s)  # before any bucket of these shares is made: a new one is full
        found = [(self._limits[entity], whose) for entity, whose in order if entity in self._limits]
        buckets: list[Bucket] = []
        for key, meaning in OF_SHARES.items():
            limit, whose = next(((limits[key], whose) for limits, whose in found if key in limits), (None, both))
            if limit is None:
                buckets.append(NO_LIMIT)
            else:
                rate = limit * meaning.unit
                capacity = rate * meaning.samples(self._config)
                buckets.append(self._bucket((key, *whose), rate, capacity, now_s, of_cluster=meaning.of_cluster))
        if len(self._shares) >= SHARES_MAX:
            self._shares.clear()
        shares = self._shares[principal, client_id] = Shares(self.terms, *buckets)
        return shares

    def _bucket(
        self,
        whose: tuple[str, str | None, str | None],
        rate: float,
        capacity: float,
        now_s: float,
        *,
        of_cluster: bool = False,
    ) -> Bucket:
        bucket = self._buckets.get(whose)
        if bucket is None:
            if of_cluster and self._leases is not None:
                bucket = self._leases.bucket(whose, rate, capacity, now_s)
            else:
                bucket = Bucket(rate, capacity, now_s)
            self._buckets[whose] = bucket
        elif bucket.rate != rate or bucket.capacity != capacity:
            bucket.change(rate, capacity, now_s)
        return bucket

    def _forget_shares(self) -> None:
        """Make connections look up their shares again."""
        self.terms = object()
        self._shares.clear()
        self.producing = None

    def _forget(self, now_s: float) -> None:
        self._forget_shares()
        self._buckets = _lasting(self._buckets, now_s)
        if self._leases is not None:
            self._leases.keep(self._buckets.values())


def _lasting(buckets: Mapping[Whose, Bucket], now_s: float) -> dict[Whose, Bucket]:
    """The buckets without full ones; if hardly any is full, without the fullest ones."""
    kept = {whose: one for whose, one in buckets.items() if one.balance(now_s) < one.capacity}
    if len(kept) > SHARES_MAX // 2:
        deepest = heapq.nsmallest(
            SHARES_MAX // 2, kept, key=lambda whose: kept[whose].balance(now_s) / kept[whose].capacity
        )
        kept = {whose: kept[whose] for whose in deepest}
    return kept
