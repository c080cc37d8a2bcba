"""Bounds the bytes of all request bodies that are held as a whole, together.

A body takes bytes as it comes in. A body that gets no more bytes is refused with 429. Its first piece is never refused, so short
bodies pass while others hold all bytes. Where callers log in, one of them has at most a half.

Tests: ``tests/http/test_body_budget.py``.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from fastapi import Request

from app.core.limits import MIB
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.read_budget import PageBytes, ReadBudget
from app.http.serving import gateway_of

BODIES_BYTES_MAX: Final = 128 * MIB
"""Without their Content-Encoding. A route needs up to four times as many while it converts a body."""
_TOO_MANY: Final = 42901


class BodyBudget:
    """The bytes of all bodies of a process."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self.whole: Final = ReadBudget(bytes_max)
        self._of_callers: WeakKeyDictionary[Gateway, ReadBudget] = WeakKeyDictionary()

    def of_caller(self, gateway: Gateway) -> ReadBudget:
        """The part of the caller whose clients are ``gateway``."""
        found = self._of_callers.get(gateway)
        if found is None:
            found = self._of_callers[gateway] = self.whole.part_of_caller()
        return found


def bytes_of_body(request: Request) -> PageBytes:
    """For the body of a request, which is about to be read. It belongs in a ``with`` block as long as the body is held."""
    state = request.app.state
    budget: BodyBudget = state.body_budget
    return (budget.whole if state.callers is None else budget.of_caller(gateway_of(request))).page()


def take_body(held: PageBytes, count: int) -> None:
    """Take bytes for a piece of a body. Raises: RestError 429."""
    if not held.take(count):
        raise RestError(
            429,
            "The bodies of all requests together have too many bytes. Send this one again in a moment.",
            error_code=_TOO_MANY,
        )
