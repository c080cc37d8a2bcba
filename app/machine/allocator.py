"""Keeping freed memory for the next use.

glibc returns buffers of some MiB to the kernel as soon as they are freed and asks for new pages, zeroed one by one at their first
touch, for the next buffer: that costs more than the work on it. A process that frees as much as it takes loses nothing by
keeping it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Final

from app.core.limits import MIB

MMAP_THRESHOLD_BYTES: Final = 32 * MIB
"""Buffers below that come from the heap; it is the most that glibc allows."""
ARENAS_MAX: Final = 1
"""Heaps of the process: with one for each thread every one of them would keep so much."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


@functools.cache
def keep_freed_memory(bytes_max: int) -> bool:
    """Tell this process's allocator to keep up to ``bytes_max`` of free memory at the end of its heap.

    Answers whether it understood. Does nothing where it is not glibc's.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    wanted = (
        (_M_ARENA_MAX, ARENAS_MAX),
        (_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, bytes_max),
    )
    return all(bool(set_option(name, value)) for name, value in wanted)
