"""Whose clients serve a request. Tests: ``tests/http/test_callers.py``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from fastapi import Request

from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.core.metrics import Counter, Registry
from app.http.gateway import Gateway

if TYPE_CHECKING:
    from app.http.callers import HttpCaller

CALLER: Final = "firn.caller"
"""Where a request's scope has its caller (``app/http/login.py``)."""


def gateway_of(request: Request) -> Gateway:
    """The clients that serve a request."""
    caller: HttpCaller | None = request.scope.get(CALLER)
    gateway: Gateway = request.app.state.gateway if caller is None else caller.gateway
    return gateway


def caller_of(request: Request) -> HttpCaller | None:
    """The logged-in caller of a request, None if the broker needs no login."""
    caller: HttpCaller | None = request.scope.get(CALLER)
    return caller


@lru_cache(4)
def records_counters(registry: Registry) -> tuple[Counter, Counter]:
    """Counters of the records that were stored, and of those that were not."""
    text = "Records received over HTTP, by whether they were stored."
    return (
        registry.counter("firn_http_records_total", text, outcome="stored"),
        registry.counter("firn_http_records_total", text, outcome="failed"),
    )


def counts_no_more(caller: HttpCaller | None, error: Exception) -> bool:
    """Whether a request failed because the credential of its caller counts no more."""
    if caller is None:
        return False
    if isinstance(error, RequestRejected):
        return error.code is ErrorCode.SASL_AUTHENTICATION_FAILED  # a connection had to be opened again
    return caller.ended and isinstance(error, BrokerUnavailable)  # its connections were closed


class CredentialEnded(Exception):
    """The credential of the request counts no more."""


@asynccontextmanager
async def while_counts(caller: HttpCaller | None) -> AsyncIterator[None]:
    """Raises: CredentialEnded, also in the middle of the block, once the credential of the caller counts no more."""
    if caller is None:
        yield
        return
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(0 if caller.ended else None)

    def tell() -> None:
        scope.reschedule(loop.time())

    try:
        async with scope:
            caller.on_end.add(tell)
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise CredentialEnded from None
    finally:
        caller.on_end.discard(tell)
