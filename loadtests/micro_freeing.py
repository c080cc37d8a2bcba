"""What unlinking a cached file costs a core at a time: at once, or after the page cache has let go of it by pieces.

    python -m loadtests.micro_freeing [--directory DIR] [--rounds 5] [--megabytes 64]

The processor time of the longest single call is what an event loop waits if it wants that core then: nothing interrupts the
kernel in it. The file is on the disk before. Medians of the rounds; processor time holds on a busy machine, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from app.core.limits import MIB
from app.hot.freeing import PIECE_BYTES


def _timed_ms(call: Callable[[], None]) -> float:
    before = time.thread_time()
    call()
    return (time.thread_time() - before) * 1e3


def measure(path: Path, megabytes: int, piece_bytes: int) -> tuple[float, float]:
    """Of freeing a file, all of it at once with ``piece_bytes`` 0: the longest call and all of them, in ms of a core."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        for number in range(megabytes):
            os.pwrite(file, os.urandom(MIB), number * MIB)
        os.fdatasync(file)
        calls = [
            _timed_ms(partial(os.posix_fadvise, file, position, piece_bytes, os.POSIX_FADV_DONTNEED))
            for position in (range(0, megabytes * MIB, piece_bytes) if piece_bytes else ())
        ]
    finally:
        os.close(file)
    calls.append(_timed_ms(path.unlink))
    return max(calls), sum(calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="where the file is made, in a folder of its own; the system's by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=64)
    arguments = parser.parse_args()
    found: dict[int, list[tuple[float, float]]] = {0: [], PIECE_BYTES: []}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for _ in range(arguments.rounds):
            for piece_bytes, rounds in found.items():
                rounds.append(measure(Path(directory) / "file", arguments.megabytes, piece_bytes))
    for piece_bytes, rounds in found.items():
        longest_ms, all_ms = (statistics.median(column) for column in zip(*rounds, strict=True))
        how = f"{piece_bytes / MIB:g} MiB at a time" if piece_bytes else "at once"
        print(f"{how:<16} longest call {longest_ms:5.2f} ms of a core, all {all_ms:5.2f} ms")


if __name__ == "__main__":
    main()
