"""Waiting for a state: ``until`` inside a loop, ``block_until`` without one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
WAIT_S = 90.0
"""A slow machine needs some of it. A test that needs all of it fails."""


async def until(holds: Callable[[], object], wait_s: float = WAIT_S, *, pause_s: float = 0.005) -> None:
    """Let the loop run until a state holds. Raises TimeoutError after ``wait_s``."""
    async with asyncio.timeout(wait_s):
        while not holds():
            await asyncio.sleep(pause_s)


def block_until(holds: Callable[[], T], awaited: str, wait_s: float = WAIT_S) -> T:
    """Ask a process again until a state holds.

    Returns: what ``holds`` returned.
    Raises: AssertionError after ``wait_s``, with the words of ``awaited``.
    """
    end = time.monotonic() + wait_s
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {wait_s:.0f} s: {awaited}"
        time.sleep(0.02)
    return found
