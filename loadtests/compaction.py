"""What compaction costs: rates and memory of the cleaner process, and what producers notice of it.

The group ``compaction`` of ``python -m loadtests`` has both; ``python -m loadtests.compaction`` is the same by itself.
``--only busy`` measures how a log of 1 GB is compacted beside two busy loops a core, the start of the process included.
It writes to a temporary directory (``--directory`` to choose the disk). Rates count every byte and record of the log
once, although compaction reads the new part twice. ``per core`` is by the CPU time of the cleaner process, which is the
figure to trust on a machine that others use too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from app.broker.start.cleaning import CleanerProcess
from app.configs import BrokerConfig, TopicConfig
from app.core.metrics import Registry
from app.core.notices import log_line
from app.core.units import Offset, TopicId
from app.hot.cleaning.cleaner import LogCleaner
from app.hot.manager import LogManager
from app.machine.files import PosixFileSystem
from app.machine.runtime import SystemClock, ThreadPool
from app.records.builder import build_batch
from loadtests.firn_peer import firn_running
from loadtests.measuring import LoadFailed, Report, alternate, finish, make_topic, start_generator
from loadtests.processes import cpu_seconds, memory_mb
from loadtests.system import System

if TYPE_CHECKING:
    from app.hot.log import PartitionLog

MIB = 1 << 20
START_S = 1.5
"""Until a generator has started and warmed up."""
COMPACTION_S_MAX = 120
BESIDE_MEGABYTES, BESIDE_RATE, BESIDE_S, BESIDE_ROUNDS = 600, 1000, 2.0, 3


class Shape(NamedTuple):
    """What a log is made of."""

    title: str
    records_per_batch: int
    value_bytes: int
    keys: int
    codec: int
    log_bytes: int


BUSY_SHAPE = Shape("100 B records, 100 a batch, beside busy loops", 100, 75, 1_000_000, 0, 1000 * 1000 * 1000)
BUSY_LOOPS_PER_CORE = 2
BUSY_S_MAX = 1800
LOOP = f"""import os, time
parent, end = os.getppid(), time.monotonic() + {BUSY_S_MAX}
while time.monotonic() < end and os.getppid() == parent: pass"""

SHAPES = (
    Shape("1 KB records, 16 a batch", 16, 1000, 100_000, 0, 512 * MIB),
    Shape("100 B records, 100 a batch", 100, 75, 500_000, 0, 200 * MIB),
    Shape("150 B records, one a batch", 1, 60, 200_000, 0, 150 * MIB),
    Shape("1 KB records, 16 a batch, zstd", 16, 1000, 100_000, 4, 150 * MIB),
    Shape("100 B records, 3 M keys: several rounds", 100, 75, 3_000_000, 0, 400 * MIB),
)


def fill(log: PartitionLog, shape: Shape) -> int:
    """Append until the log is as large as the shape asks; answers how many records that were."""
    rng = random.Random(1)
    now_ms = time.time_ns() // MIB
    value = rng.randbytes(shape.value_bytes // 2) + bytes(shape.value_bytes // 2)
    records = 0
    while log.size_bytes < shape.log_bytes:
        for _ in range(200):
            rows = [
                (now_ms, b"key-%08d" % rng.randrange(shape.keys), value, ()) for _ in range(shape.records_per_batch)
            ]
            batch = build_batch(rows, codec=shape.codec)
            log.append_as_follower(_placed(batch, log.log_end_offset), now_ms=now_ms)
            records += len(rows)
    return records


def _placed(batch: bytes, offset: Offset) -> memoryview:
    placed = bytearray(batch)
    placed[:8] = offset.to_bytes(8, "big")
    return memoryview(placed)


@contextmanager
def busy_loops(per_core: int) -> Iterator[None]:
    """Keep all cores busy while the block runs, by loops that each have a session of their own."""
    loops = [
        subprocess.Popen([sys.executable, "-c", LOOP], start_new_session=True)
        for _ in range(per_core * len(os.sched_getaffinity(0)))
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


async def rates(directory: Path, shapes: tuple[Shape, ...], *, loops_per_core: int = 0) -> dict[str, Report]:
    """Compact one log of each shape in the cleaner process; what it took, by title. Beside busy loops the start of the process
    counts."""
    found: dict[str, Report] = {}
    fs, pool = PosixFileSystem(), ThreadPool()
    manager = LogManager(str(directory), fs, pool, SystemClock(), random.Random(1))
    lock = manager.lock()
    await manager.load_all()
    running = asyncio.create_task(manager.run())
    process = CleanerProcess(lock.fileno(), str(directory / "kernels"), rng=random.Random(1), log_line=log_line)
    cleaner = LogCleaner(
        manager,
        lambda: process,
        config=BrokerConfig,
        fs=fs,
        pool=pool,
        clock=SystemClock(),
        rng=random.Random(1),
        registry=Registry(),
        log_line=log_line,
    )
    config = TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        remote_storage_enable=False,
        min_cleanable_dirty_ratio=0.0,
        segment_bytes=64 * MIB,
    )
    print(
        f"{'log':42s} {'MB':>5s} {'records':>9s} {'left MB':>8s} {'s':>6s} {'MB/s':>6s} {'M rec/s':>8s} "
        f"{'MB/s per core':>14s} {'M rec/s per core':>17s} {'memory MB':>10s} {'of a core':>9s}"
    )
    for number, shape in enumerate(shapes):
        log = manager.create(f"shape-{number}", TopicId(uuid.uuid4()), 0, config)
        records = fill(log, shape)
        log.roll()
        await log.flush()
        size = log.size_bytes
        with busy_loops(loops_per_core):
            begun_s = time.perf_counter()
            if number == 0:
                await _start(process)
            cpu_s, started = cpu_seconds(process.process_id), time.perf_counter()
            if loops_per_core:
                cpu_s, started = 0.0, begun_s
            highest = asyncio.create_task(_highest_memory(process.process_id))
            while await cleaner.clean_next():
                pass
            seconds, cpu_s = time.perf_counter() - started, cpu_seconds(process.process_id) - cpu_s
            highest.cancel()
        found[shape.title] = report = {
            "mb_per_s": size / 1e6 / seconds,
            "records_per_s": records / seconds,
            "mb_per_s_of_cpu": size / 1e6 / cpu_s,
            "records_per_s_of_cpu": records / cpu_s,
            "memory_mb": await _result(highest),
            "share_of_core": cpu_s / seconds,
        }
        print(
            f"{shape.title:42s} {size / 1e6:5.0f} {records:9,d} {log.size_bytes / 1e6:8.1f} {seconds:6.2f} "
            f"{report['mb_per_s']:6.0f} {report['records_per_s'] / 1e6:8.2f} {report['mb_per_s_of_cpu']:14.0f} "
            f"{report['records_per_s_of_cpu'] / 1e6:17.2f} {report['memory_mb']:10.0f} {report['share_of_core']:9.2f}",
            flush=True,
        )
        manager.delete(log.topic, 0)
    print(f"highest memory of the process since its start: {memory_mb(process.process_id, 'VmHWM'):.0f} MB")
    await process.stop()
    running.cancel()
    await asyncio.wait([running])
    await manager.close()
    pool.close()
    return found


async def _start(process: CleanerProcess) -> None:
    """Bring the process up, so that its start is not counted."""
    started = time.perf_counter()
    await process.start()
    print(f"the cleaner process answers after {time.perf_counter() - started:.1f} s", flush=True)


_highest: dict[asyncio.Task[None], float] = {}


async def _highest_memory(pid: int) -> None:
    task = asyncio.current_task()
    assert task is not None
    while True:
        _highest[task] = max(_highest.get(task, 0.0), memory_mb(pid))
        await asyncio.sleep(0.02)


async def _result(task: asyncio.Task[None]) -> float:
    await asyncio.wait([task])
    return _highest.pop(task)


# --- beside producers -----------------------------------------------------------------------------------------------


def produce_beside(directory: Path, megabytes: int, rate: int, seconds: float, rounds: int) -> dict[str, Report]:
    """A producer of a steady rate, alone and while another topic is compacted, in turns; every time another of that size.

    What filling them left to be written is on the disk before the first: it would be held against whatever comes first.
    """
    with firn_running(directory, settings={"log.cleaner.backoff.ms": "200"}) as firn:
        make_topic(firn, "hot")
        topics = [f"compacted-{number}" for number in range(rounds)]
        for topic in topics:
            # The segment that is written to is not compacted: there must be others.
            segment_bytes = str(min(64 * MIB, megabytes * 1_000_000 // 8))
            make_topic(
                firn, topic, cleanup_policy="compact", segment_bytes=segment_bytes, min_cleanable_dirty_ratio="1"
            )
            _fill(firn, topic, megabytes)
        os.sync()

        def beside() -> Report:
            measuring = produce()
            time.sleep(START_S)
            took_s = _compact(firn, topics.pop(), directory / "data" / "cleaner-offset-checkpoint")
            return finish(measuring) | {"compaction_s": took_s}

        def produce() -> subprocess.Popen[str]:
            return start_generator(firn, "produce", "hot", core=-1, seconds=seconds, rate=rate, pipeline=1)

        found = alternate({"alone": lambda: finish(produce()), "beside": beside}, rounds)
    alone, besides = found["alone"]["p99_ms"], found["beside"]["p99_ms"]
    print(
        f"producer at {rate} requests/s of 1 KB for {seconds:g} s: alone p99 {alone:.2f} ms; beside the compaction of "
        f"{megabytes} MB, which took {found['beside']['compaction_s']:.1f} s, p99 {besides:.2f} ms ({besides / alone:.2f} x)",
        flush=True,
    )
    return found


def _fill(firn: System, topic: str, megabytes: int) -> None:
    producer = Producer({"bootstrap.servers": firn.bootstrap, "linger.ms": 20, "batch.size": 262_144})
    value, rng = os.urandom(1000), random.Random(1)
    for _ in range(megabytes * 1000):
        while True:
            try:
                producer.produce(topic, value, b"key-%08d" % rng.randrange(200_000))
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _compact(firn: System, topic: str, checkpoint: Path) -> float:
    """Have a topic compacted now; how many seconds it took."""
    started = time.perf_counter()
    ready = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[ready])
    admin = AdminClient({"bootstrap.servers": firn.bootstrap})  # must live until the answer is there
    admin.incremental_alter_configs([resource])[resource].result(30)
    while not (checkpoint.exists() and any(_is_clean(line, topic) for line in checkpoint.read_text().splitlines())):
        if time.perf_counter() - started > COMPACTION_S_MAX:
            raise LoadFailed(f"{topic} is not compacted after {COMPACTION_S_MAX} s")
        time.sleep(0.02)
    return time.perf_counter() - started


def _is_clean(line: str, topic: str) -> bool:
    fields = line.split()
    return len(fields) == 3 and fields[0] == topic and int(fields[2]) > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="where to write; default: a temporary directory")
    parser.add_argument("--only", choices=("rates", "producers", "busy"), help="one of the parts")
    parser.add_argument(
        "--log", type=int, choices=range(len(SHAPES)), help="of the rates, those of one log of the table"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    options = parser.parse_args()
    part = 10 if options.quick else 1
    chosen = SHAPES if options.log is None else (SHAPES[options.log],)
    shapes = tuple(shape._replace(log_bytes=shape.log_bytes // part, keys=shape.keys // part) for shape in chosen)
    directory = Path(tempfile.mkdtemp(dir=options.directory))
    try:
        if options.only == "busy":
            busy = BUSY_SHAPE._replace(log_bytes=BUSY_SHAPE.log_bytes // part, keys=BUSY_SHAPE.keys // part)
            asyncio.run(rates(directory / "busy", (busy,), loops_per_core=BUSY_LOOPS_PER_CORE))
        if options.only in (None, "rates"):
            asyncio.run(rates(directory / "rates", shapes))
        if options.only in (None, "producers"):
            produce_beside(directory / "producers", BESIDE_MEGABYTES // part, BESIDE_RATE, BESIDE_S, BESIDE_ROUNDS)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
