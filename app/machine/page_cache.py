"""Tells which bytes of a file are in the page cache (``cachestat(2)``, since Linux 6.5), and has it written to the disk early
(``sync_file_range(2)``). Python has neither call."""

from __future__ import annotations

import ctypes
import errno
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
_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
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


sync_file_range = getattr(_libc, "sync_file_range", None)
"""Only Linux has it."""
if sync_file_range is not None:
    sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_WAIT_BEFORE: Final = 1
_WRITE: Final = 2
_WAIT_AFTER: Final = 4
_NOT_HERE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ESPIPE})


def start_write_back(descriptor: int, position: int, length: int) -> None:
    """Start to write the dirty pages of a range of a file to the disk. Waits only if the disk's queue is full. Does nothing where
    the system cannot do it. Raises: OSError."""
    _write_back(descriptor, position, length, _WRITE)


def finish_write_back(descriptor: int, position: int, length: int) -> None:
    """The same, and wait until the disk has taken them. Only ``fdatasync`` makes them durable.

    Raises: OSError if it could not, and then a later ``fdatasync`` of the descriptor does not say it again.
    """
    _write_back(descriptor, position, length, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)


def _write_back(descriptor: int, position: int, length: int, flags: int) -> None:
    if sync_file_range is None or not sync_file_range(descriptor, position, length, flags):
        return
    error = ctypes.get_errno()
    if error not in _NOT_HERE:
        raise OSError(error, os.strerror(error))
