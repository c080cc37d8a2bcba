"""Requests between brokers about transactions, in Kafka's messages: WriteTxnMarkers (key 27) and AddPartitionsToTxn (24).

Tests: ``tests/broker/test_transactions.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.client.connection import KafkaConnection
from app.core.errors import ErrorCode, ProtocolError
from app.core.units import PartitionIndex, TopicPartition
from app.transactions.link import AddAnswer, AddAsked, MarkerAsked
from app.transactions.markers import Marker
from app.wire.apikeys import ApiKey
from app.wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from app.wire.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

MARKERS_VERSION: Final = 2
ADD_VERSION: Final = 5
MARKERS_MS: Final = 5_000
ADD_MS: Final = 10_000
"""Longer than the other side ever takes to answer."""


async def write_markers(connection: KafkaConnection, asked: Sequence[MarkerAsked]) -> list[ErrorCode]:
    """As ``TransactionLink.write_markers``."""
    markers: dict[Marker, WritableTxnMarker] = {}
    topics: dict[tuple[Marker, str, object], WritableTxnMarkerTopic] = {}
    for marker, topic_id, target in asked:
        written = markers.get(marker)
        if written is None:
            written = markers[marker] = WritableTxnMarker(
                producer_id=marker.identity.producer_id,
                producer_epoch=marker.identity.epoch,
                transaction_result=marker.commit,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
                decision=marker.decision,
                coordinator=marker.coordinator,
                coordinator_leads_since=marker.coordinator_leads_since,
            )
        topic = topics.get((marker, target.topic, topic_id))
        if topic is None:
            topic = topics[marker, target.topic, topic_id] = WritableTxnMarkerTopic(target.topic, topic_id=topic_id)
            written.topics.append(topic)
        topic.partition_indexes.append(target.partition)
    answer: WriteTxnMarkersResponse = await connection.request(
        ApiKey.WRITE_TXN_MARKERS,
        WriteTxnMarkersRequest(list(markers.values())),
        version=MARKERS_VERSION,
        timeout_ms=MARKERS_MS,
    )
    # Answered in the order of the question: two topics of one name differ by their ids, which the answer does not have.
    codes: dict[tuple[Marker, object, TopicPartition], ErrorCode] = {}
    for marker, sent, result in zip(markers, markers.values(), answer.markers, strict=False):
        for topic, of_topic in zip(sent.topics, result.topics, strict=False):
            for one in of_topic.partitions:
                target = TopicPartition(topic.name, PartitionIndex(one.partition_index))
                codes[marker, topic.topic_id, target] = ErrorCode(one.error_code)
    try:
        return [codes[marker, topic_id, target] for marker, topic_id, target in asked]
    except KeyError:
        raise ProtocolError(f"{connection} did not answer about every marker.") from None


async def add_to_transactions(connection: KafkaConnection, asked: Sequence[AddAsked]) -> list[AddAnswer]:
    """As ``TransactionLink.add_to_transactions``."""
    answer: AddPartitionsToTxnResponse = await connection.request(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        AddPartitionsToTxnRequest([_transaction(one) for one in asked]),
        version=ADD_VERSION,
        timeout_ms=ADD_MS,
    )
    results = answer.results_by_transaction
    if [one.transactional_id for one in results] != [one.transactional_id for one in asked]:
        raise ProtocolError(f"{connection} did not answer about every transaction.")
    return [
        AddAnswer(
            {
                TopicPartition(topic.name, PartitionIndex(one.partition_index)): ErrorCode(one.partition_error_code)
                for topic in result.topic_results
                for one in topic.results_by_partition
            },
            result.coordinator_epoch,
        )
        for result in results
    ]


def _transaction(asked: AddAsked) -> AddPartitionsToTxnTransaction:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for target, topic_id in asked.topic_ids.items():
        topic = topics.setdefault(target.topic, AddPartitionsToTxnTopic(target.topic, topic_id=topic_id))
        topic.partitions.append(target.partition)
    return AddPartitionsToTxnTransaction(
        asked.transactional_id,
        asked.identity.producer_id,
        asked.identity.epoch,
        asked.verify_only,
        list(topics.values()),
    )
