"""What of a file is in the page cache: ``cachestat(2)``, which Linux has since 6.5 and Python does not."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

SYS_CACHESTAT: Final = 451
"""The same number on every architecture."""


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


_range = _Range()
_pages = _Pages()
_range_address = ctypes.addressof(_range)
_pages_address = ctypes.addressof(_pages)
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)


def all_pages_cached(descriptor: int, position: int, length: int) -> bool:
    """Whether every page of a range of a file is in the page cache. Pages that are being read from the disk count, too.

    For one thread: the structures of the call are reused. Raises: OSError where the system cannot tell.
    """
    _range.off = position
    _range.len = length
    if _syscall(SYS_CACHESTAT, descriptor, _range_address, _pages_address, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    wanted: int = (position + length - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
    cached: int = _pages.cached
    return cached >= wanted
