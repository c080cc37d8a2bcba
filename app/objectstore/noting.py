"""Notes of single requests to an object store, for the spans of an upload or a read that is traced (ADR 0049).

Tests: ``tests/objectstore/test_traced.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import msgspec

REQUESTS_MAX: Final = 64
"""Requests of one upload or read that are noted. A segment of 1 GiB is uploaded in 130."""
RETRIED: Final = "retried"
"""The outcome of a request that is sent again."""


class StoreRequest(msgspec.Struct, array_like=True, frozen=True):
    """One request, as a span shows it."""

    operation: str
    kind: str
    """Of its key, as in ``firn_store_requests_total``."""
    retry: int
    """How many requests of the same operation came before it. It begins with its pause."""
    size_bytes: int
    """Of the payload in either direction."""
    outcome: str
    start_s: float
    """Since the work began."""
    end_s: float


class Noted:
    """The requests of one upload or read."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self.requests: list[StoreRequest] = []
        self.count = 0
        """Of all requests, also beyond ``REQUESTS_MAX``."""
        self._elapsed_s = elapsed_s
        self._began_s = elapsed_s()

    def now_s(self) -> float:
        """Since the work began."""
        return self._elapsed_s() - self._began_s

    def add(self, request: StoreRequest) -> None:
        self.count += 1
        if len(self.requests) < REQUESTS_MAX:
            self.requests.append(request)

    def take(self, requests: list[StoreRequest], count: int) -> None:
        """Add the requests that another process has made for this work."""
        self.requests += requests[: REQUESTS_MAX - len(self.requests)]
        self.count += count


class UnderWay:
    """An operation that has not ended. Its adapter may send it several times."""

    def __init__(self, noted: Noted, operation: str, kind: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._noted, self._operation, self._kind = noted, operation, kind
        self._retry, self._start_s = 0, noted.now_s()

    def retried(self) -> None:
        """It is sent again."""
        self.ended(RETRIED)
        self._retry, self._start_s = self._retry + 1, self._noted.now_s()

    def ended(self, outcome: str) -> None:
        self._noted.add(
            StoreRequest(
                self._operation, self._kind, self._retry, self.size_bytes, outcome, self._start_s, self._noted.now_s()
            )
        )


NOTED: Final[ContextVar[Noted | None]] = ContextVar("firn_noted", default=None)
"""The upload or read that is traced, while it is done."""
UNDER_WAY: Final[ContextVar[UnderWay | None]] = ContextVar("firn_under_way", default=None)
"""The operation of this task, if its requests are noted."""
