"""The cleaner process: compaction beside the broker, started when there is something to compact.

    python -m app.hot.cleaning.process --socket FD --cache DIRECTORY

It inherits one end of a socket pair (``FD``) and serves ``clean.*`` calls, one job at a time. It ends at once when the broker
ends or the socket reaches end-of-file. Unfinished files end in ``.cleaned``, and the next process removes them.

numba compiles the kernels once for an installation. This takes some ten seconds and a lot of memory. Then the process restarts
itself and loads the kernels from numba's cache: beside the package, or in ``DIRECTORY`` if the package's folder is not
writable. LLVM is not needed after that, and releases the memory of its code.

Tests: ``tests/broker/test_cleaning.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from app.core.notices import follow_format
from app.core.units import Buffer
from app.hot.cleaning.work import InlineCleanerWork, cleaner_handlers
from app.machine.files import PosixFileSystem
from app.machine.interpreter import python_command
from app.machine.priority import give_way
from app.machine.rpc import RpcServer
from app.machine.terminating import end_with_parent

T = TypeVar("T")

NICENESS: Final = 4
"""Compaction is not urgent, and must get on all the same. A session of this niceness has 41 % of the weight of another: a sixth of
a core beside two busy sessions a core, and an eighth with three. With a niceness of 10 it had a twentieth. Where a core is idle,
the niceness changes nothing."""
WAIT_S_MIN: Final = 0.01
"""The I/O limit collects shorter waits into one wait."""
_MADV_DONTNEED: Final = 4
_COMPILED: Final = "FIRN_CLEANER_COMPILED"


class Throttle:
    """Waits so that at most a given number of bytes pass in a second. For one thread."""

    def __init__(
        self,
        bytes_per_second_max: float,
        now_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_second_max = bytes_per_second_max
        self._now_s = now_s
        self._wait = wait
        self._free_at_s = now_s()

    def __call__(self, size_bytes: int) -> None:
        now_s = self._now_s()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._bytes_per_second_max
        if self._free_at_s - now_s >= WAIT_S_MIN:
            self._wait(self._free_at_s - now_s)


class _OneThread:
    """A ``BlockingPool`` of one thread."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="cleaner")

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.wrap_future(self._executor.submit(work)))


async def serve(sock: socket.socket, work: InlineCleanerWork) -> None:
    """Serve calls over ``sock`` until end-of-file."""

    async def ping(asked: Buffer) -> Buffer:
        return asked

    await RpcServer({**cleaner_handlers(work), "process.ping": ping}).serve(sock)


def _give_back_memory() -> None:
    """Drop memory that only the start needed: garbage, and pages of libraries' code and constants, above all LLVM's. If a page is
    needed again, it comes from the page cache."""
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, end in untouched_mappings(Path("/proc/self/smaps").read_text()):
        libc.madvise(start, end - start, _MADV_DONTNEED)


def _bring_up_compiler() -> None:
    """Load LLVM, then numba, then compile for the first time. After each step the memory that only this step needed is released.
    Otherwise the start would need more memory than the work."""
    import llvmlite.binding  # noqa: F401

    _give_back_memory()
    from numba.core.registry import cpu_target
    from numba.core.runtime.nrt import rtsys

    _give_back_memory()
    rtsys.initialize(cpu_target.target_context)
    _give_back_memory()


def untouched_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Address ranges in ``/proc/…/smaps`` whose pages all equal a file: they are read only, and were never written. (The loader
    writes addresses into some constants of a library before it makes them read only.)"""
    place: tuple[int, int] | None = None
    for line in smaps.splitlines():
        fields = line.split(maxsplit=5)
        if not fields[0].endswith(":"):
            start, end = (int(bound, 16) for bound in fields[0].split("-"))
            of_file = len(fields) == 6 and fields[5].startswith("/")
            place = (start, end) if of_file and fields[1] in ("r-xp", "r--p") else None
        elif fields[0] == "Anonymous:" and place is not None and fields[1] == "0":
            yield place


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process. Never returns normally."""
    parser = argparse.ArgumentParser(
        prog="firn cleaner process", description="The broker starts this process. Do not start it by hand."
    )
    parser.add_argument("--socket", required=True, type=int, help="inherited descriptor of a Unix stream socket")
    parser.add_argument(
        "--cache", required=True, help="directory for compiled kernels if the package's cannot be written"
    )
    options = parser.parse_args(arguments)
    end_with_parent(options.socket)
    follow_format()
    # Ctrl-C in a terminal reaches the whole group; only the end of the socket ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _COMPILED not in os.environ:
        give_way(NICENESS)
    if not os.access(Path(__file__).parent, os.W_OK):
        os.environ.setdefault("NUMBA_CACHE_DIR", options.cache)
    _bring_up_compiler()
    from app.hot.cleaning.compiled import CompiledEngine, compiled_anew, warm_up

    engine = CompiledEngine()
    warm_up(engine)
    if compiled_anew() and _COMPILED not in os.environ:
        os.environ[_COMPILED] = "1"
        again = ["--socket", str(options.socket), "--cache", options.cache]
        command = python_command("app.hot.cleaning.process", *again)
        os.execv(command[0], command)
    _give_back_memory()
    work = InlineCleanerWork(PosixFileSystem(), _OneThread(), lambda: engine, Throttle)
    asyncio.run(_until_closed(socket.socket(fileno=options.socket), work))


async def _until_closed(sock: socket.socket, work: InlineCleanerWork) -> None:
    await serve(sock, work)
    os._exit(0)  # at once: a job may still be on its thread


if __name__ == "__main__":
    main()
