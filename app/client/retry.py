"""When to try again: exponential back-off with jitter, within a budget of time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from app.core.errors import RETRIABLE, BrokerUnavailable, ErrorCode, FirnError, RequestRejected

T = TypeVar("T")

BACKOFF_MIN_MS: Final = 50
BACKOFF_MAX_MS: Final = 1_000
NO_SHORTER: Final[Mapping[ErrorCode, int]] = MappingProxyType({})


def is_retriable(error: BaseException) -> bool:
    """Whether the same request may succeed later: the broker was not reached, or its code says so."""
    if isinstance(error, RequestRejected):
        return error.code in RETRIABLE
    return isinstance(error, BrokerUnavailable)


def backoff_ms(attempt: int, rng: random.Random) -> float:
    """Milliseconds to wait before attempt ``attempt`` (from 1). It doubles up to a maximum, and varies by a fifth."""
    return min(BACKOFF_MIN_MS * 2.0 ** min(attempt - 1, 16), BACKOFF_MAX_MS) * rng.uniform(0.8, 1.2)


async def retrying(
    work: Callable[[], Awaitable[T]],
    *,
    rng: random.Random,
    budget_ms: int,
    before_retry: Callable[[FirnError], Awaitable[None]] | None = None,
    also_final: frozenset[ErrorCode] = frozenset(),
    shorter_ms: Mapping[ErrorCode, int] = NO_SHORTER,
) -> T:
    """The result of ``work``, tried until it succeeds, fails for good, or the budget is used up.

    ``before_retry`` is told the error before each further attempt (to refresh metadata); its own retriable errors count as
    another failed attempt. ``also_final`` names retriable codes that this caller takes as the answer.
    ``shorter_ms``: codes that have a smaller budget.

    Raises: the last error of ``work``.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    attempt = 0
    while True:
        try:
            return await work()
        except (RequestRejected, BrokerUnavailable) as error:
            attempt += 1
            pause_s = backoff_ms(attempt, rng) / 1000
            final, limit_ms = False, budget_ms
            if isinstance(error, RequestRejected):
                final = error.code in also_final
                limit_ms = min(budget_ms, shorter_ms.get(error.code, budget_ms))
            if final or not is_retriable(error) or loop.time() + pause_s >= begin + limit_ms / 1000:
                raise
            last = error
        await asyncio.sleep(pause_s)
        if before_retry is not None:
            try:
                await before_retry(last)
            except (RequestRejected, BrokerUnavailable) as error:
                if not is_retriable(error):
                    raise
