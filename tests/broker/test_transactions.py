"""Transactions whose coordinator, partitions and group coordinator are on different brokers of one cluster (ADR 0026)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.broker.peers import transaction_calls
from app.coordinator.topics import CONSUMER_OFFSETS, TRANSACTION_STATE, partition_for
from app.core.errors import BrokerUnavailable, ErrorCode
from app.transactions.state import TransactionState
from app.wire.apikeys import ApiKey
from app.wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from app.wire.apis.describe_producers import DescribeProducersRequest, TopicRequest
from app.wire.apis.describe_transactions import DescribeTransactionsRequest
from app.wire.apis.list_transactions import ListTransactionsRequest
from app.wire.apis.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.broker.transactional import FIRST_PROTOCOL, SECOND_PROTOCOL, Cluster, Producer, committed_offset, name_on
from tests.support.changing import delete_topic
from tests.support.several import unfenced
from tests.support.waiting import until


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
        await delete_topic(changes, "gone")
        await delete_topic(changes, "again")
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
