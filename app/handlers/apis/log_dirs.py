"""DescribeLogDirs (key 35): the local part of the log, by partition. AlterReplicaLogDirs (34): a broker has one directory, so that
nothing moves. DeleteRecords (21): a later start of the log.

Tests: ``tests/handlers/test_admin_log_dirs.py``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from app.core.errors import ErrorCode, FirnError, RequestRejected, StorageUnavailable, kafka_code
from app.core.turns import Portion, ordered
from app.core.units import Offset, PartitionIndex, TopicIdPartition
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.mutations import Refusal, each
from app.handlers.base.partitions import check_writable
from app.handlers.base.request import Request
from app.handlers.base.views import DisksView
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from app.wire.apis.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from app.wire.apis.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from app.hot.log import PartitionLog

FUTURE_SUFFIX_CHARS: Final = len(".") + 32 + len("-future")
"""Length of the suffix that Kafka appends to a partition's folder while it copies the partition to another directory."""
FILE_NAME_CHARS_MAX: Final = 255
TO_HIGH_WATERMARK: Final = -1
"""As an offset of DeleteRecords: everything that consumers can see."""
NOTHING_DELETED: Final = -1
"""As the low watermark of a partition where it failed."""


async def describe_log_dirs(
    context: DisksView, request: Request, message: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """The one log directory, with the local bytes (not the tiered ones) of each partition asked for; null asks for all."""
    del request
    portion = Portion()
    if message.topics is None:
        logs = context.logs.logs()
    else:
        found: dict[tuple[str, int], PartitionLog] = {}
        for asked in message.topics:
            for index in asked.partitions:
                log = context.logs.get(asked.topic, index)
                if log is not None:
                    found[asked.topic, index] = log
                if portion.spent_by():
                    await portion.rest()
            if portion.spent_by():
                await portion.rest()
        logs = list(found.values())
    topics: dict[str, DescribeLogDirsTopic] = {}
    for log in await ordered(logs, portion, key=lambda log: (log.topic, log.partition)):
        topic = topics.setdefault(log.topic, DescribeLogDirsTopic(name=log.topic))
        topic.partitions.append(DescribeLogDirsPartition(partition_index=log.partition, partition_size=log.size_bytes))
        if portion.spent_by():
            await portion.rest()
    result = DescribeLogDirsResult(log_dir=context.logs.data_dir, topics=list(topics.values()))
    if context.logs.offline_reason is not None:
        result.error_code, result.topics = ErrorCode.KAFKA_STORAGE_ERROR, []
    else:
        try:
            result.total_bytes, result.usable_bytes = context.logs.total_bytes(), context.logs.free_bytes()
        except StorageUnavailable as error:
            result.error_code = kafka_code(error)
    return DescribeLogDirsResponse(results=[result])


def refuse_describe_log_dirs(
    request: Request, message: DescribeLogDirsRequest, code: ErrorCode, sentence: str
) -> DescribeLogDirsResponse:
    del request, message, sentence
    return DescribeLogDirsResponse(error_code=code)


# --- AlterReplicaLogDirs --------------------------------------------------------------------------------------------


async def alter_replica_log_dirs(
    context: DisksView, request: Request, message: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Whether each partition is in the directory that it is to be in (KIP-113). Kafka's answer of a broker with one directory.

    A partition that is named several times is answered once, for the last path.
    """
    del request
    portion = Portion()
    wanted: dict[tuple[str, int], str] = {}
    for directory in message.dirs:
        for topic in directory.topics:
            for partition in topic.partitions:
                wanted[topic.name, partition] = directory.path
                if portion.spent_by():
                    await portion.rest()
            if portion.spent_by():
                await portion.rest()
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for (name, index), path in wanted.items():
        _note_moved(topics, name, index, _placed(context, name, index, path))
        if portion.spent_by():
            await portion.rest()
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _placed(context: DisksView, topic: str, index: int, path: str) -> ErrorCode:
    if len(f"{topic}-{index}") + FUTURE_SUFFIX_CHARS > FILE_NAME_CHARS_MAX:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if path != context.logs.data_dir:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if context.logs.offline_reason is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    found = context.image.topic(topic)
    if found is None or not 0 <= index < len(found.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if context.node_id not in found.partitions[index].replicas:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    if TopicIdPartition(found.topic_id, PartitionIndex(index)) in context.partitions.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE


def _note_moved(topics: dict[str, AlterReplicaLogDirTopicResult], topic: str, index: int, code: ErrorCode) -> None:
    result = topics.get(topic)
    if result is None:
        result = topics[topic] = AlterReplicaLogDirTopicResult(topic_name=topic)
    result.partitions.append(AlterReplicaLogDirPartitionResult(index, code))


def refuse_alter_replica_log_dirs(
    request: Request, message: AlterReplicaLogDirsRequest, code: ErrorCode, sentence: str
) -> AlterReplicaLogDirsResponse:
    del request, sentence
    asked = [topic for directory in message.dirs for topic in directory.topics]
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for name, index in dict.fromkeys((topic.name, partition) for topic in asked for partition in topic.partitions):
        _note_moved(topics, name, index, code)
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


# --- DeleteRecords --------------------------------------------------------------------------------------------------


async def delete_records(context: DisksView, request: Request, message: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Raise the log start of each partition to an offset at or below its high watermark; answers the new start.

    The new start is in the manifest when this answers, and followers that are in sync have it; if not in time, the answer is
    REQUEST_TIMED_OUT, and they will learn it. Segments below it go in the background.
    """
    del request
    deadline_s = asyncio.get_running_loop().time() + max(message.timeout_ms, 0) / 1000
    asked = [(topic.name, partition) for topic in message.topics for partition in topic.partitions]

    async def delete(item: tuple[str, DeleteRecordsPartition]) -> Offset:
        name, partition = item
        check_writable(context, name)
        led = context.partitions.require(name, partition.partition_index)
        log = led.log
        offset = _new_start(log, partition.offset)
        if offset > log.log_start_offset:
            await context.remote_log_manager.advance_log_start(log.topic_id, log.partition, offset)
        if led.counting is not None:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await led.wait_log_start(min(offset, log.log_start_offset))
            except TimeoutError:
                raise RequestRejected(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{name}-{partition.partition_index} begins at {offset}, but not on all replicas yet.",
                ) from None
        return log.log_start_offset

    answers = iter(await each(asked, delete, refuse=_refusal))
    topics = []
    for topic in message.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        topics.append(result)
        for partition in topic.partitions:
            answer = next(answers)
            if isinstance(answer, Refusal):
                outcome = DeleteRecordsPartitionResult(partition.partition_index, NOTHING_DELETED, answer.code)
            else:
                outcome = DeleteRecordsPartitionResult(partition.partition_index, answer)
            result.partitions.append(outcome)
    return DeleteRecordsResponse(topics=topics)


def _refusal(error: FirnError) -> Refusal:
    return Refusal(kafka_code(error), str(error))


def _new_start(log: PartitionLog, offset: int) -> Offset:
    """Where the log shall begin. Raises: RequestRejected POLICY_VIOLATION, OFFSET_OUT_OF_RANGE."""
    if "delete" not in log.config.cleanup_policy and log.config.compacted:
        raise RequestRejected(ErrorCode.POLICY_VIOLATION, f"{log.topic} is compacted: its records cannot be deleted.")
    if offset == TO_HIGH_WATERMARK:
        return log.high_watermark
    if not 0 <= offset <= log.high_watermark:
        raise RequestRejected(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{log.topic}-{log.partition} has no offset {offset}: its high watermark is {log.high_watermark}.",
        )
    return Offset(offset)


def refuse_delete_records(
    request: Request, message: DeleteRecordsRequest, code: ErrorCode, sentence: str
) -> DeleteRecordsResponse:
    del request, sentence
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(partition.partition_index, NOTHING_DELETED, code)
                    for partition in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


APIS: Final[ApiTable] = {
    ApiKey.DESCRIBE_LOG_DIRS: Api(describe_log_dirs, refuse_describe_log_dirs),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(alter_replica_log_dirs, refuse_alter_replica_log_dirs),
    ApiKey.DELETE_RECORDS: Api(delete_records, refuse_delete_records),
}
