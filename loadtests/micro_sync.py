"""What an append waits while what was appended before it is synced: all at once, or written back by steps first.

    python -m loadtests.micro_sync [--directory DIR] [--rounds 5] [--rate 1500]

One thread appends 16 KB at a rate to a new file, another syncs what has gathered every 32 MiB, as a log does. Each size of a step
takes its turn; of the appends of a round that took place during a sync the worst, and how many took more than a millisecond, the
medians of the rounds. What the file system holds up shows best on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from app.core.limits import MIB
from app.hot.durability import WRITE_BACK_BYTES
from app.machine.page_cache import finish_write_back

APPEND_BYTES = 16_384
STEPS = (0, 16 * MIB, 8 * MIB, 4 * MIB, 1 * MIB)
"""0: at once."""
SYNCS = 4
"""In a round."""
SLOW_S = 0.001


def _sync(file: int, begin: int, end: int, step_bytes: int) -> None:
    if step_bytes:
        for position in range(begin, end - step_bytes, step_bytes):
            finish_write_back(file, position, step_bytes)
    os.fdatasync(file)


def measure(directory: Path, step_bytes: int, rate: float) -> tuple[float, int, float]:
    """The worst append while a sync ran in ms, how many of those were slow, the median time of a sync in ms."""
    path = directory / "appended"
    piece = os.urandom(APPEND_BYTES)
    during: list[float] = []
    syncs: list[float] = []
    syncing: threading.Thread | None = None
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        started, position, synced = time.perf_counter(), 0, 0
        sync_began = 0.0
        while len(syncs) < SYNCS:
            due = started + position / APPEND_BYTES / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            before = time.perf_counter()
            os.pwrite(file, piece, position)
            if syncing is not None:
                during.append(time.perf_counter() - before)
            position += APPEND_BYTES
            if syncing is not None and not syncing.is_alive():
                syncs.append(time.perf_counter() - sync_began)
                syncing = None
            if syncing is None and position - synced >= WRITE_BACK_BYTES:
                syncing = threading.Thread(target=_sync, args=(file, synced, position, step_bytes))
                synced, sync_began = position, time.perf_counter()
                syncing.start()
        if syncing is not None:
            syncing.join()
    finally:
        os.close(file)
        path.unlink()
    return max(during) * 1e3, sum(each > SLOW_S for each in during), statistics.median(syncs) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--directory", type=Path, help="where the file is made, in a folder of its own; the system's by default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1500, help="appends a second")
    arguments = parser.parse_args()
    found: dict[int, list[tuple[float, int, float]]] = {step_bytes: [] for step_bytes in STEPS}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for _ in range(arguments.rounds):
            for step_bytes, rounds in found.items():
                rounds.append(measure(Path(directory), step_bytes, arguments.rate))
    for step_bytes, rounds in found.items():
        worst_ms, slow, sync_ms = (statistics.median(column) for column in zip(*rounds, strict=True))
        spread = f"{min(one[0] for one in rounds):.1f} to {max(one[0] for one in rounds):.1f}"
        how = f"{step_bytes / MIB:g} MiB at a time" if step_bytes else "at once"
        slow_text = f"{slow:3.0f} over 1 ms in {SYNCS} syncs"
        print(f"{how:<20} worst append {worst_ms:6.1f} ms ({spread}), {slow_text}, a sync takes {sync_ms:.0f} ms")


if __name__ == "__main__":
    main()
