"""What a GB appended to a new file costs, by ways to get its pages: CPU of the appends and of their sync.

    python -m loadtests.micro_new_pages [--directory DIR] [--mb 512] [--rounds 5] [--request-bytes 1048576] [--fresh]

Each way appends requests to a new file from the same buffer and syncs every 32 MiB, as a log does. The ways take turns, and the
median of the rounds is printed. Each file is removed at once, so the next gets its pages, which were just used. With ``--fresh``
all files stay until the end, so each gets memory that was not used for long; a host may have taken it back. CPU of the kernel's own
threads is not counted, and ``RWF_DONTCACHE`` leaves writing to them.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from app.hot.durability import WRITE_BACK_BYTES

RWF_DONTCACHE = 0x80
FALLOC_FL_KEEP_SIZE = 1
AHEAD_BYTES = 64 << 20

Append = Callable[[int, memoryview, int], object]
_libc = ctypes.CDLL(None, use_errno=True)


def _fallocate(file: int, mode: int, start: int, length: int) -> None:
    if _libc.fallocate(file, mode, ctypes.c_long(start), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def _ahead(mode: int) -> Append:
    def append(file: int, piece: memoryview, position: int) -> None:
        if position % AHEAD_BYTES == 0:
            _fallocate(file, mode, position, AHEAD_BYTES)
        os.pwrite(file, piece, position)

    return append


def _mapped(file: int, piece: memoryview, position: int) -> None:
    """The page cache as the receive buffer: what ``recv_into`` would do, a copy into mapped pages."""
    if position % AHEAD_BYTES == 0:
        os.ftruncate(file, position + AHEAD_BYTES)
        _maps[file] = mmap.mmap(file, AHEAD_BYTES, offset=position)
    start = position % AHEAD_BYTES
    _maps[file][start : start + len(piece)] = piece


_maps: dict[int, mmap.mmap] = {}

WAYS: dict[str, tuple[int, Append]] = {
    "pwrite": (0, os.pwrite),
    "pwrite, fallocate ahead": (0, _ahead(0)),
    "pwrite, fallocate ahead, KEEP_SIZE": (0, _ahead(FALLOC_FL_KEEP_SIZE)),
    "pwritev2, RWF_DONTCACHE": (0, lambda file, piece, position: os.pwritev(file, [piece], position, RWF_DONTCACHE)),
    "O_DIRECT": (os.O_DIRECT, os.pwrite),
    "mapped file": (0, _mapped),
}


def measure(path: Path, way: str, total_bytes: int, piece: memoryview, *, keep: bool) -> tuple[float, float, float]:
    """CPU of the appends and of the syncs, in seconds per GB, and the GB per second."""
    flags, append = WAYS[way]
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | flags)
    appends_s = syncs_s = 0.0
    started = time.perf_counter()
    try:
        unsynced = 0
        for position in range(0, total_bytes, len(piece)):
            before = time.process_time()
            append(file, piece, position)
            appends_s += time.process_time() - before
            if position - unsynced >= WRITE_BACK_BYTES:
                unsynced = position
                before = time.process_time()
                os.fdatasync(file)
                syncs_s += time.process_time() - before
        gb = total_bytes / 1e9
        return appends_s / gb, syncs_s / gb, gb / (time.perf_counter() - started)
    finally:
        if file in _maps:
            _maps.pop(file).close()
        os.close(file)
        if not keep:
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--request-bytes", type=int, default=1 << 20)
    parser.add_argument("--fresh", action="store_true")
    arguments = parser.parse_args()
    buffer = mmap.mmap(-1, arguments.request_bytes)  # O_DIRECT wants whole pages
    buffer.write(os.urandom(arguments.request_bytes))
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for number in range(arguments.rounds):
            for place, (way, rounds) in enumerate(found.items()):
                path = Path(directory) / f"{number}-{place}"
                try:
                    total_bytes = arguments.mb << 20
                    rounds.append(measure(path, way, total_bytes, memoryview(buffer), keep=arguments.fresh))
                except OSError as error:
                    print(f"{way}: {error}", file=sys.stderr)
    for way, rounds in found.items():
        if rounds:
            appends, syncs, rate = (statistics.median(column) for column in zip(*rounds, strict=True))
            low, high = min(r[0] for r in rounds), max(r[0] for r in rounds)
            print(
                f"{way:36} appends {appends:5.2f} ({low:.2f} to {high:.2f}) syncs {syncs:5.2f} CPU s/GB, {rate:5.2f} GB/s"
            )


if __name__ == "__main__":
    main()
