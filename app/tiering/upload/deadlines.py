"""Deadlines for work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from app.core.errors import StorageUnavailable

T = TypeVar("T")

DELETE_DEADLINE_S: Final = 30.0
"""For deleting one object or a page of objects."""


async def within(seconds: float, what: str, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``. Raises: StorageUnavailable if it is not done in time, and the errors of ``work``."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise StorageUnavailable(f"{what}: no response within {seconds:g} s.") from None
