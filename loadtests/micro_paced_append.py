"""How late appends at a fixed rate are without any broker: the machine's own share of a producer's latency at half load.

    python -m loadtests.micro_paced_append [--rate 12000] [--seconds 6] [--rounds 3] [--directory DIR] [--cpu 0]

One thread appends 16 KB at a rate, each with one ``pwrite``, and another syncs every 32 MiB in steps, as a log does. An append
counts from the moment when it was due. ``new`` appends to a new file, so every page is new, as in a log. ``cached`` overwrites a
file whose pages are in the page cache, and is otherwise the same. Both take turns. Printed are the lateness, the longest
``pwrite``, and the CPU of all threads per GB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from app.hot.durability import WRITE_BACK_BYTES
from app.hot.syncing import WRITE_BACK_STEP_BYTES
from app.machine.page_cache import finish_write_back

APPEND_BYTES = 16_384
CACHED_BYTES = 512 << 20
"""Length of the file that ``cached`` overwrites again and again."""


def _sync(file: int, begin: int, end: int) -> None:
    for position in range(begin, end - WRITE_BACK_STEP_BYTES, WRITE_BACK_STEP_BYTES):
        finish_write_back(file, position, WRITE_BACK_STEP_BYTES)
    os.fdatasync(file)


def measure(directory: Path, kind: str, rate: float, seconds: float) -> dict[str, float]:
    """Lateness of the appends in ms, and the CPU of this process in seconds per GB."""
    piece = os.urandom(APPEND_BYTES)
    path = directory / "appended"
    late: list[float] = []
    slowest_call_s = 0.0
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    try:
        if kind == "cached":
            for position in range(0, CACHED_BYTES, APPEND_BYTES):
                os.pwrite(file, piece, position)
            os.fsync(file)
        syncing: threading.Thread | None = None
        unsynced = written = 0
        cpu_s, started = time.process_time(), time.perf_counter()
        for number in range(int(rate * seconds)):
            due = started + number / rate
            now = time.perf_counter()
            if now < due:
                time.sleep(due - now)
            position = number * APPEND_BYTES % (CACHED_BYTES if kind == "cached" else 1 << 60)
            before = time.perf_counter()
            os.pwrite(file, piece, position)
            after = time.perf_counter()
            slowest_call_s = max(slowest_call_s, after - before)
            late.append(after - due)
            written = position + APPEND_BYTES
            if written < unsynced:
                unsynced = 0
            if written - unsynced >= WRITE_BACK_BYTES and (syncing is None or not syncing.is_alive()):
                syncing = threading.Thread(target=_sync, args=(file, unsynced, written))
                unsynced = written
                syncing.start()
        if syncing is not None:
            syncing.join()
        cpu_s = time.process_time() - cpu_s
    finally:
        os.close(file)
        path.unlink()
    late.sort()
    return {
        "p50_ms": late[len(late) // 2] * 1e3,
        "p99_ms": late[len(late) * 99 // 100] * 1e3,
        "p999_ms": late[len(late) * 999 // 1000] * 1e3,
        "max_ms": late[-1] * 1e3,
        "slowest_call_ms": slowest_call_s * 1e3,
        "cpu_s_per_gb": cpu_s * 1e9 / (len(late) * APPEND_BYTES),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=12_000)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--cpu", type=int, default=-1, help="the core to run on; -1 is any")
    arguments = parser.parse_args()
    if arguments.cpu >= 0:
        os.sched_setaffinity(0, {arguments.cpu})
    found: dict[str, list[dict[str, float]]] = {"new": [], "cached": []}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for _ in range(arguments.rounds):
            for kind, rounds in found.items():
                rounds.append(measure(Path(directory), kind, arguments.rate, arguments.seconds))
    for kind, rounds in found.items():
        for name in rounds[0]:
            values = [each[name] for each in rounds]
            spread = f"({min(values):.2f} to {max(values):.2f})"
            print(f"{kind:7} {name:16} {statistics.median(values):9.2f} {spread}", flush=True)


if __name__ == "__main__":
    main()
