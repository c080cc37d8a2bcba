"""ListOffsets (key 2): the offset for a time, or for a named place (such as the start), across both tiers.

A time is searched first in the object store's part of the log, by the time ranges of the manifest, and then in the local part.
Only such a search has to wait.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from app.errors import ErrorCode, FirnError, RequestRejected, kafka_code
from app.handlers.api import Api, ApiTable
from app.handlers.context import Context, Request
from app.handlers.partitions import check_leader_epoch, check_reader, led_log
from app.units import Offset, TimestampMs
from app.wire.apikeys import ApiKey
from app.wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from app.hot.log import PartitionLog

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
FIRST_VERSION: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The version that introduced each name; asked for in an older one it is UNSUPPORTED_VERSION."""
READ_COMMITTED: Final = 1
SEARCHING: Final = "searching by time in"
"""As it is called in lines about faults."""

Answer = ListOffsetsPartitionResponse


def handle(
    context: Context, request: Request, message: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Answer every partition; waits only if one of them asks for a time."""
    named: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in message.topics:
        for asked in topic.partitions:
            key = (topic.name, asked.partition_index)
            (twice if key in named else named).add(key)
    response = ListOffsetsResponse()
    searches: list[tuple[PartitionLog, ListOffsetsPartition, ListOffsetsTopicResponse, int]] = []
    for topic in message.topics:
        answered = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answered)
        for asked in topic.partitions:
            if (topic.name, asked.partition_index) in twice:
                answered.partitions.append(_failed(asked, ErrorCode.INVALID_REQUEST))
                continue
            try:
                log = led_log(context, topic.name, asked.partition_index)
                check_leader_epoch(log, asked.current_leader_epoch)
                check_reader(log, message.replica_id, asked.current_leader_epoch)
                found = _lookup(context, request, message, log, asked)
            except FirnError as error:
                context.faults.met_error(SEARCHING, f"{topic.name}-{asked.partition_index}", error)
                answered.partitions.append(_failed(asked, kafka_code(error)))
                continue
            if found is None:
                searches.append((log, asked, answered, len(answered.partitions)))
                answered.partitions.append(_failed(asked, ErrorCode.NONE))
            else:
                answered.partitions.append(found)
    if searches:
        return _search_all(context, response, searches)
    return response


def _lookup(
    context: Context, request: Request, message: ListOffsetsRequest, log: PartitionLog, asked: ListOffsetsPartition
) -> Answer | None:
    """The answer that needs no search, or None. Raises: RequestRejected."""
    timestamp = asked.timestamp
    if request.api_version < FIRST_VERSION.get(timestamp, 0):
        raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION)
    match timestamp:
        case -1:
            committed = message.isolation_level == READ_COMMITTED
            return _at(log, asked, log.last_stable_offset if committed else log.high_watermark)
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


def _of_record(log: PartitionLog, asked: ListOffsetsPartition, found: tuple[TimestampMs, Offset] | None) -> Answer:
    """A record found by its time; above the high watermark it is not there yet."""
    if found is None or found[1] >= log.high_watermark:
        return Answer(asked.partition_index, timestamp=-1, offset=-1, leader_epoch=-1)
    return Answer(asked.partition_index, timestamp=found[0], offset=found[1], leader_epoch=log.epoch_of(found[1]))


def _failed(asked: ListOffsetsPartition, code: ErrorCode) -> Answer:
    return Answer(asked.partition_index, error_code=code, timestamp=-1, offset=-1, leader_epoch=-1)


async def _search_all(
    context: Context,
    response: ListOffsetsResponse,
    searches: list[tuple[PartitionLog, ListOffsetsPartition, ListOffsetsTopicResponse, int]],
) -> ListOffsetsResponse:
    for log, asked, answered, place in searches:
        try:
            if asked.timestamp == MAX_TIMESTAMP:
                found = await context.reads.max_timestamp_offset(log)
            else:
                found = await context.reads.offset_for_timestamp(log, TimestampMs(asked.timestamp))
        except FirnError as error:
            context.faults.met_error(SEARCHING, str(log.topic_partition), error)
            answered.partitions[place] = _failed(asked, kafka_code(error))
        else:
            answered.partitions[place] = _of_record(log, asked, found)
    return response


def refuse(request: Request, message: ListOffsetsRequest, code: ErrorCode, sentence: str) -> ListOffsetsResponse:
    del request, sentence
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=topic.name, partitions=[_failed(asked, code) for asked in topic.partitions])
            for topic in message.topics
        ]
    )


APIS: Final[ApiTable] = {ApiKey.LIST_OFFSETS: Api(handle, refuse)}
