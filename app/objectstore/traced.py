"""A metered store that also notes single requests (ADR 0049). The store process of a broker that does not trace has none.

Tests: ``tests/objectstore/test_traced.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

from app.objectstore.metered import MeteredStore, MeteredUpload, kind_of, outcome_of
from app.objectstore.noting import NOTED, UNDER_WAY, UnderWay

if TYPE_CHECKING:
    from app.core.units import Buffer
    from app.objectstore.api import Upload

T = TypeVar("T")

_SENT: Final[ContextVar[int]] = ContextVar("firn_sent_bytes", default=0)
"""Bytes that the operation of this task sends."""


class TracedStore(MeteredStore):
    """Notes the requests of uploads and reads that are traced."""

    async def put(self, key: str, data: Buffer) -> None:
        token = _SENT.set(len(data))
        try:
            await super().put(key, data)
        finally:
            _SENT.reset(token)

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        token = _SENT.set(len(data))
        try:
            await super().put_if_absent(key, data)
        finally:
            _SENT.reset(token)

    async def begin_upload(self, key: str) -> MeteredUpload:
        return TracedUpload(self, await self._measure("begin_upload", key, self.inner.begin_upload(key)))

    async def _measure(self, operation: str, key: str, call: Awaitable[T]) -> T:
        noted = NOTED.get()
        if noted is None:
            return await super()._measure(operation, key, call)
        request = UnderWay(noted, operation, kind_of(key), _SENT.get())
        token, outcome = UNDER_WAY.set(request), "ok"
        try:
            result = await super()._measure(operation, key, call)
            request.size_bytes = request.size_bytes or _received(result)
            return result
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            UNDER_WAY.reset(token)
            request.ended(outcome)


class TracedUpload(MeteredUpload):
    """Upload of a TracedStore."""

    def __init__(self, store: TracedStore, inner: Upload) -> None:
        super().__init__(store, inner)

    async def put_part(self, number: int, data: Buffer) -> None:
        token = _SENT.set(len(data))
        try:
            await super().put_part(number, data)
        finally:
            _SENT.reset(token)


def _received(result: object) -> int:
    """The bytes of a response."""
    if isinstance(result, tuple):
        result = result[0] if result else None
    return len(result) if isinstance(result, (bytes, memoryview)) else 0
