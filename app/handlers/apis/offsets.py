"""ListOffsets (key 2): the offset for a time, or for a named place (such as the start), across both tiers. OffsetForLeaderEpoch
(key 23, KIP-101 and KIP-320): where a leader epoch ended, so that clients can tell truncation.

A time is searched first in the object store's part of the log, by the time ranges of the manifest, and then in the local part.
Only such a search has to wait.

Tests: ``tests/handlers/test_small_apis.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from app.core.errors import ErrorCode, FirnError, RequestRejected, kafka_code
from app.core.units import LeaderEpoch, Offset, TimestampMs
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.partitions import check_epoch, led_in_epoch
from app.handlers.base.portions import Split
from app.handlers.base.request import Request
from app.handlers.base.views import OffsetsView
from app.wire.apikeys import ApiKey
from app.wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from app.wire.apis.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from app.hot.log import PartitionLog
    from app.replication.partition import Partition

    _Search = tuple[Partition, ListOffsetsPartition, ListOffsetsTopicResponse, int]

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
FIRST_VERSION: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The version that introduced each name; asked for in an older one it is UNSUPPORTED_VERSION."""
READ_COMMITTED: Final = 1
OFFSET_NOT_AVAILABLE_FROM: Final = 5
"""First version with that error (KIP-207)."""
DEBUGGING_CONSUMER: Final = -2
SEARCHING: Final = "searching by time in"
"""The name of this work in log lines about faults."""

Answer = ListOffsetsPartitionResponse


def handle(
    context: OffsetsView, request: Request, message: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Answer every partition; waits only if one of them asks for a time."""
    named: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in message.topics:
        for asked in topic.partitions:
            key = (topic.name, asked.partition_index)
            (twice if key in named else named).add(key)
    response = ListOffsetsResponse()
    searches: list[_Search] = []
    for topic in message.topics:
        answered = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answered)
        for asked in topic.partitions:
            if (topic.name, asked.partition_index) in twice:
                answered.partitions.append(_failed(asked, ErrorCode.INVALID_REQUEST))
                continue
            try:
                partition = _readable(context, message.replica_id, topic.name, asked)
                found = _lookup(context, request, message, partition, asked)
            except FirnError as error:
                context.faults.met_error(SEARCHING, f"{topic.name}-{asked.partition_index}", error)
                answered.partitions.append(_failed(asked, _code(request, error)))
                continue
            if found is None:
                searches.append((partition, asked, answered, len(answered.partitions)))
                answered.partitions.append(_failed(asked, ErrorCode.NONE))
            else:
                answered.partitions.append(found)
    if searches:
        return _search_all(context, request, message, response, searches)
    return response


def _readable(context: OffsetsView, replica_id: int, topic: str, asked: ListOffsetsPartition) -> Partition:
    """The partition, if its epoch is the client's. Followers answer Kafka's debugging consumer alone.

    A client that claims to be a broker (``replica_id`` is not negative) is answered as in Kafka, but sees no more than a consumer
    (INV-3): Firn's followers use Fetch alone. Raises: RequestRejected.
    """
    if replica_id != DEBUGGING_CONSUMER:
        return led_in_epoch(context, topic, asked.partition_index, asked.current_leader_epoch)
    partition = context.partitions.require_replica(topic, asked.partition_index)
    check_epoch(partition.reader_epoch, asked.current_leader_epoch)
    return partition


def _code(request: Request, error: FirnError) -> ErrorCode:
    """The error code for the version of the request: older versions have no code for an unknown end (KIP-207)."""
    code = kafka_code(error)
    if code is ErrorCode.OFFSET_NOT_AVAILABLE and request.api_version < OFFSET_NOT_AVAILABLE_FROM:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return code


def _end(message: ListOffsetsRequest, log: PartitionLog) -> Offset:
    """The end that a reader at the isolation level of the request sees."""
    return log.last_stable_offset if message.isolation_level == READ_COMMITTED else log.high_watermark


def _check_end_is_known(partition: Partition) -> None:
    """Raises: RequestRejected OFFSET_NOT_AVAILABLE (V5)."""
    if not partition.end_is_known:
        raise RequestRejected(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"The high watermark of {partition.topic}-{partition.index} has not reached the start of its leader's epoch.",
        )


def _lookup(
    context: OffsetsView,
    request: Request,
    message: ListOffsetsRequest,
    partition: Partition,
    asked: ListOffsetsPartition,
) -> Answer | None:
    """The answer that needs no search, or None. Raises: RequestRejected."""
    timestamp = asked.timestamp
    log = partition.log
    if request.api_version < FIRST_VERSION.get(timestamp, 0):
        raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION)
    match timestamp:
        case -1:
            _check_end_is_known(partition)
            return _at(log, asked, _end(message, log))
        case -2:
            return _at(log, asked, log.log_start_offset)
        case -4:
            return _at(log, asked, log.local_log_start_offset)
        case -5:
            end = context.remote_log_manager.tiered_end(log.topic_id, log.partition)
            if end is None or end <= log.log_start_offset:
                return Answer(asked.partition_index, timestamp=-1, offset=-1, leader_epoch=-1)
            return _at(log, asked, Offset(end - 1))
        case -6:
            end = context.remote_log_manager.tiered_end(log.topic_id, log.partition)
            return _at(log, asked, log.log_start_offset if end is None else max(end, log.log_start_offset))
        case -3:
            pass
        case _ if timestamp < 0:
            raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION)
    return None


def _at(log: PartitionLog, asked: ListOffsetsPartition, offset: Offset) -> Answer:
    """The answer for a named place. It has no timestamp, but the epoch in which its offset was, or will be, written."""
    return Answer(asked.partition_index, timestamp=-1, offset=offset, leader_epoch=log.epoch_of(offset))


def _of_record(
    message: ListOffsetsRequest,
    partition: Partition,
    asked: ListOffsetsPartition,
    found: tuple[TimestampMs, Offset] | None,
) -> Answer:
    """A record found by its time; above the reader's end it is not there yet. Raises: RequestRejected."""
    log = partition.log
    if found is None or found[1] >= _end(message, log):
        _check_end_is_known(partition)
        return Answer(asked.partition_index, timestamp=-1, offset=-1, leader_epoch=-1)
    return Answer(asked.partition_index, timestamp=found[0], offset=found[1], leader_epoch=log.epoch_of(found[1]))


def _failed(asked: ListOffsetsPartition, code: ErrorCode) -> Answer:
    return Answer(asked.partition_index, error_code=code, timestamp=-1, offset=-1, leader_epoch=-1)


async def _search_all(
    context: OffsetsView,
    request: Request,
    message: ListOffsetsRequest,
    response: ListOffsetsResponse,
    searches: list[_Search],
) -> ListOffsetsResponse:
    for partition, asked, answered, place in searches:
        log = partition.log
        try:
            if asked.timestamp == MAX_TIMESTAMP:
                found = await context.reads.max_timestamp_offset(log)
            else:
                found = await context.reads.offset_for_timestamp(log, TimestampMs(asked.timestamp))
            answered.partitions[place] = _of_record(message, partition, asked, found)
        except FirnError as error:
            context.faults.met_error(SEARCHING, str(log.topic_partition), error)
            answered.partitions[place] = _failed(asked, _code(request, error))
    return response


def refuse(request: Request, message: ListOffsetsRequest, code: ErrorCode, sentence: str) -> ListOffsetsResponse:
    del request, sentence
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=topic.name, partitions=[_failed(asked, code) for asked in topic.partitions])
            for topic in message.topics
        ]
    )


SPLIT: Final = Split(
    "topics", "topics", "partitions", "partitions",
    names=("name",), inner_name="partition_index", refuses_repeats=ErrorCode.INVALID_REQUEST, at_once=200,
)  # fmt: skip


# --- OffsetForLeaderEpoch ---------------------------------------------------------------------------------------------


def handle_epochs(
    context: OffsetsView, request: Request, message: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """For each partition the greatest epoch not above the one asked for, and the offset at which it ended."""
    del request
    topics = []
    for topic in message.topics:
        results = []
        for asked in topic.partitions:
            try:
                log = led_in_epoch(context, topic.topic, asked.partition, asked.current_leader_epoch).log
                epoch, end = context.reads.epoch_end(log, LeaderEpoch(asked.leader_epoch))
            except RequestRejected as error:
                results.append(EpochEndOffset(error_code=error.code, partition=asked.partition))
                continue
            results.append(EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)


def refuse_epochs(
    request: Request, message: OffsetForLeaderEpochRequest, code: ErrorCode, sentence: str
) -> OffsetForLeaderEpochResponse:
    del request, sentence
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[EpochEndOffset(error_code=code, partition=asked.partition) for asked in topic.partitions],
            )
            for topic in message.topics
        ]
    )


EPOCHS_SPLIT: Final = Split(
    "topics", "topics", "partitions", "partitions", names=("topic",), inner_name="partition", at_once=200
)

APIS: Final[ApiTable] = {
    ApiKey.LIST_OFFSETS: Api(handle, refuse, split=SPLIT),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(handle_epochs, refuse_epochs, split=EPOCHS_SPLIT),
}
