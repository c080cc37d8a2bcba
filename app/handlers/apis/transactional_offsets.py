"""TxnOffsetCommit (key 28): offsets that count once their transaction is committed (KIP-98, KIP-447).

They are records of the group's partition of ``__consumer_offsets``, which the transaction has to know of as of any other
partition that it writes to (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
from app.handlers.clients.admission import ASK_AGAIN, SETTLE_WAIT_S, ask_elsewhere, check_guard, continues
from app.transactions.state import VERSION_2, ProducerIdentity, Transaction
from app.wire.apikeys import ApiKey
from app.wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from app.hot.log import PartitionLog
    from app.transactions.elsewhere import OtherBrokers

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
    transactional_id = message.transactional_id
    identity = ProducerIdentity(ProducerId(message.producer_id), ProducerEpoch(message.producer_epoch))
    transactions = context.transactions
    log = context.partitions.led_log(*target)
    entry = None if log is None else log.producers.entries.get(identity.producer_id)
    others = transactions.others
    try:
        if others is not None and log is not None and others.coordinator_of(transactional_id) is not None:
            await _ask(context, others, version, transactional_id, identity, log)
            return
        if version >= ADDS_PARTITIONS:
            await transactions.wait_settled(transactional_id, SETTLE_WAIT_S)
            added = transactions.add_partitions(transactional_id, identity, [target], VERSION_2)
            if not isinstance(added, Transaction):
                await added
        if version >= ADDS_PARTITIONS or context.effective.transaction_partition_verification_enable:
            seen_epoch = -1 if entry is None else entry.coordinator_epoch
            transactions.check_partition(transactional_id, identity, target, seen_epoch)
    except RequestRejected as error:
        if error.code is ErrorCode.PRODUCER_FENCED:
            raise RequestRejected(ErrorCode.INVALID_PRODUCER_EPOCH, str(error)) from error
        if error.code is ErrorCode.TRANSACTION_ABORTABLE and version < KNOWS_ABORTABLE:
            raise RequestRejected(ErrorCode.INVALID_TXN_STATE, str(error)) from error
        raise


async def _ask(
    context: TransactionsView,
    others: OtherBrokers,
    version: int,
    transactional_id: str,
    identity: ProducerIdentity,
    log: PartitionLog,
) -> None:
    """Ask a coordinator on another broker. When this returns, the offsets may be written at once (ADR 0026, XV5).

    Raises: RequestRejected.
    """
    adds = version >= ADDS_PARTITIONS
    if continues(log, identity) or not (adds or context.effective.transaction_partition_verification_enable):
        return
    try:
        guards = await ask_elsewhere(others, transactional_id, identity, [log], verify_only=not adds)
    except RequestRejected as error:
        if error.code not in ASK_AGAIN:
            raise
        # The client would take the other codes for errors of the group's coordinator, and look for another coordinator.
        raise RequestRejected(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
    guard = guards[log.topic_partition]
    try:
        check_guard(log, identity, guard)
    finally:
        log.producers.release(guard)


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
