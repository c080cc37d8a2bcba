"""Bounds the bytes of all pages of records that are being read or sent, together.

A page takes bytes as it grows, and gives them back when its response has been sent or has failed. A page that gets no more bytes
ends as if it had reached its own limit, and the next page goes on behind it. The first record of a page is never refused, so each
reader gets on. Where callers log in, one of them has at most ``CALLER_PART`` of all bytes.

Tests: ``tests/http/test_read_budget.py``.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.core.limits import MIB

READ_BYTES_MAX: Final = 128 * MIB
"""Of JSON, on all pages. Each page may pass it by one record."""
CALLER_PART: Final = 0.5


class ReadBudget:
    """The bytes of all readers of a process, or of one caller."""

    def __init__(self, bytes_max: int = READ_BYTES_MAX, whole: ReadBudget | None = None) -> None:
        """``whole``: the budget that this one is a part of."""
        self.bytes_max: Final = bytes_max
        self._whole: Final = whole
        self.taken = 0

    def part_of_caller(self) -> ReadBudget:
        """The budget of one caller."""
        return ReadBudget(int(self.bytes_max * CALLER_PART), self)

    def page(self) -> PageBytes:
        """For a page that is about to be read."""
        return PageBytes(self)

    def has(self, count: int) -> bool:
        """Whether so many bytes are left."""
        return self.taken + count <= self.bytes_max and (self._whole is None or self._whole.has(count))

    def add(self, count: int) -> None:
        """Count bytes that were taken, or with a negative number given back."""
        self.taken += count
        if self._whole is not None:
            self._whole.add(count)


class PageBytes:
    """The bytes of one page. They are given back at the end of the ``with`` block, unless they were passed on."""

    def __init__(self, budget: ReadBudget) -> None:
        self._budget = budget
        self._taken = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.add(-self._taken)
        self._taken = 0

    def has(self, count: int) -> bool:
        """Whether so many bytes are left now."""
        return self._budget.has(count)

    def take(self, count: int) -> bool:
        """Take bytes for another record. Returns whether the page may have it: the first record always."""
        if self._taken and not self._budget.has(count):
            return False
        self._budget.add(count)
        self._taken += count
        return True

    def passed_on(self) -> PageBytes:
        """The same bytes for another owner. This one has none afterwards."""
        other = PageBytes(self._budget)
        other._taken, self._taken = self._taken, 0
        return other


class Held(Response):
    """A response that gives the bytes of its page back when it was sent, or when sending it has failed."""

    def __init__(self, response: Response, held: PageBytes) -> None:
        self.status_code = response.status_code
        self.raw_headers = response.raw_headers
        self.body = response.body
        self.background = response.background
        self._response = response
        self._held = held.passed_on()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await self._response(scope, receive, send)
