"""What the cleaner's tests share: logs to clean, a naive model of what must be left, a cleaner over a simulated disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from app.configs import BrokerConfig, TopicConfig
from app.core.metrics import Registry
from app.hot.cleaning.cleaner import LogCleaner
from app.hot.cleaning.plain import PlainEngine
from app.hot.cleaning.work import CleanerWork, InlineCleanerWork
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.machine.files import FileSystem
from app.records.batch import iter_headers
from app.records.builder import build_batch
from app.records.record import Record, iter_records
from tests.hot.helpers import (
    DATA,
    NOW,
    InlinePool,
    ManualClock,
    manager_over,
    new_log,
    read_all,
)
from tests.support.simfs import SimFileSystem

COMPACT = {
    "cleanup_policy": frozenset({"compact"}),
    "remote_storage_enable": False,
    "min_cleanable_dirty_ratio": 0.0,
    "segment_bytes": 1500,
    "index_interval_bytes": 200,
}


def cleaner_over(
    manager: LogManager,
    fs: FileSystem,
    *,
    clock: ManualClock,
    work: CleanerWork | None = None,
    new_work: Callable[[], CleanerWork] | None = None,
    pool: object = None,
    said: Callable[[str], None] = lambda text: None,
    registry: Registry | None = None,
    **settings: object,
) -> LogCleaner:
    pool = pool if pool is not None else InlinePool()
    config = BrokerConfig(**settings)  # type: ignore[arg-type]
    return LogCleaner(
        manager,
        new_work or (lambda: work if work is not None else InlineCleanerWork(fs, pool, PlainEngine)),  # type: ignore[arg-type]
        config=lambda: config,
        fs=fs,
        pool=pool,  # type: ignore[arg-type]
        clock=clock,
        rng=random.Random(3),
        registry=registry if registry is not None else Registry(),
        log_line=said,
    )


class Seen(NamedTuple):
    """A record as a reader meets it, and what its batch says of it."""

    record: Record
    producer_id: int
    control: bool
    transactional: bool


def records_of(data: bytes) -> list[Seen]:
    return [
        Seen(record, header.producer_id, header.is_control, header.is_transactional)
        for position, header in iter_headers(data)
        for record in iter_records(memoryview(data)[position : position + header.size_bytes])
    ]


async def seen_in(log: PartitionLog) -> list[Seen]:
    return records_of(await read_all(log))


async def committed(log: PartitionLog, seen: list[Seen]) -> list[Record]:
    """What a reader at read_committed is given: no control records, none of the aborted transactions of the log."""
    aborted = await log.aborted_transactions_when_ready(log.log_start_offset, log.log_end_offset)
    return [
        entry.record
        for entry in seen
        if not entry.control
        and not any(
            entry.transactional
            and entry.producer_id == one.producer_id
            and one.first_offset <= entry.record.offset <= one.last_offset
            for one in aborted
        )
    ]


def newest(records: list[Record]) -> dict[bytes, bytes | None]:
    """A table made by reading a log from its start: the last value of each key."""
    table: dict[bytes, bytes | None] = {}
    for record in records:
        assert record.key is not None
        table[record.key] = record.value
    return {key: value for key, value in table.items() if value is not None}


PATH = f"{DATA}/t-0"


def keyed(*rows: tuple[bytes, bytes | None], timestamp: int = NOW, **fields: object) -> memoryview:
    records = [(timestamp, key, value, ()) for key, value in rows]
    return memoryview(bytearray(build_batch(records, **fields)))  # type: ignore[arg-type]


async def opened(fs: SimFileSystem, clock: ManualClock, **settings: object) -> tuple[LogManager, PartitionLog]:
    manager = manager_over(fs, clock=clock)
    await manager.load_all()
    log = manager.get("t", 0)
    config = {**COMPACT, **settings}
    if log is None:
        log = new_log(manager, **config)
    else:
        log.update_config(TopicConfig(**config))  # type: ignore[arg-type]
    return manager, log


async def roll(log: PartitionLog) -> None:
    log.roll()
    await log.flush()


async def offsets_in(log: PartitionLog) -> list[int]:
    return [entry.record.offset for entry in await seen_in(log)]
