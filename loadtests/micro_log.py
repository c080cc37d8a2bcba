"""What an append and a read of the hot log cost, without a network: medians in microseconds per call.

Run it as ``python -m loadtests.micro_log``; it writes to a temporary directory (``--directory`` to choose the disk).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import statistics
import tempfile
import time
import uuid

from app.configs import TopicConfig
from app.core.units import ProducerEpoch, ProducerId, TimestampMs, TopicId
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.machine.files import PosixFileSystem
from app.machine.runtime import ThreadPool
from app.records.batch import check_batches, rewrite_header
from app.records.builder import build_batch

NOW_MS = TimestampMs(1_700_000_000_000)
ROUNDS = 9


class _Clock:
    def now_ms(self) -> TimestampMs:
        return NOW_MS


def _batches(count: int, records: int, value_bytes: int, first_sequence: int, producer_id: int) -> list[bytearray]:
    """Prebuilt produce payloads whose sequences follow one another."""
    value = random.Random(1).randbytes(value_bytes)
    batch = bytearray(build_batch([(NOW_MS, b"key-0001", value, ())] * records))
    built = []
    for number in range(count):
        copy = bytearray(batch)
        if producer_id >= 0:
            sequence = first_sequence + number * records
            rewrite_header(
                copy, 0, producer_id=ProducerId(producer_id), producer_epoch=ProducerEpoch(0), base_sequence=sequence
            )
        built.append(copy)
    return built


def _append_round(log: PartitionLog, payloads: list[bytearray]) -> float:
    views = [memoryview(payload) for payload in payloads]
    started = time.perf_counter()
    for view in views:
        log.append_as_leader(view, now_ms=NOW_MS)
    return (time.perf_counter() - started) / len(views) * 1e6


def _run_round(log: PartitionLog, payloads: list[bytearray], together: int) -> float:
    """The same for so many batches by one write."""
    views = [memoryview(payload) for payload in payloads]
    started = time.perf_counter()
    while views:
        run = [(view, found) for view in views[:together] if (found := log.check_plain(view)) is not None]
        appended = log.append_run(run, now_ms=NOW_MS)
        del views[: len(appended)]
        if len(appended) < len(run):  # the first of a producer, or of a segment
            log.append_as_leader(views.pop(0), now_ms=NOW_MS)
    return (time.perf_counter() - started) / len(payloads) * 1e6


async def measure(directory: str) -> None:
    manager = LogManager(directory, PosixFileSystem(), ThreadPool(4), _Clock(), random.Random(1))
    manager.lock()
    await manager.load_all()
    runner = asyncio.create_task(manager.run())
    log = manager.create("bench", TopicId(uuid.uuid4()), 0, TopicConfig())

    print(f"{'work':58s} {'median µs':>10s}")
    for title, count, records, value_bytes, producer_id in (
        ("append 1 KB, 8 messages, idempotent", 4000, 8, 105, 1),
        ("append 1 KB, 8 messages, not idempotent", 4000, 8, 105, -1),
        ("append 16 KB, 128 messages, idempotent", 1000, 128, 105, 2),
        ("append 1 MB, 1000 messages, idempotent", 24, 1000, 1024, 3),
    ):
        rounds = []
        size = 0
        for number in range(ROUNDS):
            payloads = _batches(count, records, value_bytes, number * count * records, producer_id)
            size = len(payloads[0])
            rounds.append(_append_round(log, payloads))
            await asyncio.sleep(0.05)
        print(f"{title + f' ({size} bytes)':58s} {statistics.median(rounds):10.2f}")
    for named, records, count, producer_id in (("1 KB", 8, 4000, 4), ("16 KB", 128, 1000, 5)):
        number = 0
        for together in (1, 2, 8, 32, 64):
            rounds = []
            for _ in range(ROUNDS):
                payloads = _batches(count, records, 105, number * count * records, producer_id)
                rounds.append(_run_round(log, payloads, together))
                number += 1
                await asyncio.sleep(0.05)
            print(f"{f'append {named}, idempotent, {together} together':58s} {statistics.median(rounds):10.2f}")

    payload = _batches(1, 8, 105, 0, 1)[0]
    view = memoryview(payload)
    started = time.perf_counter()
    for _ in range(50_000):
        check_batches(view, max_batch_bytes=1 << 20)
    print(f"{'of that: check_batches of 1 KB':58s} {(time.perf_counter() - started) / 50_000 * 1e6:10.2f}")
    for title, count, size in (("1 KB", 20_000, 1037), ("1 MB", 24, 1_041_997)):
        block = memoryview(bytearray(random.Random(1).randbytes(size)))
        rounds = []
        for number in range(ROUNDS):
            file = PosixFileSystem().open(f"{directory}/bare-{size}-{number}", create=True)
            started = time.perf_counter()
            for at in range(count):
                file.pwrite(block, at * size)
            rounds.append((time.perf_counter() - started) / count * 1e6)
            file.close()
        print(f"{f'for comparison: the bare write of {title} to new pages':58s} {statistics.median(rounds):10.2f}")

    for title, max_bytes in (("read 16 KB", 16 * 1024), ("read 1 MB", 1024 * 1024)):
        costs: list[float] = []
        offset = misses = 0
        while offset < log.log_end_offset and len(costs) < 4000:
            started = time.perf_counter()
            read = await log.read_when_ready(offset, max_bytes, end_offset=log.high_watermark)
            data = read.try_read_now()
            if data is None:
                misses += 1
            else:
                costs.append((time.perf_counter() - started) * 1e6)
            offset = read.end_offset
        print(f"{f'{title}, one after the other ({misses} page-cache misses)':58s} {statistics.median(costs):10.2f}")

    runner.cancel()
    await asyncio.wait([runner])
    await manager.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", help="where to write; default: a temporary directory")
    parent = parser.parse_args().directory
    directory = tempfile.mkdtemp(dir=parent)
    try:
        asyncio.run(measure(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
