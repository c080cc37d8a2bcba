"""What a file's pages cost: written anew each time, or over those of a file that is no longer needed.

    python -m loadtests.micro_pages [--directory DIR] [--rounds 5]

The question behind recycled segments and cache files: 4 MiB files are made and removed, a few dozen at a time, or each takes over
the oldest one's file by renaming it. The two ways take turns; CPU seconds per GB, the least of the rounds first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from app.core.limits import MIB

FILE_BYTES = 4 * MIB
FILES = 160
KEPT = 32
PIECE_BYTES = 1 * MIB
QUARTER_BYTES = 256 * MIB
DROP_BYTES = 32 * MIB
TOUCHED_MEGABYTES = 1024


def _write(directory: Path, data: bytes, *, recycle: bool) -> float:
    """CPU seconds per GB."""
    started = time.process_time()
    for number in range(FILES):
        temporary, oldest = directory / f"{number}.tmp", directory / str(number - KEPT)
        if recycle and number >= KEPT:
            oldest.rename(temporary)
        file = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(file, data, 0)
        os.close(file)
        temporary.rename(directory / str(number))
        if not recycle and number >= KEPT:
            oldest.unlink()
    spent = time.process_time() - started
    for number in range(FILES - KEPT, FILES):
        (directory / str(number)).unlink()
    return spent / (FILES * FILE_BYTES) * 1e9


def _grow(path: Path, megabytes: int, *, drop: bool) -> list[float]:
    """CPU seconds per GB of each quarter GB by which a new file grows; it is removed afterwards."""
    data, costs = os.urandom(PIECE_BYTES), list[float]()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for start in range(0, megabytes * MIB, QUARTER_BYTES):
            began = time.process_time()
            for position in range(start, start + QUARTER_BYTES, PIECE_BYTES):
                os.pwrite(file, data, position)
                if drop and position % DROP_BYTES == 0:
                    os.fdatasync(file)
                    os.posix_fadvise(file, 0, max(position - DROP_BYTES, 0), os.POSIX_FADV_DONTNEED)
            costs.append((time.process_time() - began) / QUARTER_BYTES * 1e9)
    finally:
        os.close(file)
        path.unlink()
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=None, help="on which disk (a temporary folder)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=4096, help="by which a file grows")
    options = parser.parse_args()
    data = os.urandom(FILE_BYTES)
    found: dict[str, list[float]] = {"new": [], "recycled": []}
    with tempfile.TemporaryDirectory(prefix="firn-micro-pages-", dir=options.directory) as scratch:
        for _ in range(options.rounds + 1):
            for name, costs in found.items():
                costs.append(_write(Path(scratch), data, recycle=name == "recycled"))
        path = Path(scratch) / "growing"
        growing = {
            "as they come": _grow(path, options.megabytes, drop=False),
            "touched before": _grow(path, TOUCHED_MEGABYTES, drop=False),
            "dropped behind": _grow(path, options.megabytes, drop=True),
        }
    for name, costs in found.items():
        print(f"{name:<14} least {min(costs[1:]):.2f} s CPU per GB, median {statistics.median(costs[1:]):.2f}")
    for name, costs in growing.items():
        print(f"{name:<14} {' '.join(f'{cost:.2f}' for cost in costs)} s CPU per GB")


if __name__ == "__main__":
    main()
