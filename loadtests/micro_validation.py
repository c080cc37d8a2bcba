"""What ``firn.produce.validation=records`` costs beside ``batch``: CPU time of one append, and of the check of the records alone.

    python -m loadtests.micro_validation

Both settings take turns in one run; each figure is a median. ``records`` does its check where a compacted topic does, on a pool
thread while the connection waits; here it is done in line, so the figures are CPU and not latency.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from app.configs import ProduceValidation, TopicConfig
from app.core.units import PartitionIndex, TimestampMs, TopicId
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.machine.files import PosixFileSystem
from app.records.batch import parse_header
from app.records.builder import build_batch
from app.records.validation import check_produced

T = TypeVar("T")
NOW_MS = TimestampMs(1_700_000_000_000)
ROUNDS = 15
APPENDS = 60
SHAPES = (
    ("1 record of 1 KB", 1, 1000, 0),
    ("10 of 100 B, 1 KB", 10, 100, 0),
    ("150 of 100 B, 16 KB", 150, 100, 0),
    ("16 of 1 KB, 16 KB", 16, 1000, 0),
    ("150 of 100 B, zstd", 150, 100, 4),
    ("8,000 of 100 B, 1 MB", 8000, 100, 0),
    ("8,000 of 100 B, zstd", 8000, 100, 4),
)
"""What, records, bytes of a value, codec."""


class _Clock:
    def now_ms(self) -> TimestampMs:
        return NOW_MS


class _Pool:
    async def run(self, work: Callable[[], T]) -> T:
        return work()


def _values(count: int, size: int) -> list[bytes]:
    words = [random.Random(word).randbytes(4).hex().encode() for word in range(200)]
    rng = random.Random(1)
    return [b" ".join(rng.choices(words, k=size // 9 + 1))[:size] for _ in range(count)]


def _cpu_us(work: Callable[[], object], count: int) -> float:
    began = time.process_time_ns()
    for _ in range(count):
        work()
    return (time.process_time_ns() - began) / 1000 / count


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        manager = LogManager(folder, PosixFileSystem(), _Pool(), _Clock(), random.Random(1))
        logs = {
            validation: manager.create(
                validation.value,
                TopicId(uuid.UUID(int=number)),
                PartitionIndex(0),
                TopicConfig(firn_produce_validation=validation, segment_bytes=1 << 30),
            )
            for number, validation in enumerate(ProduceValidation, 1)
        }
        print(f"{'batch':<24}{'batch µs':>10}{'records µs':>12}{'ratio':>8}{'check µs':>10}{'ns a record':>13}")
        for name, count, size, codec in SHAPES:
            batch = build_batch([(NOW_MS, b"key-0001", value, ()) for value in _values(count, size)], codec=codec)
            appends = max(3, APPENDS if count < 1000 else 4)
            found: dict[object, list[float]] = {validation: [] for validation in ProduceValidation}
            checks = []
            for _ in range(ROUNDS):
                for validation, log in logs.items():
                    found[validation].append(_append_us(log, batch, appends))
                check = partial(check_produced, batch, keys_needed=False, timestamps=(0, 2**62))
                checks.append(_cpu_us(check, appends))
            plain, checked = (statistics.median(found[validation]) for validation in ProduceValidation)
            alone = statistics.median(checks)
            assert parse_header(batch).record_count == count
            print(
                f"{name:<24}{plain:>10.1f}{checked:>12.1f}{checked / plain:>8.1f}{alone:>10.1f}{alone * 1000 / count:>13.0f}"
            )


def _append_us(log: PartitionLog, batch: bytes, count: int) -> float:
    copies = iter([memoryview(bytearray(batch)) for _ in range(count)])
    return _cpu_us(lambda: log.append_as_leader(next(copies), now_ms=NOW_MS), count)


if __name__ == "__main__":
    main()
