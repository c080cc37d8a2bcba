"""What opening many logs after a kill costs, without the rest of a start: CPU and time of each round.

Run it as ``python -m loadtests.micro_recovery``; it writes to a temporary directory (``--directory`` to choose the disk). Each log
has a few batches that were not synced. Every round opens a fresh copy, whose pages are in the page cache.
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import tempfile
import time
import uuid
from pathlib import Path

import uvloop

from app.configs import TopicConfig
from app.core.units import PartitionIndex, TopicId
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.machine.files import PosixFileSystem
from app.machine.runtime import SystemClock, ThreadPool, raise_descriptor_limit
from app.records.builder import build_batch

BATCHES = 10
TOPIC_ID = TopicId(uuid.UUID(int=7))


def _manager(directory: Path, pool: ThreadPool) -> LogManager:
    descriptors_max = raise_descriptor_limit() // 2
    return LogManager(
        str(directory), PosixFileSystem(), pool, SystemClock(), random.Random(1), descriptors_max=descriptors_max
    )


def _append(log: PartitionLog) -> None:
    now_ms = SystemClock().now_ms()
    log.append_as_leader(memoryview(bytearray(build_batch([(now_ms, None, b"value", ())]))), now_ms=now_ms)


async def _leave_unclosed(directory: Path, logs: int) -> None:
    pool = ThreadPool()
    manager = _manager(directory, pool)
    await manager.load_all()
    for number in range(logs):
        log = manager.create("t", TOPIC_ID, PartitionIndex(number), TopicConfig())
        for _ in range(BATCHES):
            _append(log)
    pool.close()


async def _open(directory: Path) -> tuple[float, float]:
    """CPU and time in seconds."""
    pool = ThreadPool()
    manager = _manager(directory, pool)
    gc.disable()
    cpu_s, started_s = time.process_time(), time.perf_counter()
    report = await manager.load_all()
    taken = time.process_time() - cpu_s, time.perf_counter() - started_s
    gc.enable()
    assert report.scanned == report.logs, report
    assert not report.problems, report
    pool.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        killed, copy = Path(scratch, "killed"), Path(scratch, "copy")
        uvloop.run(_leave_unclosed(killed, arguments.logs))
        for _ in range(arguments.rounds):
            shutil.copytree(killed, copy)
            cpu_s, taken_s = uvloop.run(_open(copy))
            print(f"{arguments.logs:,} logs: {cpu_s:.2f} s CPU, {taken_s:.2f} s", flush=True)
            shutil.rmtree(copy)


if __name__ == "__main__":
    main()
