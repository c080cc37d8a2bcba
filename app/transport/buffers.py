"""Pooled memory for bytes on their way between sockets and files.

A new buffer costs a page fault for every 4 KiB when it is first used. That is more than the work on the bytes in it. A used
buffer costs nothing. So buffers are kept, up to a limit, in classes of powers of two.
"""

from __future__ import annotations

import ctypes
from typing import Final

from app.core.limits import KIB, MIB

BUFFER_BYTES_MIN: Final = 32 * KIB
FREE_BYTES_MAX: Final = 64 * MIB
"""Unused buffers kept for the next user, over all sizes: about forty frames of 1 MB."""
FREE_SHARE: Final = 4
"""Unused buffers take at most this part of the memory that arriving frames may claim: they are memory of the process as well."""

_allocate = ctypes.pythonapi.PyByteArray_FromStringAndSize
"""``bytearray(n)`` writes zeros. For a frame of 100 MiB that was only announced, that would stop the loop for half a second."""
_allocate.restype = ctypes.py_object
_allocate.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]


def free_bytes_max(frame_bytes_max: int) -> int:
    """How much memory of unused buffers is kept where arriving frames may claim ``frame_bytes_max``; negative for no limit."""
    return FREE_BYTES_MAX if frame_bytes_max < 0 else min(FREE_BYTES_MAX, frame_bytes_max // FREE_SHARE)


class BufferPool:
    """Writable buffers by size class. Belongs to one event loop.

    A buffer that is given back must have no user: no slice of it may be in a transport, a pool thread or a handler.
    """

    def __init__(self, free_bytes_max: int = FREE_BYTES_MAX) -> None:
        """``free_bytes_max``: of unused buffers that are kept."""
        self._free: dict[int, list[memoryview]] = {}
        self._free_bytes = 0
        self._free_bytes_max = free_bytes_max

    @property
    def free_bytes(self) -> int:
        return self._free_bytes

    def take(self, size_bytes: int) -> memoryview:
        """A writable buffer of at least ``size_bytes``, its content undefined. Pages are touched only when used."""
        capacity = max(BUFFER_BYTES_MIN, 1 << (size_bytes - 1).bit_length())
        free = self._free.get(capacity)
        if free:
            self._free_bytes -= capacity
            return free.pop()
        fresh: bytearray = _allocate(None, capacity)
        return memoryview(fresh)

    def give_back(self, buffer: memoryview) -> None:
        """Return a whole buffer of ``take`` for the next user; dropped if enough are kept already."""
        capacity = len(buffer)
        if self._free_bytes + capacity <= self._free_bytes_max:
            self._free_bytes += capacity
            self._free.setdefault(capacity, []).append(buffer)
