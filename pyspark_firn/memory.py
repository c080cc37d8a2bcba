"""Keeping freed memory for the next chunk.

glibc returns buffers of some MiB to the kernel as soon as they are freed and asks for new pages, zeroed one by one, for the next
chunk: that costs more than decoding it. A reader frees as much as it takes, so keeping it costs nothing.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Final

from app.limits import MIB

MMAP_THRESHOLD_BYTES: Final = 32 * MIB
"""Buffers below that come from the heap; it is the most that glibc allows."""
TRIM_THRESHOLD_BYTES: Final = 48 * MIB
"""Free memory at the heap's end that is kept: what a task has in hand at a time."""
ARENAS_MAX: Final = 1
"""Heaps of the process: with one for each reading thread every one of them would keep that much."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


@functools.cache
def keep_freed_memory() -> bool:
    """Tell this process's allocator to keep what is freed; whether it understood. Does nothing where it is not glibc's."""
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    wanted = (
        (_M_ARENA_MAX, ARENAS_MAX),
        (_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
    )
    return all(bool(set_option(name, value)) for name, value in wanted)
