"""A coordinator of a ledger over a log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from app.configs import Durability, TopicConfig
from app.coordinator.partition import ReplayedBatch
from app.coordinator.shell import Bulk, Coordinator, Reply, Turn
from app.coordinator.topics import CONSUMER_OFFSETS
from app.core.errors import ErrorCode, RequestRejected
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex
from app.hot.manager import LogManager
from app.machine.files import FileSystem
from app.metadata.image.image import ClusterImage
from app.replication.partition import PartitionTable
from tests.groups.bench import topic_id
from tests.hot.helpers import GatedPool, InlinePool, ManualClock, manager_over, running, sim
from tests.support.waiting import until

NAME = CONSUMER_OFFSETS.name
ZERO = PartitionIndex(0)


@dataclass
class Ledger:
    """A shard as simple as can be: a list of words."""

    partition: int
    words: list[bytes] = field(default_factory=list)
    is_loaded: bool = False
    parked: Reply[str] | None = None
    is_unloaded: bool = False

    def load(self, batch: ReplayedBatch) -> None:
        self.words += [key for key, _ in batch.records]

    def loaded(self, turn: Turn) -> None:
        self.is_loaded = True

    def due(self, turn: Turn, key: Any) -> None:
        turn.append([(b"due %d" % key, b"")])
        self.words.append(b"due %d" % key)

    def unloaded(self, turn: Turn) -> None:
        self.is_unloaded = True
        if self.parked is not None:
            turn.answer(self.parked, "not any more")

    def keep(self, turn: Turn, word: bytes) -> None:
        self.say(turn, word)

    def say(self, turn: Turn, word: bytes) -> int:
        turn.append([(word, b"")])
        self.words.append(word)
        return len(self.words)


class Bench:
    def __init__(self, manager: LogManager, durability: Durability, bulk: Bulk | None = None) -> None:
        self.manager = manager
        self.config = TopicConfig(cleanup_policy=frozenset({"compact"}), firn_durability=durability)
        self.lines: list[str] = []
        self.registry = Registry()
        self.made: list[Ledger] = []
        self.table = PartitionTable(BrokerId(1), ClusterImage)
        self.coordinator: Coordinator[Ledger] = Coordinator(
            CONSUMER_OFFSETS,
            self._make,
            broker_id=BrokerId(1),
            partitions=self.table,
            clock=ManualClock(),
            registry=self.registry,
            log_line=self.lines.append,
            bulk=bulk,
        )

    def _make(self, partition: PartitionIndex) -> Ledger:
        self.made.append(Ledger(partition))
        return self.made[-1]

    def create(self, partition: int = 0) -> Any:
        log = self.manager.create(NAME, topic_id(NAME), PartitionIndex(partition), self.config)
        self.table.lead(self.table.hold(log), LeaderEpoch(0))
        return log

    def say(self, word: bytes, partition: PartitionIndex = ZERO) -> Any:
        return self.coordinator.perform(partition, lambda shard, turn: shard.say(turn, word))

    def code(self) -> ErrorCode:
        try:
            self.coordinator.look(ZERO, lambda shard: shard)
        except RequestRejected as error:
            return error.code
        return ErrorCode.NONE


@asynccontextmanager
async def bench_over(
    fs: FileSystem | None = None, durability: Durability = Durability.MEMORY, pool: Any = None, bulk: Bulk | None = None
) -> AsyncIterator[Bench]:
    """A coordinator that runs; nothing is led yet."""
    manager = manager_over(fs or sim(), pool=pool or InlinePool())
    bench = Bench(manager, durability, bulk)
    await manager.load_all(lambda _: bench.config)
    async with running(manager):
        task = asyncio.create_task(bench.coordinator.run())
        await asyncio.sleep(0)
        try:
            yield bench
        finally:
            if isinstance(pool, GatedPool):
                pool.gate.set()
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]


async def serving(bench: Bench) -> None:
    await until(lambda: not bench.coordinator.loading)
