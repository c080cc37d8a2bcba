"""The life of a transaction: AddPartitionsToTxn (key 24), AddOffsetsToTxn (25), EndTxn (26), WriteTxnMarkers (27).

InitProducerId, with which it begins, is in ``producer_ids.py``; partitions that are added by a Produce itself in ``admission.py``;
offsets that are committed in one in ``transactional_offsets.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

from app.coordinator.topics import CONSUMER_OFFSETS, ensure_topic, partition_for
from app.errors import ErrorCode, FirnError, RequestRejected, kafka_code
from app.handlers.api import Api, ApiTable
from app.handlers.context import Context, Request
from app.transactions.markers import Marker
from app.transactions.state import VERSION_1, VERSION_2, ProducerIdentity, Transaction
from app.units import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.wire.apikeys import ApiKey
from app.wire.apis.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from app.wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from app.wire.apis.end_txn import EndTxnRequest, EndTxnResponse
from app.wire.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

BATCHED_FROM: Final = 4
"""First version of AddPartitionsToTxn for many transactions, which brokers send on behalf of producers (KIP-890)."""
KNOWS_FENCED: Final = 2
"""First version of the three whose clients know PRODUCER_FENCED (KIP-588)."""
SECOND_PROTOCOL: Final = 5
"""First version of EndTxn in which the end of a transaction raises the epoch."""


def identity_of(message: AddOffsetsToTxnRequest | EndTxnRequest | AddPartitionsToTxnTransaction) -> ProducerIdentity:
    """Whom a request takes itself for."""
    return ProducerIdentity(ProducerId(message.producer_id), ProducerEpoch(message.producer_epoch))


def told(version: int, code: ErrorCode) -> ErrorCode:
    """A coordinator's refusal as a client of this version is to hear it."""
    if code is ErrorCode.PRODUCER_FENCED and version < KNOWS_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


# --- AddPartitionsToTxn -----------------------------------------------------------------------------------------------


async def handle_add_partitions(
    context: Context, request: Request, message: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions, or only check that they were added."""
    version = request.api_version
    if version >= BATCHED_FROM:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(asked.transactional_id, await _add_partitions(context, version, asked))
                for asked in message.transactions
            ]
        )
    only = AddPartitionsToTxnTransaction(
        message.v3_and_below_transactional_id,
        message.v3_and_below_producer_id,
        message.v3_and_below_producer_epoch,
        topics=message.v3_and_below_topics,
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _add_partitions(context, version, only))


async def _add_partitions(
    context: Context, version: int, asked: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    targets = [
        TopicPartition(topic.name, PartitionIndex(index)) for topic in asked.topics for index in topic.partitions
    ]
    codes = {target: code for target in targets if (code := _unfit(context, target)) is not None}
    if codes:
        # All or nothing; those that are fit are told so.
        codes = {target: codes.get(target, ErrorCode.OPERATION_NOT_ATTEMPTED) for target in targets}
    elif not asked.transactional_id:
        codes = dict.fromkeys(targets, ErrorCode.INVALID_REQUEST)
    elif asked.verify_only:
        codes = {target: _verify(context, asked, target) for target in targets}
    else:
        codes = dict.fromkeys(targets, await _add(context, version, asked, targets))
    return _partition_results(asked.topics, {target: told(version, code) for target, code in codes.items()})


def _unfit(context: Context, target: TopicPartition) -> ErrorCode | None:
    """Why clients cannot write to a partition in a transaction, if they cannot."""
    topic = context.image.topic(target.topic)
    if topic is None or not 0 <= target.partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic.is_internal else None


async def _add(
    context: Context, version: int, asked: AddPartitionsToTxnTransaction, targets: list[TopicPartition]
) -> ErrorCode:
    client_version = VERSION_2 if version >= BATCHED_FROM else VERSION_1
    try:
        added = context.transactions.add_partitions(asked.transactional_id, identity_of(asked), targets, client_version)
        if not isinstance(added, Transaction):
            await added
    except RequestRejected as error:
        return error.code
    return ErrorCode.NONE


def _verify(context: Context, asked: AddPartitionsToTxnTransaction, target: TopicPartition) -> ErrorCode:
    try:
        context.transactions.check_partition(asked.transactional_id, identity_of(asked), target)
    except RequestRejected as error:
        return error.code
    return ErrorCode.NONE


def _partition_results(
    topics: Iterable[AddPartitionsToTxnTopic], codes: dict[TopicPartition, ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            topic.name,
            [
                AddPartitionsToTxnPartitionResult(index, codes[TopicPartition(topic.name, PartitionIndex(index))])
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def refuse_add_partitions(
    request: Request, message: AddPartitionsToTxnRequest, code: ErrorCode, sentence: str
) -> AddPartitionsToTxnResponse:
    del sentence

    def results(topics: Iterable[AddPartitionsToTxnTopic]) -> list[AddPartitionsToTxnTopicResult]:
        return [
            AddPartitionsToTxnTopicResult(
                topic.name, [AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions]
            )
            for topic in topics
        ]

    if request.api_version >= BATCHED_FROM:
        return AddPartitionsToTxnResponse(
            error_code=code,
            results_by_transaction=[
                AddPartitionsToTxnResult(asked.transactional_id, results(asked.topics))
                for asked in message.transactions
            ],
        )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results(message.v3_and_below_topics))


# --- AddOffsetsToTxn --------------------------------------------------------------------------------------------------


async def handle_add_offsets(
    context: Context, request: Request, message: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the partition in which a group's offsets are committed. Raises: RequestRejected."""
    if not message.transactional_id:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "an empty transactional id")
    topic = await ensure_topic(context.cluster, context.controller, CONSUMER_OFFSETS)
    target = TopicPartition(topic.name, partition_for(message.group_id, len(topic.partitions)))
    added = context.transactions.add_partitions(message.transactional_id, identity_of(message), [target], VERSION_1)
    if not isinstance(added, Transaction):
        await added
    return AddOffsetsToTxnResponse()


def refuse_add_offsets(
    request: Request, message: AddOffsetsToTxnRequest, code: ErrorCode, sentence: str
) -> AddOffsetsToTxnResponse:
    del message, sentence
    return AddOffsetsToTxnResponse(error_code=told(request.api_version, code))


# --- EndTxn -----------------------------------------------------------------------------------------------------------


async def handle_end(context: Context, request: Request, message: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort. Raises: RequestRejected."""
    if not message.transactional_id:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "an empty transactional id")
    identity = await context.transactions.end(
        message.transactional_id,
        identity_of(message),
        commit=message.committed,
        client_version=VERSION_2 if request.api_version >= SECOND_PROTOCOL else VERSION_1,
    )
    return EndTxnResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)


def refuse_end(request: Request, message: EndTxnRequest, code: ErrorCode, sentence: str) -> EndTxnResponse:
    del message, sentence
    return EndTxnResponse(error_code=told(request.api_version, code))


# --- WriteTxnMarkers --------------------------------------------------------------------------------------------------


async def handle_markers(
    context: Context, request: Request, message: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Write markers to partitions that this broker leads: for another broker's coordinator, or an operator (KIP-664)."""
    del request
    return WriteTxnMarkersResponse(markers=[await _write_marker(context, asked) for asked in message.markers])


async def _write_marker(context: Context, asked: WritableTxnMarker) -> WritableTxnMarkerResult:
    marker = Marker(
        ProducerIdentity(ProducerId(asked.producer_id), ProducerEpoch(asked.producer_epoch)),
        asked.transaction_result,
        asked.coordinator_epoch,
        asked.transaction_version,
    )
    written: list[tuple[WritableTxnMarkerPartitionResult, str, Awaitable[None]]] = []
    result = WritableTxnMarkerResult(asked.producer_id)
    for topic in asked.topics:
        answered = WritableTxnMarkerTopicResult(topic.name)
        result.topics.append(answered)
        for index in topic.partition_indexes:
            of_partition = WritableTxnMarkerPartitionResult(index)
            answered.partitions.append(of_partition)
            try:
                stored = context.transactions.markers.write(marker, TopicPartition(topic.name, PartitionIndex(index)))
            except FirnError as error:
                context.faults.met_error("writing markers to", f"{topic.name}-{index}", error)
                of_partition.error_code = kafka_code(error)
            else:
                if stored is not None:
                    written.append((of_partition, f"{topic.name}-{index}", stored))
    for of_partition, place, stored in written:
        try:
            await stored
        except FirnError as error:
            context.faults.met_error("writing markers to", place, error)
            of_partition.error_code = kafka_code(error)
    return result


def refuse_markers(
    request: Request, message: WriteTxnMarkersRequest, code: ErrorCode, sentence: str
) -> WriteTxnMarkersResponse:
    del request, sentence
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                asked.producer_id,
                [
                    WritableTxnMarkerTopicResult(
                        topic.name, [WritableTxnMarkerPartitionResult(index, code) for index in topic.partition_indexes]
                    )
                    for topic in asked.topics
                ],
            )
            for asked in message.markers
        ]
    )


APIS: Final[ApiTable] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(handle_add_partitions, refuse_add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(handle_add_offsets, refuse_add_offsets),
    ApiKey.END_TXN: Api(handle_end, refuse_end),
    ApiKey.WRITE_TXN_MARKERS: Api(handle_markers, refuse_markers),
}
