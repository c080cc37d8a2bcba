"""Transactional requests over a real socket: codes by version, filters, markers by hand, and the short way of a produce."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from app.core.errors import ErrorCode
from app.core.limits import OFFSETS_PER_COMMIT_MAX
from app.hot.log import PartitionLog
from app.records.builder import build_batch
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
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.list_transactions import ListTransactionsRequest
from app.wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from app.wire.apis.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker, running_broker

NOW = 1_700_000_000_000


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


class Producer:
    """A transactional producer with the transactional id ``t``."""

    def __init__(self, client: Talk) -> None:
        self.client = client
        self.producer_id = self.epoch = -1

    async def init(self, version: int = 4, **fields: Any) -> ErrorCode:
        asked = InitProducerIdRequest("t", 60_000, **fields)
        answer = await self.client.ask(ApiKey.INIT_PRODUCER_ID, version, asked)
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    async def produce(self, sequence: int, *, version: int = 12, topic: str = "a", partition: int = 0) -> ErrorCode:
        records = build_batch(
            [(NOW, None, b"v", ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        answer = await self.client.produce(version, [(topic, [(partition, records)])], transactional_id="t")
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def end(self, version: int, *, commit: bool = True, epoch: int = 0) -> ErrorCode:
        asked = EndTxnRequest("t", self.producer_id, self.epoch + epoch, commit)
        answer = await self.client.ask(ApiKey.END_TXN, version, asked)
        if answer.error_code == 0 and version >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)


@asynccontextmanager
async def started(path: Path) -> AsyncIterator[tuple[RunningBroker, Producer]]:
    async with running_broker(path) as broker, talk(broker.port) as client:
        await broker.create_topic("a", 2, message_timestamp_before_max_ms=str(1 << 62))
        for kind in (0, 1):
            asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=["t"])
            assert (await client.ask(ApiKey.FIND_COORDINATOR, 4, asked)).coordinators[0].error_code == 0
        producer = Producer(client)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        async with asyncio.timeout(60):
            while (await client.ask(ApiKey.LIST_TRANSACTIONS, 0, ListTransactionsRequest())).error_code == loading:
                await asyncio.sleep(0)  # until every partition of the coordinator's topic serves
        assert await producer.init() is ErrorCode.NONE
        yield broker, producer


async def test_old_clients_are_told_that_their_epoch_is_invalid_and_newer_ones_that_they_are_fenced(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as (_, producer):
        client = producer.client
        assert await producer.produce(0) is ErrorCode.NONE
        for version, code in ((1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)):
            assert await producer.end(version, epoch=5) is code
            asked = AddOffsetsToTxnRequest("t", producer.producer_id, producer.epoch + 5, "g")
            assert (await client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, asked)).error_code == code
            topic = AddPartitionsToTxnTopic("a", [0])
            add = AddPartitionsToTxnRequest([], "t", producer.producer_id, producer.epoch + 5, [topic])
            answer = await client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, add)
            assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == code
        identity = {"producer_id": producer.producer_id + 1, "producer_epoch": producer.epoch}
        assert await producer.init(3, **identity) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await producer.init(4, **identity) is ErrorCode.PRODUCER_FENCED


async def test_partitions_are_added_together_or_not_at_all(tmp_path: Path) -> None:
    async with started(tmp_path) as (broker, producer):
        for topic, index, code in (
            ("a", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("none", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("__transaction_state", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ):
            topics = [AddPartitionsToTxnTopic("a", [0]), AddPartitionsToTxnTopic(topic, [index])]
            asked = AddPartitionsToTxnTransaction("t", producer.producer_id, producer.epoch, False, topics)
            answer = await producer.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, AddPartitionsToTxnRequest([asked]))
            codes = [
                one.partition_error_code
                for result in answer.results_by_transaction[0].topic_results
                for one in result.results_by_partition
            ]
            assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, code]
        asked_by_client = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic("__consumer_offsets", [0])],
        )
        answer = await producer.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, asked_by_client)
        only = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
        assert only.partition_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED, "for the group's coordinator alone"
        assert (await broker.node.transactions.describe("t")).partitions == frozenset()
        topics = [AddPartitionsToTxnTopic("a", [0, 1])]
        asked = AddPartitionsToTxnTransaction("t", producer.producer_id, producer.epoch, True, topics)
        answer = await producer.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, AddPartitionsToTxnRequest([asked]))
        codes = [
            one.partition_error_code for one in answer.results_by_transaction[0].topic_results[0].results_by_partition
        ]
        assert codes == [ErrorCode.TRANSACTION_ABORTABLE] * 2, "only looked at"


async def test_offsets_of_a_transaction_need_its_owner(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, producer):

        async def commit(
            version: int, *, epoch: int = 0, topic: str = "a", index: int = 0, metadata: str = "", times: int = 1
        ) -> ErrorCode:
            partition = TxnOffsetCommitRequestPartition(index, 5, -1, metadata)
            asked = TxnOffsetCommitRequest(
                "t",
                "g",
                producer.producer_id,
                producer.epoch + epoch,
                topics=[TxnOffsetCommitRequestTopic(topic, [partition] * times)],
            )
            answer = await producer.client.ask(ApiKey.TXN_OFFSET_COMMIT, version, asked)
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        assert await commit(3) is ErrorCode.INVALID_TXN_STATE, "the group's partition was not added"
        assert await commit(4) is ErrorCode.TRANSACTION_ABORTABLE
        assert await commit(5, epoch=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await commit(5) is ErrorCode.NONE
        for version, epoch in ((3, 0), (5, 0), (5, 1)):
            for topic, index in (("none", 0), ("a", -1), ("a", 99)):
                code = await commit(version, epoch=epoch, topic=topic, index=index)
                assert code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(5, times=OFFSETS_PER_COMMIT_MAX + 1) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert await commit(5, metadata="x" * 5_000) is ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await producer.end(5) is ErrorCode.NONE
        assert await commit(3, epoch=-1) is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_transactions_and_producers_are_shown(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, producer):
        client = producer.client
        assert await producer.produce(0) is ErrorCode.NONE

        async def listed(**filters: Any) -> list[str]:
            answer = await client.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(**filters))
            assert answer.error_code == 0
            return [found.transactional_id for found in answer.transaction_states]

        for passing in (
            {},
            {"state_filters": ["Ongoing"]},
            {"producer_id_filters": [producer.producer_id]},
            {"transactional_id_pattern": "t|u"},
        ):
            assert await listed(**passing) == ["t"]
        for stopping in (
            {"state_filters": ["Empty", "Dead"]},
            {"producer_id_filters": [producer.producer_id + 1]},
            {"transactional_id_pattern": "u"},
            {"duration_filter": 1 << 40},
        ):
            assert await listed(**stopping) == []
        answer = await client.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(state_filters=["Odd"]))
        assert answer.unknown_state_filters == ["Odd"]
        answer = await client.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(transactional_id_pattern="("))
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        described = await client.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=["t", "u", ""])
        )
        assert [(found.error_code, found.transaction_state) for found in described.transaction_states] == [
            (0, "Ongoing"),
            (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ""),
            (ErrorCode.INVALID_REQUEST, ""),
        ]
        assert [(topic.topic, topic.partitions) for topic in described.transaction_states[0].topics] == [("a", [0])]
        answer = await client.ask(
            ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest([TopicRequest("a", [0, 1, 7])])
        )
        found, empty, missing = answer.topics[0].partitions
        (writer,) = found.active_producers
        assert (writer.producer_id, writer.last_sequence, writer.current_txn_start_offset) == (
            producer.producer_id,
            0,
            0,
        )
        assert empty.active_producers == []
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_marker_by_hand_ends_what_is_open_once(tmp_path: Path) -> None:
    async with started(tmp_path) as (broker, producer):
        assert await producer.produce(0) is ErrorCode.NONE
        log = broker.log("a")

        async def mark(epoch: int, *, version: int = 2, transaction_version: int = 2) -> ErrorCode:
            topic = WritableTxnMarkerTopic("a", [0])
            marker = WritableTxnMarker(
                producer.producer_id, producer.epoch + epoch, False, [topic], 0, transaction_version
            )
            answer = await producer.client.ask(ApiKey.WRITE_TXN_MARKERS, version, WriteTxnMarkersRequest([marker]))
            return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

        assert await mark(0) is ErrorCode.INVALID_PRODUCER_EPOCH, "a late one: the client writes at that epoch"
        assert log.last_stable_offset == 0
        assert await mark(1) is ErrorCode.NONE
        assert (log.last_stable_offset, log.log_end_offset) == (2, 2)
        assert await mark(1) is ErrorCode.NONE, "again"
        assert log.log_end_offset == 2
        assert await mark(0, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_batches_that_continue_a_transaction_go_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    general: list[int] = []
    append_generally = PartitionLog.append_generally

    def counted(log: PartitionLog, *arguments: Any) -> Any:
        if log.topic == "a":
            general.append(log.log_end_offset)
        return append_generally(log, *arguments)

    monkeypatch.setattr(PartitionLog, "append_generally", counted)
    async with started(tmp_path) as (broker, producer):
        for _ in range(2):
            for sequence in range(10):
                assert await producer.produce(sequence) is ErrorCode.NONE
            assert await producer.end(5) is ErrorCode.NONE
        log = broker.log("a")
        assert log.last_stable_offset == log.log_end_offset == 22
        assert general == [0, 11], "only what begins a transaction goes the long way"


async def test_a_batch_of_the_last_epoch_does_not_slip_through_the_short_way(tmp_path: Path) -> None:
    async with started(tmp_path) as (broker, producer):
        for sequence in range(3):
            assert await producer.produce(sequence) is ErrorCode.NONE
        identity = producer.producer_id, producer.epoch
        assert await producer.end(5) is ErrorCode.NONE
        assert await producer.produce(0) is ErrorCode.NONE
        producer.producer_id, producer.epoch = identity
        assert await producer.produce(3) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert broker.log("a").log_end_offset == 5
