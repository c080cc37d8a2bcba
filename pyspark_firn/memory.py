"""Freed chunks are kept for the next one: a reader takes as much as it frees, and new pages cost more than decoding."""

from __future__ import annotations

from typing import Final

from app.core.limits import MIB
from app.machine import allocator

KEPT_BYTES_MAX: Final = 48 * MIB
"""Bytes that a task works on at a time."""


def keep_freed_memory() -> bool:
    """As ``allocator.keep_freed_memory``, for a task."""
    return allocator.keep_freed_memory(KEPT_BYTES_MAX)
