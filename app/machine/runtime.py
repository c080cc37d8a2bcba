"""The machine behind the seams: its clock and its threads."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from app.core.units import TimestampMs
from app.machine.garbage import GARBAGE_THRESHOLD, ShortCollections

T = TypeVar("T")

POOL_THREADS: Final = 8
"""Threads for blocking reads, syncs and recompression: they mostly wait for the disk."""
DESCRIPTORS_WANTED: Final = 1 << 20

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """The id of this boot of the machine's kernel; empty where it is not known (Linux alone tells it)."""
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


boot_s: Final = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Seconds since the machine was started. Time that it was suspended is included where the system counts it. This is the system's
function itself, because it is called for every write to a socket."""


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)


class ThreadPool:
    """A ``BlockingPool`` of real threads."""

    def __init__(self, threads: int = POOL_THREADS) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="firn")

    async def run(self, work: Callable[[], T]) -> T:
        """See ``BlockingPool``: the work goes on when the caller is cancelled."""
        running = asyncio.wrap_future(self._executor.submit(work))
        running.add_done_callback(look_at_error)
        try:
            return await asyncio.shield(running)
        finally:
            # An error that the work raised holds this frame, and the future holds the error.
            del running

    def close(self) -> None:
        """Wait for running calls and drop queued ones."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def look_at_error(done: asyncio.Future[Any]) -> None:
    """Read the error of a call whose caller may have gone, since no caller reads it then."""
    if not done.cancelled():
        done.exception()


def settle_memory(collections: ShortCollections | None = None) -> None:
    """Take the objects of start-up away from the garbage collector, and let it look less often at the rest.

    Present objects stay for good but for about a thousand objects, and looking through all of it once takes longer than the
    loop may block. Serving makes few cycles: its objects go as soon as they are not referred to any more. ``collections``: look at
    old objects from now on.
    """
    gc.freeze()
    if collections is None:
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)
    else:
        collections.begin()
    gc.enable()


def raise_descriptor_limit() -> int:
    """Ask for as many open files as the system allows this process. Returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
