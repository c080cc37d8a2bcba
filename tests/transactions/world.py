"""The part of a broker that transactions need, over a simulated disk, on a virtual clock: logs, coordinators, the Produce path."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

from app.configs import BrokerConfig, Durability, TopicConfig
from app.coordinator.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, ProducerId, TimestampMs, TopicId
from app.groups.coordinator import GroupCoordinator
from app.groups.offsets.offsets import NO_COMMITTED_OFFSET
from app.handlers.apis import transactional_offsets
from app.handlers.base.context import Context
from app.handlers.base.request import Request
from app.handlers.clients.admission import admit
from app.handlers.produce.produce import append_all, find_partitions, settle
from app.handlers.state.metrics import ApiMetrics
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.metadata.image.image import PartitionImage, TopicImage
from app.records.batch import iter_headers
from app.records.control import ControlType, parse_marker
from app.records.record import iter_records
from app.replication.partition import PartitionTable
from app.transactions.coordinator import TransactionCoordinator
from app.transactions.state import PREPARED
from app.wire.apikeys import ApiKey
from app.wire.apis.txn_offset_commit import TxnOffsetCommitRequest
from app.wire.produce import PartitionResult, ProduceRequest
from tests.hot.helpers import DATA, sim
from tests.support.callers import SOMEBODY
from tests.support.virtual_loop import VirtualClock, VirtualLoop, VirtualPool

NODE = BrokerId(1)
DATA_TOPICS = ("a", "b")
SYNC_S = 0.001
"""What anything that is done in the pool takes."""


class FakeProducerIds:
    """Every second id has to be waited for."""

    def __init__(self) -> None:
        self.next = 1000

    def take_now(self) -> ProducerId | None:
        if self.next % 2:
            return None
        return self._take()

    async def take(self) -> ProducerId:
        await asyncio.sleep(SYNC_S)
        return self._take()

    def _take(self) -> ProducerId:
        self.next += 1
        return ProducerId(self.next - 1)


class World:
    """One broker's logs and coordinators. ``start`` after construction, and again by ``restart``."""

    def __init__(
        self, loop: VirtualLoop, *, seed: int = 1, durability: Durability = Durability.MEMORY, **settings: Any
    ) -> None:
        """``settings`` are fields of ``BrokerConfig``."""
        self.config = BrokerConfig(transaction_max_timeout_ms=10_000, **settings)
        self.clock = VirtualClock(loop)
        self.fs = sim(seed)
        self.durability = durability
        self.epoch = 0
        self.lines: list[str] = []
        self.producer_ids = FakeProducerIds()
        self._tasks: list[asyncio.Task[None]] = []
        self.logs: LogManager
        self.table: PartitionTable
        self.transactions: TransactionCoordinator
        self.context: Context

    # --- life ---

    def _config(self, topic: str) -> TopicConfig:
        compacted = topic not in DATA_TOPICS
        return TopicConfig(
            segment_bytes=100_000 if compacted else 1_500,
            cleanup_policy=frozenset({"compact"} if compacted else {"delete"}),
            remote_storage_enable=False,
            firn_durability=self.durability,
        )

    def image(self) -> Any:
        partition = PartitionImage(PartitionIndex(0), NODE, LeaderEpoch(self.epoch), 0, (NODE,), (NODE,))
        topics = {
            name: TopicImage(_topic_id(name), name, (partition,), {}, TimestampMs(0))
            for name in (*DATA_TOPICS, CONSUMER_OFFSETS.name, TRANSACTION_STATE.name)
        }
        return SimpleNamespace(
            topic=topics.get,
            topics_by_name=topics,
            topics_by_id={topic.topic_id: topic for topic in topics.values()},
            topic_by_id=lambda topic_id: next((one for one in topics.values() if one.topic_id == topic_id), None),
            brokers={},
        )

    async def start(self) -> None:
        """Open the logs, lead all of them in a new epoch, load the coordinators."""
        rng = random.Random(5)
        self.logs = LogManager(DATA, self.fs, VirtualPool(lambda: SYNC_S), self.clock, rng)
        await self.logs.load_all(self._config)
        self.epoch += 1
        self.table = PartitionTable(NODE, self.image)
        image = self.image()
        for name in image.topics_by_name:
            log = self.logs.get(name, 0) or self.logs.create(name, _topic_id(name), 0, self._config(name))
            self.table.lead(self.table.hold(log), LeaderEpoch(self.epoch))
        config = self.config
        self.registry = Registry()
        groups = GroupCoordinator(
            config=lambda: config,
            broker_id=NODE,
            partitions=self.table,
            clock=self.clock,
            rng=rng,
            registry=self.registry,
            log_line=self.lines.append,
        )
        self.transactions = TransactionCoordinator(
            config,
            partitions=self.table,
            producer_ids=self.producer_ids,
            offsets=groups,
            clock=self.clock,
            registry=self.registry,
            log_line=self.lines.append,
        )
        self.context = SimpleNamespace(  # type: ignore[assignment]
            faults=Faults(self.lines.append),
            client_line=self.lines.append,
            config=config,
            effective=config,
            clock=self.clock,
            logs=self.logs,
            partitions=self.table,
            image=image,
            groups=groups,
            transactions=self.transactions,
            metrics=ApiMetrics(Registry()),
            refusal=None,
            refuses_transactions=False,
        )
        self._tasks = [asyncio.create_task(run()) for run in (self.logs.run, groups.run, self.transactions.run)]
        groups.start(image)
        self.transactions.follow(image)

    async def stop(self) -> None:
        """End what runs, without closing anything: as a kill does."""
        for task in self._tasks:
            task.cancel()
        done, _ = await asyncio.wait(self._tasks)
        for task in done:
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

    async def restart(self, *, power: bool) -> None:
        """Kill the broker and start it again; with ``power`` what was not synced may be lost."""
        await self.stop()
        (self.fs.crash if power else self.fs.kill)()
        await self.start()

    # --- requests ---

    async def produce(self, version: int, transactional_id: str | None, topic: str, records: bytes) -> PartitionResult:
        """As the handler does, on a connection of its own."""
        connection: Any = SimpleNamespace(context=self.context, held=None, peer="127.0.0.1:1")
        request = ProduceRequest(transactional_id, -1, 1000, [(topic, [(0, memoryview(bytearray(records)))])])
        refused = admit(self.context, version, request)
        if isinstance(refused, Awaitable):
            refused = await refused
        results, waiting = append_all(connection, version, request, find_partitions(self.context, request), refused)
        if waiting:
            await asyncio.wait([one.stored for one in waiting])
            settle(self.context, results, waiting)
        return results[0][1][0]

    async def commit_offsets(self, version: int, message: TxnOffsetCommitRequest) -> int:
        """TxnOffsetCommit; the code of its first partition. Raises: RequestRejected."""
        request = Request(ApiKey.TXN_OFFSET_COMMIT, version, 1, "test", SOMEBODY)
        answer = await transactional_offsets.handle(self.context, request, message)
        return int(answer.topics[0].partitions[0].error_code)

    # --- what is there ---

    def log(self, topic: str) -> PartitionLog:
        found = self.logs.get(topic, 0)
        assert found is not None
        return found

    async def read_committed(self, topic: str) -> list[bytes]:
        """The values that a consumer at read_committed is given, filtered as clients filter (KIP-98)."""
        log = self.log(topic)
        values: list[bytes] = []
        offset = log.log_start_offset
        while offset < log.last_stable_offset:
            read = await log.read_when_ready(offset, 1 << 20, end_offset=log.last_stable_offset)
            found = await log.aborted_transactions_when_ready(offset, read.end_offset)
            aborted = [(one.first_offset, one.producer_id) for one in found]
            data = read.try_read_now()
            values += filtered(bytes(data if data is not None else await read.read_bytes()), aborted)
            offset = read.end_offset
        return values

    async def committed_offset(self, group: str, topic: str) -> int:
        """The offset that a group has committed for partition 0 of a topic; -1 if none."""
        found = self.context.groups.perform(
            group, lambda shard, _: shard.offsets.topics(group).get(topic, {}).get(0, NO_COMMITTED_OFFSET).offset
        )
        return found if isinstance(found, int) else await found

    async def settled(self) -> bool:
        """Whether every decided transaction is complete."""
        return not any(transaction.state in PREPARED for some in self.transactions.all() for transaction in some)


def filtered(data: bytes, aborted: list[tuple[int, int]]) -> list[bytes]:
    """What a client makes of fetched batches and the list of aborted transactions that came with them."""
    left = sorted(aborted)
    aborting: set[int] = set()
    values: list[bytes] = []
    for position, header in iter_headers(data):
        while left and left[0][0] < header.end_offset:
            aborting.add(left.pop(0)[1])
        batch = memoryview(data)[position : position + header.size_bytes]
        if header.is_control:
            marker = parse_marker(batch)
            if marker is not None and marker.control_type is ControlType.ABORT:
                aborting.discard(marker.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            values += [bytes(record.value or b"") for record in iter_records(batch)]
    return values


def _topic_id(name: str) -> TopicId:
    return TopicId(uuid.uuid5(uuid.NAMESPACE_DNS, name))
