"""Producers with transactions in a cluster of several brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any, Self

from app.coordinator.topics import CONSUMER_OFFSETS, TRANSACTION_STATE, partition_for
from app.core.errors import ErrorCode, RequestRejected
from app.hot.reads import PageMiss
from app.records.builder import build_batch
from app.transactions.state import TransactionState
from app.wire.apikeys import ApiKey
from app.wire.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from app.wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from app.wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker
from tests.support.several import member
from tests.support.waiting import until
from tests.transactions.world import filtered

NOW = 1_700_000_000_000
FIRST_PROTOCOL, SECOND_PROTOCOL = 11, 12
"""Versions of Produce."""
AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Refusals after which clients try again."""


class Cluster:
    """Three brokers in this loop, and the internal topics with three replicas and one partition on each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.brokers: dict[int, RunningBroker] = {}
        self._stacks: dict[int, AsyncExitStack] = {}
        self._talks: dict[tuple[int, int], Talk] = {}
        self._talk_stack = AsyncExitStack()

    async def start(self, node_id: int) -> None:
        stack = self._stacks[node_id] = AsyncExitStack()
        self.brokers[node_id] = await stack.enter_async_context(member(self.path, node_id))

    async def stop(self, node_id: int) -> None:
        await self._stacks.pop(node_id).aclose()
        del self.brokers[node_id]

    async def close(self) -> None:
        await self._talk_stack.aclose()
        for node_id in list(self._stacks):
            await self.stop(node_id)

    @property
    def image(self) -> Any:
        return next(iter(self.brokers.values())).node.cluster.image

    async def create(self, name: str, partitions: int, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        any_broker = next(iter(self.brokers.values()))
        while name not in any_broker.node.cluster.image.topics_by_name:
            try:
                await any_broker.node.membership.controller.create_topic(name, partitions, named, replication_factor=3)
            except RequestRejected as error:  # of a process that stood still, the controller may change
                if error.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise
                await asyncio.sleep(0.05)
        topic_id = any_broker.node.cluster.image.topics_by_name[name].topic_id
        for broker in self.brokers.values():
            await until(lambda broker=broker: topic_id in broker.node.cluster.image.topics_by_id)

    def leader(self, topic: str, index: int) -> RunningBroker:
        return self.brokers[self.image.topics_by_name[topic].partitions[index].leader]

    def coordinator(self, topic: str, name: str) -> RunningBroker:
        return self.leader(topic, partition_for(name, len(self.image.topics_by_name[topic].partitions)))

    async def talk(self, broker: RunningBroker) -> Talk:
        key = (broker.node.config.node_id, broker.port)
        if key not in self._talks:
            self._talks[key] = await self._talk_stack.enter_async_context(talk(broker.port))
        return self._talks[key]

    @asynccontextmanager
    async def for_another_client(self) -> AsyncIterator[Self]:
        """The same brokers, with connections of its own."""
        view = copy(self)
        view._talks = {}
        async with AsyncExitStack() as view._talk_stack:
            yield view

    def committed(self, topic: str, index: int) -> list[bytes]:
        """What a consumer at read_committed is given now."""
        log = self.leader(topic, index).log(topic, index)
        end = log.last_stable_offset
        offset, data = 0, b""
        while offset < end:
            read = log.read(offset, 1 << 20, end_offset=end)
            data += bytes(read.try_read_now())
            offset = read.end_offset
        return filtered(data, [(one.first_offset, one.producer_id) for one in log.aborted_transactions(0, end)])

    def open(self, topic: str, index: int) -> dict[int, int]:
        return dict(self.leader(topic, index).log(topic, index).producers.open_transactions)


class Producer:
    """A transactional producer that finds its brokers by the image, and tries again as clients do."""

    def __init__(self, of: Cluster, transactional_id: str, version: int) -> None:
        self.of = of
        self.id = transactional_id
        self.version = version
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def _retried(self, ask: Any) -> ErrorCode:
        async with asyncio.timeout(60):
            while True:
                try:
                    code = ErrorCode(await ask())
                except (KeyError, OSError, asyncio.IncompleteReadError):
                    code = ErrorCode.NOT_COORDINATOR  # nobody leads now, or the broker is gone
                if code not in AGAIN:
                    return code
                await asyncio.sleep(0.02)

    async def _coordinator(self) -> Talk:
        return await self.of.talk(self.of.coordinator(TRANSACTION_STATE.name, self.id))

    async def init(self) -> None:
        async def ask() -> int:
            client = await self._coordinator()
            answer = await client.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(self.id, 60_000))
            if answer.error_code == 0:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                self.sequences = {}
            return int(answer.error_code)

        assert await self._retried(ask) is ErrorCode.NONE

    async def add(self, *partitions: tuple[str, int]) -> None:
        """As clients of the first protocol do."""
        if self.version >= SECOND_PROTOCOL:
            return

        async def ask() -> int:
            asked = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(topic, [index]) for topic, index in partitions],
            )
            answer = await (await self._coordinator()).ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, asked)
            return max(
                int(one.partition_error_code)
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            )

        assert await self._retried(ask) is ErrorCode.NONE

    async def write(self, topic: str, index: int, value: bytes, *, again: bool = True) -> ErrorCode:
        sequence = self.sequences.get((topic, index), 0)
        records = build_batch(
            [(NOW, None, value, ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

        async def ask() -> int:
            client = await self.of.talk(self.of.leader(topic, index))
            batches = [(topic, [(index, records)])]
            answer = await client.produce(self.version, batches, transactional_id=self.id)
            return int(answer.responses[0].partition_responses[0].error_code)

        code = await self._retried(ask) if again else ErrorCode(await ask())
        if code is ErrorCode.NONE:
            self.sequences[topic, index] = sequence + 1
        return code

    async def commit_offset(self, group: str, offset: int) -> ErrorCode:
        if self.version < SECOND_PROTOCOL:

            async def add() -> int:
                asked = AddOffsetsToTxnRequest(self.id, self.producer_id, self.epoch, group)
                answer = await (await self._coordinator()).ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, asked)
                return int(answer.error_code)

            assert await self._retried(add) is ErrorCode.NONE

        async def ask() -> int:
            client = await self.of.talk(self.of.coordinator(CONSUMER_OFFSETS.name, group))
            topic = TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, offset)])
            asked = TxnOffsetCommitRequest(self.id, group, self.producer_id, self.epoch, topics=[topic])
            version = 5 if self.version >= SECOND_PROTOCOL else 3
            answer = await client.ask(ApiKey.TXN_OFFSET_COMMIT, version, asked)
            return int(answer.topics[0].partitions[0].error_code)

        return await self._retried(ask)

    async def end(self, *, commit: bool) -> None:
        async def ask() -> int:
            version = 5 if self.version >= SECOND_PROTOCOL else 3
            asked = EndTxnRequest(self.id, self.producer_id, self.epoch, commit)
            answer = await (await self._coordinator()).ask(ApiKey.END_TXN, version, asked)
            if answer.error_code == 0 and version >= 5:
                self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}
            return int(answer.error_code)

        assert await self._retried(ask) is ErrorCode.NONE

    async def completed(self, state: TransactionState) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    broker = self.of.coordinator(TRANSACTION_STATE.name, self.id)
                    if (await broker.node.transactions.describe(self.id)).state is state:
                        return
                except (KeyError, RequestRejected):
                    pass  # it moves
                await asyncio.sleep(0.02)


async def committed_offset(of: Cluster, group: str) -> int:
    asked = OffsetFetchRequestGroup(group, topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])])
    async with asyncio.timeout(60):
        while True:
            try:
                client = await of.talk(of.coordinator(CONSUMER_OFFSETS.name, group))
            except KeyError:
                await asyncio.sleep(0.02)  # nobody leads now
                continue
            answer = await client.ask(ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=[asked], require_stable=True))
            partition = answer.groups[0].topics[0].partitions[0] if answer.groups[0].topics else None
            if partition is not None and partition.error_code == 0:
                return int(partition.committed_offset)
            await asyncio.sleep(0.02)


def name_on(of: Cluster, topic: str, broker: int, prefix: str = "x") -> str:
    """A transactional id, or a group, that this broker coordinates."""
    return next(
        name
        for name in (f"{prefix}{number}" for number in range(1000))
        if of.coordinator(topic, name).node.config.node_id == broker
    )


async def found(of: Cluster, name: str, index: int = 0) -> list[bytes] | None:
    """What a consumer at read_committed is given; None while nobody leads the partition."""
    leader = of.brokers.get(of.image.topics_by_name[name].partitions[index].leader)
    if leader is None or leader.node.partitions.table.led(name, index) is None:
        return None
    while True:
        try:
            return of.committed(name, index)
        except PageMiss as miss:
            await miss.fetch(leader.node.logs.log_directory.pool)
