"""Leases tokens of limits of the whole cluster from Redis, for all shares of this broker together (ADR 0032, QT).

Tests: ``tests/broker/test_cluster_quotas.py``.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from app.core.errors import StorageUnavailable, clause
from app.handlers.policy.quota_leases import Ask, Leases

if TYPE_CHECKING:
    from app.core.faults import Faults
    from app.core.metrics import Registry

ASK_S: Final = 0.1
"""Pause between two requests, on average: brokers that ask at the same pace would get unequal parts."""
RETRY_S: Final = 1.0
TIMEOUT_S: Final = 0.5
EXPIRE_MS: Final = 600_000
"""A share that no broker asked for so long is forgotten. It begins empty again."""

_SCRIPT: Final = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local got = {}
for i, key in ipairs(KEYS) do
  local rate, capacity, wanted = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local kept = redis.call('HMGET', key, 'tokens', 'at')
  local tokens, at = tonumber(kept[1]) or 0, tonumber(kept[2]) or now
  tokens = math.min(capacity, tokens + math.max(0, now - at) * rate)
  local given = math.min(math.max(0, wanted), tokens)
  redis.call('HSET', key, 'tokens', string.format('%.6f', tokens - given), 'at', string.format('%.6f', now))
  redis.call('PEXPIRE', key, ARGV[#ARGV])
  got[i] = string.format('%.6f', given)
end
return got
"""
"""As ``CentralBucket.lease`` of ``tests/support/quotas.py``, by the clock of Redis, for many shares at once."""


class Tokens(Protocol):
    """Gives out tokens."""

    async def lease(self, asks: Sequence[Ask]) -> Sequence[float]:
        """Return the number of granted tokens for each. An empty list checks the connection. Raises: StorageUnavailable."""
        ...

    async def close(self) -> None: ...


class RedisTokens:
    """In a Redis. ``namespace`` separates clusters that share one."""

    def __init__(self, url: str, *, namespace: Callable[[], str]) -> None:
        from redis.asyncio import Redis

        self._client: Any = Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        self._script = self._client.register_script(_SCRIPT)
        self._namespace = namespace

    async def lease(self, asks: Sequence[Ask]) -> Sequence[float]:
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                if not asks:
                    await self._client.ping()
                    return []
                keys = [self._key(ask) for ask in asks]
                numbers = [repr(number) for ask in asks for number in (ask.rate, ask.capacity, ask.tokens)]
                return [float(text) for text in await self._script(keys=keys, args=[*numbers, EXPIRE_MS])]
        except (RedisError, OSError, TimeoutError) as error:
            raise StorageUnavailable(f"Redis does not answer: {clause(str(error) or type(error).__name__)}.") from error

    def _key(self, ask: Ask) -> str:
        # A hash keeps the names of users out of Redis, and gives keys of one length for all client ids.
        share = hashlib.sha256(repr(ask.share).encode()).hexdigest()[:32]
        return f"{self._namespace()}:quota:{share}"

    async def close(self) -> None:
        await self._client.aclose()


class QuotaTokens:
    """Leases the tokens that the quotas of a broker want. Belongs to one loop."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        brokers: Callable[[], int],
        now_s: Callable[[], float],
        rng: random.Random,
        faults: Faults,
        registry: Registry,
    ) -> None:
        """``brokers``: how many are alive. ``now_s``: the time of the quotas."""
        self._tokens = tokens
        self._now_s = now_s
        self._rng = rng
        self._faults = faults
        self._wanted = asyncio.Event()
        self.leases = Leases(brokers, self._wanted.set)
        self._blocks = registry.counter(
            "firn_quota_leases_total", "Requests for tokens of limits of the whole cluster that were answered."
        )
        registry.gauge(
            "firn_quota_fallback",
            "1 while limits of the whole cluster are divided by the number of brokers, because Redis does not answer.",
            lambda: [((), float(self.leases.away))],
        )

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                if self.leases.away:
                    await self._ask()
                    if self.leases.away:
                        await asyncio.sleep(RETRY_S * self._rng.uniform(0.5, 1.5))
                        continue
                await self._wanted.wait()
                await self._ask()
                await asyncio.sleep(ASK_S * self._rng.uniform(0.5, 1.5))
        finally:
            await self._tokens.close()

    async def _ask(self) -> None:
        leases = self.leases
        self._wanted.clear()
        asked = leases.wanted(self._now_s())
        if not asked and not leases.away:
            return
        try:
            got = await self._tokens.lease([ask for _, ask in asked])
        except StorageUnavailable as error:
            self._faults.met(
                "leasing quotas from",
                "Redis",
                f"limits of the whole cluster are divided by the number of brokers for now: {error}",
                lasting=True,
            )
            leases.failed(self._now_s())
            return
        if leases.away:
            self._faults.over("leasing quotas from", "Redis")
            leases.answered(self._now_s())
        if asked:
            self._blocks.value += 1
            leases.granted(asked, got, self._now_s())
        if leases.wants:
            self._wanted.set()
