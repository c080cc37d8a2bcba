"""TxnOffsetCommit (key 28): offsets that count once their transaction is committed (KIP-98, KIP-447).

They are records of the group's partition of ``__consumer_offsets``, which the transaction has to know of as of any other
partition that it writes to (KIP-890).

Tests: ``tests/transactions/test_requests.py``, ``tests/transactions/test_model.py``.
"""

from __future__ import annotations

from typing import Final

from app.coordinator.partition import ProducerIdAndEpoch
from app.coordinator.topics import CONSUMER_OFFSETS
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import Portion
from app.core.units import ProducerEpoch, ProducerId, TopicPartition
from app.groups.shard import CommittedPartition
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.commits import COMMITS, check_count, sort_partitions
from app.handlers.base.request import Request
from app.handlers.base.views import TransactionsView
from app.handlers.clients.admission import admit_record
from app.transactions.state import ProducerIdentity
from app.wire.apikeys import ApiKey
from app.wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ADDS_PARTITIONS: Final = 5
"""First version whose clients leave it to the broker to add the group's partition."""
KNOWS_ABORTABLE: Final = 4
"""First version whose clients know TRANSACTION_ABORTABLE."""


async def handle(
    context: TransactionsView, request: Request, message: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Commit offsets of existing partitions whose metadata is not too long. The others are refused one by one.

    Raises: RequestRejected for the request as a whole.
    """
    if not message.transactional_id:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "An empty transactional id.")
    portion = Portion()
    commits, response = await _sort(context, message, portion)
    await portion.rest_if_spent()
    if not commits:
        return response  # there is nothing that the transaction or the group would be asked of
    target = TopicPartition(CONSUMER_OFFSETS.name, context.groups.partition_of(message.group_id))
    await _admit(context, request.api_version, message, target)
    waiting = context.groups.commit(
        message.group_id,
        message.member_id,
        message.group_instance_id,
        message.generation_id,
        commits,
        api_version=request.api_version,
        producer=ProducerIdAndEpoch(ProducerId(message.producer_id), ProducerEpoch(message.producer_epoch)),
    )
    if waiting is not None:
        await waiting
    return response


async def _admit(
    context: TransactionsView, version: int, message: TxnOffsetCommitRequest, target: TopicPartition
) -> None:
    """Add the group's partition to the transaction. Raises: RequestRejected if it may not."""
    identity = ProducerIdentity(ProducerId(message.producer_id), ProducerEpoch(message.producer_epoch))
    try:
        await admit_record(context, message.transactional_id, identity, target, adds=version >= ADDS_PARTITIONS)
    except RequestRejected as error:
        if error.code is ErrorCode.TRANSACTION_ABORTABLE and version < KNOWS_ABORTABLE:
            raise RequestRejected(ErrorCode.INVALID_TXN_STATE, str(error)) from error
        raise


async def _sort(
    context: TransactionsView, message: TxnOffsetCommitRequest, portion: Portion
) -> tuple[list[tuple[str, list[CommittedPartition]]], TxnOffsetCommitResponse]:
    """The offsets to commit, and the response once they are committed."""
    metadata_max = context.config.offset_metadata_max_bytes
    commits: list[tuple[str, list[CommittedPartition]]] = []
    response = TxnOffsetCommitResponse()
    for topic in message.topics:
        known = context.image.topic(topic.name)
        partitions_count = 0 if known is None else len(known.partitions)
        codes, taken = sort_partitions(topic.partitions, partitions_count, metadata_max)
        if taken is not None:
            commits.append((topic.name, taken))
        answers = [
            TxnOffsetCommitResponsePartition(asked.partition_index, code)
            for asked, code in zip(topic.partitions, codes, strict=True)
        ]
        response.topics.append(TxnOffsetCommitResponseTopic(topic.name, answers))
        if portion.spent_by(1 + len(answers)):
            await portion.rest()
    return commits, response


def refuse(
    request: Request, message: TxnOffsetCommitRequest, code: ErrorCode, sentence: str
) -> TxnOffsetCommitResponse:
    del request, sentence
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                topic.name,
                [TxnOffsetCommitResponsePartition(asked.partition_index, code) for asked in topic.partitions],
            )
            for topic in message.topics
        ]
    )


APIS: Final[ApiTable] = {ApiKey.TXN_OFFSET_COMMIT: Api(handle, refuse, before=check_count, split=COMMITS)}
