"""Views of transactions. KIP-664: DescribeProducers (key 61), DescribeTransactions (65), ListTransactions (66).

``handle_look`` reports this broker's transactions to a coordinator whose log may lack its end (ADR 0037, J46).

Tests: ``tests/transactions/test_requests.py``, ``tests/handlers/test_repeats.py``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from app.core.errors import ErrorCode, FirnError, RequestRejected, kafka_code
from app.core.turns import Portion, ordered
from app.core.units import TopicPartition
from app.groups.consumer.subscriptions import TopicPattern
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.partitions import led_log
from app.handlers.base.portions import Split
from app.handlers.base.request import Request
from app.handlers.base.views import TransactionsView
from app.metadata.peers.control import LookRequest, LookResponse
from app.transactions.state import Transaction, TransactionState
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from app.wire.apis.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from app.wire.apis.describe_transactions import TransactionState as DescribedTransaction
from app.wire.apis.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from app.wire.apis.list_transactions import TransactionState as ListedTransaction
from app.wire.private import pack, unpack

NO_FILTER: Final = -1
STATE_NAMES: Final = frozenset({*(state.title for state in TransactionState), "Dead", "PrepareEpochFence"})
"""The states of the filter. No transaction is ever seen in the last two here."""


# --- DescribeTransactions ---------------------------------------------------------------------------------------------


async def handle_describe(
    context: TransactionsView, request: Request, message: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """State, owner and partitions of each id."""
    del request
    portion = Portion()
    states = []
    for transactional_id in dict.fromkeys(message.transactional_ids):
        states.append(await _describe(context, transactional_id, portion))
        await portion.rest_if_spent()
    return DescribeTransactionsResponse(transaction_states=states)


async def _describe(context: TransactionsView, transactional_id: str, portion: Portion) -> DescribedTransaction:
    try:
        if not transactional_id:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "An empty transactional id.")
        return await _described(await context.transactions.describe(transactional_id), portion)
    except RequestRejected as error:
        return _not_described(transactional_id, error.code)


async def _described(transaction: Transaction, portion: Portion) -> DescribedTransaction:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in await ordered(transaction.partitions, portion, key=_itself):
        by_topic[topic].append(partition)
    return DescribedTransaction(
        transactional_id=transaction.transactional_id,
        transaction_state=transaction.state.title,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[TopicData(topic, partitions) for topic, partitions in by_topic.items()],
    )


def _itself(partition: TopicPartition) -> TopicPartition:
    return partition


def _not_described(transactional_id: str, code: ErrorCode) -> DescribedTransaction:
    return DescribedTransaction(error_code=code, transactional_id=transactional_id)


def refuse_describe(
    request: Request, message: DescribeTransactionsRequest, code: ErrorCode, sentence: str
) -> DescribeTransactionsResponse:
    del request, sentence
    return DescribeTransactionsResponse(
        transaction_states=[_not_described(each, code) for each in message.transactional_ids]
    )


# --- ListTransactions -------------------------------------------------------------------------------------------------


async def handle_list(
    context: TransactionsView, request: Request, message: ListTransactionsRequest
) -> ListTransactionsResponse:
    """The transactions coordinated here that pass all filters.

    Raises: RequestRejected COORDINATOR_LOAD_IN_PROGRESS, INVALID_REGULAR_EXPRESSION.
    """
    del request
    pattern = TopicPattern(message.transactional_id_pattern) if message.transactional_id_pattern else None
    states = set(message.state_filters)
    producer_ids = set(message.producer_id_filters)
    latest_start_ms = context.clock.now_ms() - message.duration_filter

    def passes(transaction: Transaction) -> bool:
        return (
            (not states or transaction.state.title in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (message.duration_filter <= NO_FILTER or transaction.started_ms < latest_start_ms)
            and (pattern is None or pattern.matches(transaction.transactional_id))
        )

    found: list[Transaction] = []
    portion = Portion()
    for some in context.transactions.all():
        for transaction in tuple(some):
            if passes(transaction):
                found.append(transaction)
            if portion.spent() if pattern is not None else portion.spent_by():
                await portion.rest()
    listed = []
    for transaction in found:
        listed.append(ListedTransaction(transaction.transactional_id, transaction.producer_id, transaction.state.title))
        if portion.spent_by():
            await portion.rest()
    return ListTransactionsResponse(
        unknown_state_filters=sorted(states - STATE_NAMES),
        transaction_states=listed,
    )


def refuse_list(
    request: Request, message: ListTransactionsRequest, code: ErrorCode, sentence: str
) -> ListTransactionsResponse:
    del request, message, sentence
    return ListTransactionsResponse(error_code=code)


# --- DescribeProducers ------------------------------------------------------------------------------------------------


async def handle_producers(
    context: TransactionsView, request: Request, message: DescribeProducersRequest
) -> DescribeProducersResponse:
    """The producers of each partition, and the first offsets of their open transactions."""
    del request
    portion = Portion()
    topics = []
    for topic in message.topics:
        partitions = [
            await _producers(context, topic.name, index, portion) for index in dict.fromkeys(topic.partition_indexes)
        ]
        topics.append(TopicResponse(topic.name, partitions))
    return DescribeProducersResponse(topics=topics)


async def _producers(context: TransactionsView, topic: str, index: int, portion: Portion) -> PartitionResponse:
    try:
        log = led_log(context, topic, index)
    except FirnError as error:
        return PartitionResponse(index, kafka_code(error), str(error))
    response = PartitionResponse(index)
    entries = log.producers.entries
    for producer_id in tuple(entries):
        entry = entries.get(producer_id)
        if entry is not None:  # it may have expired during a rest
            response.active_producers.append(
                ProducerState(
                    producer_id,
                    entry.epoch,
                    entry.last_sequence,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    entry.transaction_first_offset,
                )
            )
        if portion.spent_by():
            await portion.rest()
            # Only the leader tells, and of this log alone.
            try:
                if led_log(context, topic, index) is not log:
                    return PartitionResponse(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} has a new log.")
            except FirnError as error:
                return PartitionResponse(index, kafka_code(error), str(error))
    return response


def refuse_producers(
    request: Request, message: DescribeProducersRequest, code: ErrorCode, sentence: str
) -> DescribeProducersResponse:
    del request
    return DescribeProducersResponse(
        topics=[
            TopicResponse(topic.name, [PartitionResponse(index, code, sentence) for index in topic.partition_indexes])
            for topic in message.topics
        ]
    )


# --- looks of a coordinator -------------------------------------------------------------------------------------------


async def handle_look(context: TransactionsView, request: Request, message: bytes) -> bytes:
    """Return the partitions that this broker leads, with the open transactions there, or with the state of the named transactions.

    Raises: FirnError if something cannot be read now.
    """
    del request
    asked = unpack(LookRequest, message)
    if asked.cluster_id != context.image.cluster_id:
        return pack(LookResponse(int(ErrorCode.INCONSISTENT_CLUSTER_ID)))
    if context.image.sequence < asked.sequence:
        # By an older image this broker may take markers of a coordinator that was replaced.
        return pack(LookResponse(int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)))
    return pack(await context.transactions.look(asked))


def refuse_look(request: Request, message: object, code: ErrorCode, why: str) -> None:
    return None


APIS: Final[ApiTable] = {
    ApiKey.DESCRIBE_PRODUCERS: Api(
        handle_producers,
        refuse_producers,
        split=Split("topics", "topics", "partition_indexes", "partitions", names=("name",)),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(handle_describe, refuse_describe),
    ApiKey.LIST_TRANSACTIONS: Api(handle_list, refuse_list),
    ApiKey.FIRN_TRANSACTIONS: Api(handle_look, refuse_look),
}
