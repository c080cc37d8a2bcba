"""Transactions whose coordinator, partitions and group coordinator are on different brokers of one cluster (ADR 0026)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any, Self

import pytest

from app.broker.peers import transaction_calls
from app.coordinator.topics import CONSUMER_OFFSETS, TRANSACTION_STATE, partition_for
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.records.builder import build_batch
from app.transactions.state import TransactionState
from app.wire.apikeys import ApiKey
from app.wire.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from app.wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from app.wire.apis.describe_producers import DescribeProducersRequest, TopicRequest
from app.wire.apis.describe_transactions import DescribeTransactionsRequest
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.list_transactions import ListTransactionsRequest
from app.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from app.wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from app.wire.apis.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.broker.test_cluster import member
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker
from tests.support.several import unfenced
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


@asynccontextmanager
async def cluster(path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(path)
    try:
        for node_id in (1, 2, 3):
            await made.start(node_id)
        for broker in made.brokers.values():
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        for topic in (TRANSACTION_STATE, CONSUMER_OFFSETS):
            await made.create(topic.name, 3, cleanup_policy="compact", min_insync_replicas="2")
        await made.create("t", 3, min_insync_replicas="2", message_timestamp_before_max_ms=str(1 << 62))
        yield made
    finally:
        await made.close()


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


@pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])
async def test_a_transaction_over_three_brokers_commits_and_aborts(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path) as of:
        group = name_on(of, CONSUMER_OFFSETS.name, 2, "g")
        producer = Producer(of, name_on(of, TRANSACTION_STATE.name, 1), version)
        await producer.init()
        for number, commit in enumerate((True, False, True)):
            await producer.add(*(("t", index) for index in range(3)))
            for index in range(3):
                assert await producer.write("t", index, b"%d" % number) is ErrorCode.NONE
            assert await producer.commit_offset(group, number + 10) is ErrorCode.NONE
            assert all(of.open("t", index) for index in range(3))
            await producer.end(commit=commit)
        await producer.completed(TransactionState.COMPLETE_COMMIT)
        for index in range(3):
            await until(lambda index=index: of.committed("t", index) == [b"0", b"2"])
            assert of.open("t", index) == {}
        assert await committed_offset(of, group) == 12


@pytest.mark.ci
async def test_a_topic_that_is_deleted_in_a_transaction_is_not_waited_for(tmp_path: Path) -> None:
    async with cluster(tmp_path) as of:
        await of.create("gone", 1)
        await of.create("again", 1, message_timestamp_before_max_ms=str(1 << 62))
        producer = Producer(of, name_on(of, TRANSACTION_STATE.name, 1), FIRST_PROTOCOL)
        await producer.init()
        targets = (("t", 0), ("t", 1), ("t", 2), ("gone", 0), ("again", 0))
        await producer.add(*targets)
        for topic, index in targets:
            assert await producer.write(topic, index, b"v") is ErrorCode.NONE
        changes = of.brokers[1].node.membership.controller
        await changes.delete_topic("gone")
        await changes.delete_topic("again")
        for broker in of.brokers.values():
            await until(lambda broker=broker: broker.node.cluster.image.topic("again") is None)
        await of.create("again", 1, message_timestamp_before_max_ms=str(1 << 62))
        await producer.end(commit=True)
        await producer.completed(TransactionState.COMPLETE_COMMIT)
        for index in range(3):
            await until(lambda index=index: of.committed("t", index) == [b"v"])
        assert of.open("again", 0) == {}


class Held:
    """Lets the markers of chosen brokers wait, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        sends = transaction_calls.write_markers

        async def held(connection: Any, asked: Any) -> Any:
            self.asked.set()
            await self.go.wait()
            return await sends(connection, asked)

        monkeypatch.setattr(transaction_calls, "write_markers", held)


@pytest.mark.ci
async def test_the_next_coordinator_goes_on_between_the_decision_and_the_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as of:
        producer = Producer(of, name_on(of, TRANSACTION_STATE.name, 3), SECOND_PROTOCOL)
        await producer.init()
        for index in range(3):
            assert await producer.write("t", index, b"v") is ErrorCode.NONE
        group = name_on(of, CONSUMER_OFFSETS.name, 2, "g")
        assert await producer.commit_offset(group, 5) is ErrorCode.NONE
        held = Held(monkeypatch)
        await producer.end(commit=True)
        await until(held.asked.is_set)
        await of.stop(3)
        held.go.set()
        await until(lambda: all(one.leader in (1, 2) for one in of.image.topics_by_name["t"].partitions))
        await producer.completed(TransactionState.COMPLETE_COMMIT)
        for index in range(3):
            await until(lambda index=index: of.committed("t", index) == [b"v"])
        assert await committed_offset(of, group) == 5


@pytest.mark.ci
async def test_markers_find_the_leader_that_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path) as of:
        producer = Producer(of, name_on(of, TRANSACTION_STATE.name, 1), FIRST_PROTOCOL)
        await producer.init()
        await producer.add(*(("t", index) for index in range(3)))
        for index in range(3):
            assert await producer.write("t", index, b"v") is ErrorCode.NONE
        held = Held(monkeypatch)
        await producer.end(commit=False)
        await until(held.asked.is_set)
        led = [one.partition_index for one in of.image.topics_by_name["t"].partitions if one.leader == 3]
        assert led
        await of.stop(3)
        held.go.set()
        await producer.completed(TransactionState.COMPLETE_ABORT)
        for index in range(3):
            await until(lambda index=index: of.open("t", index) == {})
            assert of.committed("t", index) == []


@pytest.mark.ci
@pytest.mark.parametrize(
    "answer", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TRANSACTION_COORDINATOR_FENCED, None]
)
async def test_a_marker_is_sent_until_the_leader_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: ErrorCode | None
) -> None:
    async with cluster(tmp_path) as of:
        producer = Producer(of, name_on(of, TRANSACTION_STATE.name, 1), FIRST_PROTOCOL)
        await producer.init()
        await producer.add(("t", 0), ("t", 1), ("t", 2))
        for index in range(3):
            assert await producer.write("t", index, b"v") is ErrorCode.NONE
        refusals_left = 3
        sends = transaction_calls.write_markers

        async def refused(connection: Any, asked: Any) -> Any:
            nonlocal refusals_left
            if refusals_left:
                refusals_left -= 1
                if answer is None:
                    raise BrokerUnavailable("no answer")
                return [answer] * len(asked)
            return await sends(connection, asked)

        monkeypatch.setattr(transaction_calls, "write_markers", refused)
        await producer.end(commit=True)
        await producer.completed(TransactionState.COMPLETE_COMMIT)
        assert not refusals_left
        for index in range(3):
            await until(lambda index=index: of.committed("t", index) == [b"v"])


@pytest.mark.ci
async def test_a_late_batch_is_refused_though_the_coordinator_had_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-890: the transaction is aborted between the answer of its coordinator and the append."""
    async with cluster(tmp_path) as of:
        producer = Producer(of, name_on(of, TRANSACTION_STATE.name, 1), FIRST_PROTOCOL)
        await producer.init()
        index = next(one.partition_index for one in of.image.topics_by_name["t"].partitions if one.leader == 2)
        await producer.add(("t", index))
        answered, go = asyncio.Event(), asyncio.Event()
        asks = transaction_calls.add_to_transactions

        async def late(connection: Any, asked: Any) -> Any:
            answer = await asks(connection, asked)
            answered.set()
            await go.wait()
            return answer

        monkeypatch.setattr(transaction_calls, "add_to_transactions", late)
        writing = asyncio.create_task(producer.write("t", index, b"late", again=False))
        await until(answered.is_set)
        await producer.end(commit=False)
        await producer.completed(TransactionState.COMPLETE_ABORT)
        go.set()
        assert await writing is ErrorCode.TRANSACTION_ABORTABLE
        assert of.open("t", index) == {}
        assert of.leader("t", index).log("t", index).producers.guards == {}


@pytest.mark.ci
async def test_a_coordinator_that_was_replaced_has_no_say(tmp_path: Path) -> None:
    """Its markers are refused (X7), and so is what it lets begin (XV3)."""
    async with cluster(tmp_path) as of:
        producer = Producer(of, name_on(of, TRANSACTION_STATE.name, 1), FIRST_PROTOCOL)
        await producer.init()
        index = next(one.partition_index for one in of.image.topics_by_name["t"].partitions if one.leader == 2)
        await producer.add(("t", index))
        assert await producer.write("t", index, b"v") is ErrorCode.NONE
        client = await of.talk(of.leader("t", index))

        async def mark(coordinator_epoch: int) -> ErrorCode:
            topic = WritableTxnMarkerTopic("t", [index])
            marker = WritableTxnMarker(producer.producer_id, producer.epoch, False, [topic], coordinator_epoch)
            answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest([marker]))
            return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

        assert await mark(100) is ErrorCode.NONE, "of a successor, of which the coordinator has not heard"
        assert await mark(99) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await producer.write("t", index, b"late", again=False) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert of.open("t", index) == {}


@pytest.mark.ci
async def test_a_marker_for_a_topic_of_another_id_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as of:
        client = await of.talk(of.leader("t", 0))
        image = of.image.topics_by_name
        for topic_id, code in (
            (image[TRANSACTION_STATE.name].topic_id, ErrorCode.INCONSISTENT_TOPIC_ID),
            (image["t"].topic_id, ErrorCode.NONE),
        ):
            topic = WritableTxnMarkerTopic("t", [0], topic_id)
            marker = WritableTxnMarker(7, 0, True, [topic], 0, 2)
            answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 2, WriteTxnMarkersRequest([marker]))
            assert answer.markers[0].topics[0].partitions[0].error_code == code


@pytest.mark.ci
async def test_each_broker_speaks_for_what_it_leads(tmp_path: Path) -> None:
    """What is described and listed; and partitions of which the coordinator knows another topic (X5)."""
    async with cluster(tmp_path) as of:
        producer = Producer(of, name_on(of, TRANSACTION_STATE.name, 1), SECOND_PROTOCOL)
        await producer.init()
        assert await producer.write("t", 0, b"v") is ErrorCode.NONE
        led_by = of.leader("t", 0).node.config.node_id
        for node_id, broker in of.brokers.items():
            client = await of.talk(broker)
            described = await client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest([producer.id]))
            code = ErrorCode.NONE if node_id == 1 else ErrorCode.NOT_COORDINATOR
            assert described.transaction_states[0].error_code == code
            listed = await client.ask(ApiKey.LIST_TRANSACTIONS, 0, ListTransactionsRequest())
            assert [one.transactional_id for one in listed.transaction_states] == [producer.id] * (node_id == 1)
            asked = DescribeProducersRequest([TopicRequest("t", [0])])
            shown = (await client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, asked)).topics[0].partitions[0]
            code = ErrorCode.NONE if node_id == led_by else ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert shown.error_code == code
            assert [one.producer_id for one in shown.active_producers] == [producer.producer_id] * (node_id == led_by)
        client = await of.talk(of.brokers[1])
        for name, code in ((TRANSACTION_STATE.name, ErrorCode.INCONSISTENT_TOPIC_ID), ("t", ErrorCode.NONE)):
            topic = AddPartitionsToTxnTopic("t", [0], of.image.topics_by_name[name].topic_id)
            asked_for = AddPartitionsToTxnTransaction(
                producer.id, producer.producer_id, producer.epoch, verify_only=True, topics=[topic]
            )
            answer = await client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, AddPartitionsToTxnRequest([asked_for]))
            result = answer.results_by_transaction[0]
            assert result.topic_results[0].results_by_partition[0].partition_error_code == code
            coordinated = of.brokers[1].node.partitions.table.led_log(
                TRANSACTION_STATE.name, partition_for(producer.id, 3)
            )
            assert coordinated is not None
            assert result.coordinator_epoch == coordinated.leader_epoch
