"""OffsetForLeaderEpoch (key 23, KIP-101 and KIP-320): where a leader epoch ended, so that clients can tell truncation."""

from __future__ import annotations

from typing import Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import LeaderEpoch
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.context import Context, Request
from app.handlers.base.partitions import led_in_epoch
from app.handlers.base.portions import Split
from app.wire.apikeys import ApiKey
from app.wire.apis.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)


def handle(context: Context, request: Request, message: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
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


def refuse(
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


SPLIT: Final = Split(
    "topics", "topics", "partitions", "partitions", names=("topic",), inner_name="partition", at_once=200
)

APIS: Final[ApiTable] = {ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(handle, refuse, split=SPLIT)}
