"""The life of a transaction: AddPartitionsToTxn (key 24), AddOffsetsToTxn (25), EndTxn (26), WriteTxnMarkers (27).

InitProducerId, with which it begins, is in ``producer_ids.py``; partitions that are added by a Produce itself in ``admission.py``;
offsets that are committed in one in ``transactional_offsets.py``.

Tests: ``tests/transactions/test_requests.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from app.coordinator.topics import CONSUMER_OFFSETS, HTTP_REQUESTS, ensure_topic, partition_for
from app.core.errors import ErrorCode, FirnError, RequestRejected, kafka_code
from app.core.turns import Portion, slices
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TopicId, TopicPartition
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import may
from app.handlers.base.request import Request
from app.handlers.base.views import TransactionsView
from app.security.acls import Operation, ResourceType
from app.security.noting import note
from app.transactions.markers import Marker, check_still_coordinates
from app.transactions.state import VERSION_1, VERSION_2, ProducerIdentity, Transaction
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
from app.wire.schema import ZERO_UUID

BATCHED_FROM: Final = 4
"""First version of AddPartitionsToTxn for many transactions, which brokers send on behalf of producers (KIP-890)."""
FOR_BROKERS: Final[Mapping[ApiKey, int]] = {ApiKey.ADD_PARTITIONS_TO_TXN: BATCHED_FROM, ApiKey.WRITE_TXN_MARKERS: 0}
"""Versions from which on an API is for brokers, and WriteTxnMarkers for operators too."""
ADDED_WITHIN_S: Final = 5.0
"""A broker is answered after it, even if some of its partitions are not stored yet: other requests wait behind."""
MARKED_WITHIN_S: Final = 1.0
MARKED_BY_HAND_WITHIN_S: Final = 30.0
"""A coordinator is answered after it, even if some of its markers are not stored yet; an operator later."""
KNOWS_FENCED: Final = 2
"""First version of the three whose clients know PRODUCER_FENCED (KIP-588)."""
SECOND_PROTOCOL: Final = 5
"""First version of EndTxn in which the end of a transaction raises the epoch."""


def identity_of(message: AddOffsetsToTxnRequest | EndTxnRequest | AddPartitionsToTxnTransaction) -> ProducerIdentity:
    """The identity that a request claims."""
    return ProducerIdentity(ProducerId(message.producer_id), ProducerEpoch(message.producer_epoch))


def told(version: int, code: ErrorCode) -> ErrorCode:
    """A coordinator's refusal as a client of this version is to hear it."""
    if code is ErrorCode.PRODUCER_FENCED and version < KNOWS_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


# --- AddPartitionsToTxn -----------------------------------------------------------------------------------------------


ENDED_AT_ONCE: Final = 32
"""Transactions of one request from a broker whose waits may end in the same turn."""


async def handle_add_partitions(
    context: TransactionsView, request: Request, message: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions, or only check that they were added."""
    version = request.api_version
    portion = Portion()
    if version >= BATCHED_FROM:
        results = await _add_all(context, request, message.transactions, portion)
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    only = AddPartitionsToTxnTransaction(
        message.v3_and_below_transactional_id,
        message.v3_and_below_producer_id,
        message.v3_and_below_producer_epoch,
        topics=message.v3_and_below_topics,
    )
    codes = await _begin_to_add(context, request, only, portion)
    if isinstance(codes, _Adding):
        codes = await codes.codes()
    told_codes = {target: told(version, code) for target, code in codes.items()}
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=await _results_in_portions(only.topics, told_codes, portion)
    )


Codes = dict[TopicPartition, ErrorCode]


class _Adding(NamedTuple):
    """Partitions that were added, and are not stored yet."""

    added: Awaitable[Transaction]
    targets: list[TopicPartition]

    async def codes(self) -> Codes:
        """The result of each partition, when it is stored."""
        try:
            await self.added
        except RequestRejected as error:
            return dict.fromkeys(self.targets, error.code)
        return dict.fromkeys(self.targets, ErrorCode.NONE)

    def leave(self) -> None:
        """Do not wait for it."""
        if isinstance(self.added, Coroutine):
            self.added.close()


async def _add_all(
    context: TransactionsView, request: Request, transactions: Sequence[AddPartitionsToTxnTransaction], portion: Portion
) -> list[AddPartitionsToTxnResult]:
    """Serve all transactions of a broker's request.

    All have begun before it waits for one, and the time of all is up at the same time (ADR 0026, XV6).
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + ADDED_WITHIN_S
    begun: list[Codes | _Adding] = []
    results: list[AddPartitionsToTxnResult] = []
    left = 0
    try:
        for asked in transactions:
            begun.append(await _begin_to_add(context, request, asked, portion))
            await portion.rest_if_spent()
        for some in slices(transactions, ENDED_AT_ONCE):
            waits = {
                place: asyncio.ensure_future(one.codes())
                for place, one in enumerate(begun[left : left + len(some)])
                if isinstance(one, _Adding)
            }
            first, left = left, left + len(some)
            await _settle_within(until_s - loop.time(), waits.values())
            for place, asked in enumerate(some):
                codes = _codes_of(begun[first + place], waits.get(place))
                of_topics = await _results_in_portions(asked.topics, codes, portion)
                results.append(
                    AddPartitionsToTxnResult(asked.transactional_id, of_topics, _epoch(context, asked.transactional_id))
                )
        return results
    finally:
        for one in begun[left:]:
            if isinstance(one, _Adding):
                one.leave()


def _codes_of(begun: Codes | _Adding, wait: asyncio.Future[Codes] | None) -> Codes | None:
    """None: it is not known whether the partitions were added."""
    if not isinstance(begun, _Adding):
        return begun
    assert wait is not None
    return None if wait.cancelled() else wait.result()


async def _settle_within(limit_s: float, work: Collection[asyncio.Future[Any]]) -> None:
    """Wait for ``work`` up to a time limit. Futures that are not done then are cancelled. Each gets a turn, whatever the limit."""
    if not work:
        return
    try:
        await asyncio.sleep(0)
        await asyncio.wait(work, timeout=max(limit_s, 0.0))
    finally:
        late = [one for one in work if one.cancel()]
        if late:
            await asyncio.wait(late)


async def _begin_to_add(
    context: TransactionsView, request: Request, asked: AddPartitionsToTxnTransaction, portion: Portion
) -> Codes | _Adding:
    """Add, or check, the partitions of one transaction.

    The partitions are checked in portions, and added in one turn: all of them, or none.
    """
    topic_ids = {topic.name: topic.topic_id for topic in asked.topics}
    version = request.api_version
    by_broker = version >= FOR_BROKERS[ApiKey.ADD_PARTITIONS_TO_TXN]
    targets: list[TopicPartition] = []
    codes: Codes = {}
    for topic in asked.topics:
        for index in topic.partitions:
            target = TopicPartition(topic.name, PartitionIndex(index))
            targets.append(target)
            code = _unfit(context, request, target, topic_ids[target.topic], by_broker=by_broker)
            if code is not None:
                codes[target] = code
            if portion.spent_by():
                await portion.rest()
    if codes:
        # All or nothing. The partitions without an error of their own are answered with a code that says so.
        return {target: codes.get(target, ErrorCode.OPERATION_NOT_ATTEMPTED) for target in targets}
    if not asked.transactional_id:
        return dict.fromkeys(targets, ErrorCode.INVALID_REQUEST)
    if asked.verify_only:
        for target in targets:
            codes[target] = _verify(context, asked, target)
            if portion.spent_by():
                await portion.rest()
        return codes
    await portion.rest_if_spent()
    client_version = VERSION_2 if version >= BATCHED_FROM else VERSION_1
    try:
        added = context.transactions.add_partitions(asked.transactional_id, identity_of(asked), targets, client_version)
    except RequestRejected as error:
        return dict.fromkeys(targets, error.code)
    if isinstance(added, Transaction):
        return dict.fromkeys(targets, ErrorCode.NONE)
    return _Adding(added, targets)


def _epoch(context: TransactionsView, transactional_id: str) -> int:
    try:
        return context.transactions.epoch_of(transactional_id)
    except RequestRejected:
        return -1


def _unfit(
    context: TransactionsView, request: Request, target: TopicPartition, topic_id: UUID, *, by_broker: bool
) -> ErrorCode | None:
    """The error of a transaction that cannot write to a partition, or of a broker's partition that is unknown here (X5)."""
    if not by_broker and not may(context, request.caller, Operation.WRITE, ResourceType.TOPIC, target.topic):
        note(request, Operation.WRITE, ResourceType.TOPIC, target.topic)
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = context.image.topic(target.topic)
    if topic is None or not 0 <= target.partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_id not in (ZERO_UUID, topic.topic_id):
        return ErrorCode.INCONSISTENT_TOPIC_ID
    if by_broker and target.topic in (CONSUMER_OFFSETS.name, HTTP_REQUESTS.name):
        return None  # asked by the coordinator of the group, or of the keyed request
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic.is_internal else None


def _verify(context: TransactionsView, asked: AddPartitionsToTxnTransaction, target: TopicPartition) -> ErrorCode:
    try:
        context.transactions.check_partition(asked.transactional_id, identity_of(asked), target)
    except RequestRejected as error:
        return error.code
    return ErrorCode.NONE


async def _results_in_portions(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Codes | None, portion: Portion
) -> list[AddPartitionsToTxnTopicResult]:
    """``codes``: None if they are not known in time."""
    results = []
    for topic in topics:
        of_topic: list[AddPartitionsToTxnPartitionResult] = []
        for index in topic.partitions:
            late = ErrorCode.COORDINATOR_NOT_AVAILABLE
            code = late if codes is None else codes[TopicPartition(topic.name, PartitionIndex(index))]
            of_topic.append(AddPartitionsToTxnPartitionResult(index, code))
            if portion.spent_by():
                await portion.rest()
        results.append(AddPartitionsToTxnTopicResult(topic.name, of_topic))
        await portion.rest_if_spent()
    return results


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
    context: TransactionsView, request: Request, message: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the partition in which a group's offsets are committed. Raises: RequestRejected."""
    if not message.transactional_id:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "An empty transactional id.")
    try:
        topic = await ensure_topic(context.cluster, context.controller, CONSUMER_OFFSETS)
    except RequestRejected:
        raise
    except FirnError as error:
        raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
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


async def handle_end(context: TransactionsView, request: Request, message: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort. Raises: RequestRejected."""
    if not message.transactional_id:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "An empty transactional id.")
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
    context: TransactionsView, request: Request, message: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Write markers to partitions that this broker leads: for another broker's coordinator, or an operator (KIP-664)."""
    del request
    waiting: list[_Waiting] = []
    portion = Portion()
    response = WriteTxnMarkersResponse(
        markers=[await _write_marker(context, asked, waiting, portion) for asked in message.markers]
    )
    by_coordinator = any(topic.topic_id != ZERO_UUID for asked in message.markers for topic in asked.topics)
    limit_s = MARKED_WITHIN_S if by_coordinator else MARKED_BY_HAND_WITHIN_S
    await _settle_within(limit_s, [one.stored for one in waiting])
    for result, place, stored in waiting:
        if stored.cancelled():
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        elif (error := stored.exception()) is not None:
            if not isinstance(error, FirnError):
                raise error
            context.faults.met_error("writing markers to", place, error)
            result.error_code = kafka_code(error)
    return response


class _Waiting(NamedTuple):
    """The result of a partition whose log is not stored to its end yet."""

    result: WritableTxnMarkerPartitionResult
    place: str
    stored: asyncio.Future[None]


async def _write_marker(
    context: TransactionsView, asked: WritableTxnMarker, waiting: list[_Waiting], portion: Portion
) -> WritableTxnMarkerResult:
    """Append a marker to each partition. Adds the markers that must be stored before the response to ``waiting``."""
    marker = Marker(
        ProducerIdentity(ProducerId(asked.producer_id), ProducerEpoch(asked.producer_epoch)),
        asked.transaction_result,
        asked.coordinator_epoch,
        asked.transaction_version,
        bytes(asked.decision),
        asked.coordinator,
        asked.coordinator_leads_since,
    )
    markers = context.transactions.markers
    result = WritableTxnMarkerResult(asked.producer_id)
    for topic in asked.topics:
        answered = WritableTxnMarkerTopicResult(topic.name)
        result.topics.append(answered)
        for index in dict.fromkeys(topic.partition_indexes):
            of_partition = WritableTxnMarkerPartitionResult(index)
            answered.partitions.append(of_partition)
            target = TopicPartition(topic.name, PartitionIndex(index))
            try:
                check_still_coordinates(context.image, marker)
                stored = markers.write(marker, target, TopicId(topic.topic_id))
            except FirnError as error:
                context.faults.met_error("writing markers to", str(target), error)
                of_partition.error_code = kafka_code(error)
                # The newer epoch that refuses the marker may not be stored yet. The refusal is final for the coordinator (X8).
                final = of_partition.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
                stored = markers.refusal_stored(target) if final else None
            if stored is not None:
                waiting.append(_Waiting(of_partition, str(target), asyncio.ensure_future(stored)))
            if portion.spent():
                await portion.rest()
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
