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

from app.limits import MIB

FILE_BYTES = 4 * MIB
FILES = 160
KEPT = 32


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=None, help="on which disk (a temporary folder)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    data = os.urandom(FILE_BYTES)
    found: dict[str, list[float]] = {"new": [], "recycled": []}
    with tempfile.TemporaryDirectory(prefix="firn-micro-pages-", dir=options.directory) as scratch:
        for _ in range(options.rounds + 1):
            for name, costs in found.items():
                costs.append(_write(Path(scratch), data, recycle=name == "recycled"))
    for name, costs in found.items():
        print(f"{name:<9} least {min(costs[1:]):.2f} s CPU per GB, median {statistics.median(costs[1:]):.2f}")


if __name__ == "__main__":
    main()
