"""What the hot tier's tests share: a clock by hand, a pool without threads, batches, and a manager over a simulated disk."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from app.configs import TopicConfig
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicId
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.machine.files import FileSystem
from app.records.batch import BatchHeader, iter_headers
from app.records.builder import build_batch
from tests.support.simfs import SimFileSystem

T = TypeVar("T")

NOW = 1_700_000_000_000
TOPIC_ID = TopicId(uuid.UUID(int=7))
DATA = "/data"


class ManualClock:
    def __init__(self, now_ms: int = NOW) -> None:
        self.now = now_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.now)


class InlinePool:
    """Does the work at once, but only after the loop has gone round: whoever relies on no await in between is found out."""

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()


class GatedPool(InlinePool):
    """Holds all work back until ``gate`` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return work()


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW,
    step_ms: int = 0,
    value: bytes = b"value",
    key: bytes | None = None,
    **fields: object,
) -> memoryview:
    """A produced batch, writable."""
    records = [(TimestampMs(timestamp + number * step_ms), key, value, ()) for number in range(count)]
    return memoryview(bytearray(build_batch(records, **fields)))  # type: ignore[arg-type]


def idempotent(sequence: int, count: int = 1, *, producer_id: int = 1, epoch: int = 0, **fields: object) -> memoryview:
    return batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)


def manager_over(
    fs: FileSystem, *, data_dir: str = DATA, clock: ManualClock | None = None, pool: object = None, **options: object
) -> LogManager:
    return LogManager(
        data_dir,
        fs,
        pool if pool is not None else InlinePool(),  # type: ignore[arg-type]
        clock if clock is not None else ManualClock(),
        random.Random(5),
        **options,  # type: ignore[arg-type]
    )


def sim(seed: int = 1, **options: int) -> SimFileSystem:
    fs = SimFileSystem(random.Random(seed), **options)
    fs.make_dirs(DATA)
    fs.fsync_dir("/")
    return fs


def new_log(manager: LogManager, topic: str = "t", partition: int = 0, **settings: object) -> PartitionLog:
    return manager.create(topic, TOPIC_ID, PartitionIndex(partition), TopicConfig(**settings))  # type: ignore[arg-type]


def found_or_new(manager: LogManager, **settings: object) -> PartitionLog:
    """The log of ``t-0`` as a start of the broker finds it, or creates it again if it had no record."""
    log = manager.get("t", 0)
    return log if log is not None else new_log(manager, **settings)


@asynccontextmanager
async def running(manager: LogManager) -> AsyncIterator[LogManager]:
    """The manager with its background work."""
    task = asyncio.create_task(manager.run())
    try:
        yield manager
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]


async def read_all(log: PartitionLog, start: int | None = None, *, max_bytes: int = 1 << 20) -> bytes:
    """Every byte that a consumer would get, fetch by fetch."""
    offset = log.local_log_start_offset if start is None else Offset(start)
    parts = []
    while offset < log.high_watermark:
        read = await log.read_when_ready(offset, max_bytes, end_offset=log.high_watermark)
        data = read.try_read_now()
        parts.append(bytes(data if data is not None else await read.read_bytes()))
        assert read.end_offset > offset
        offset = read.end_offset
    return b"".join(parts)


def headers(data: bytes) -> list[BatchHeader]:
    return [header for _, header in iter_headers(data)]
