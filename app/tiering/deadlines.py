"""Loop time, and work that must not take longer than so much of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from app.errors import StorageUnavailable

T = TypeVar("T")

DELETE_DEADLINE_S: Final = 30.0
"""For deleting objects, one or a page of them."""


def loop_time_s() -> float:
    """The running loop's time: virtual in the simulation."""
    return asyncio.get_running_loop().time()


async def within(seconds: float, what: str, work: Coroutine[Any, Any, T]) -> T:
    """``work``, if it is done in time. Raises: StorageUnavailable if not, and its own."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise StorageUnavailable(f"{what}: no response within {seconds:g} s") from None
