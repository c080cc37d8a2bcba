"""Begins and ends transactions of a producer (KIP-98, KIP-890), and tells of those of others (KIP-664).

A ``Producer`` writes the records of a transaction. Another process may end it.

A transaction is known by its transactional id, producer id and epoch. Each process that has the three may end it. A partition
joins it at the first write to it (Produce 12 and later, KIP-890). So a transaction without records need not be ended.

Tests: ``tests/client/test_transactional_batches.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from app.client.cluster import ClusterClient, check_code, refusal
from app.client.connection import KafkaConnection
from app.client.retry import NO_SHORTER, retrying
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.core.turns import Portion, each, slices
from app.core.units import BrokerId, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_producers import DescribeProducersRequest, ProducerState, TopicRequest
from app.wire.apis.describe_transactions import DescribeTransactionsRequest, TransactionState
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.list_transactions import ListTransactionsRequest

TRANSACTION_KEY: Final = 1
"""Kind of key of FindCoordinator."""
ONGOING: Final = "Ongoing"
"""The state that DescribeTransactions gives a transaction that has records and has not ended."""
OPEN_STATES: Final = (ONGOING, "PrepareCommit", "PrepareAbort")
"""The states of transactions that readers of committed records wait for."""
DESCRIBED_AT_ONCE: Final = 200
"""Transactions of one request."""
COORDINATORS_MAX: Final = 1_024
"""Transactional ids of one client whose coordinator it keeps in mind."""

T = TypeVar("T")


class Transaction(NamedTuple):
    """An open transaction."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


async def begin_transaction(
    cluster: ClusterClient, transactional_id: str, *, timeout_ms: int, busy_ms: int | None = None, once: bool = False
) -> Transaction:
    """A new transaction; an earlier one of the same id is aborted, and its producer fenced.

    The broker aborts it ``timeout_ms`` after its first record if no process has ended it by then. ``busy_ms``: how long to try
    while the last transaction of the id is still being ended; None is as long as for other failures. ``once``: try nothing again.
    Raises: RequestRejected, BrokerUnavailable.
    """

    async def ask(connection: KafkaConnection) -> Transaction:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        answer = await connection.request(ApiKey.INIT_PRODUCER_ID, request, timeout_ms=cluster.request_timeout_ms)
        check_code(answer.error_code, None, f"transaction {transactional_id}")
        return Transaction(transactional_id, ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))

    return await _asked(cluster, transactional_id, ask, busy(busy_ms), budget_ms=0 if once else None)


async def end_transaction(cluster: ClusterClient, transaction: Transaction, *, commit: bool) -> Transaction:
    """Commit or abort. Doing so again succeeds if it ended the same way. Returns: the identity for the next transaction of the id.

    Raises: RequestRejected (it ended the other way, or its time was over), BrokerUnavailable (try again).
    """

    async def ask(connection: KafkaConnection) -> Transaction:
        request = EndTxnRequest(*transaction, committed=commit)
        answer = await connection.request(ApiKey.END_TXN, request, timeout_ms=cluster.request_timeout_ms)
        check_code(answer.error_code, None, f"transaction {transaction.transactional_id}")
        if answer.producer_id < 0:
            return transaction  # the first protocol, in which a producer keeps its epoch
        return Transaction(
            transaction.transactional_id, ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch)
        )

    return await _asked(cluster, transaction.transactional_id, ask)


async def is_open(cluster: ClusterClient, transaction: Transaction) -> bool:
    """Whether a transaction has records and is neither ended nor aborted by its time-out (KIP-664).

    Raises: RequestRejected, BrokerUnavailable.
    """

    async def ask(connection: KafkaConnection) -> bool:
        request = DescribeTransactionsRequest(transactional_ids=[transaction.transactional_id])
        answer = await connection.request(ApiKey.DESCRIBE_TRANSACTIONS, request, timeout_ms=cluster.request_timeout_ms)
        (found,) = answer.transaction_states
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return False
        check_code(found.error_code, None, f"transaction {transaction.transactional_id}")
        owner = (found.producer_id, found.producer_epoch)
        return found.transaction_state == ONGOING and owner == (transaction.producer_id, transaction.producer_epoch)

    return await _asked(cluster, transaction.transactional_id, ask)


def busy(limit_ms: int | None) -> Mapping[ErrorCode, int]:
    """``shorter_ms`` of ``retrying``: how long to try while the last transaction of an id is still being ended."""
    return NO_SHORTER if limit_ms is None else {ErrorCode.CONCURRENT_TRANSACTIONS: limit_ms}


async def _asked(
    cluster: ClusterClient,
    transactional_id: str,
    ask: Callable[[KafkaConnection], Awaitable[T]],
    shorter_ms: Mapping[ErrorCode, int] = NO_SHORTER,
    budget_ms: int | None = None,
) -> T:
    """The response of the coordinator, which is looked for anew after a failure. Raises: RequestRejected, BrokerUnavailable."""

    async def attempt() -> T:
        try:
            return await ask(await _coordinator(cluster, transactional_id))
        except RequestRejected as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                cluster.coordinators.pop(transactional_id, None)
            raise
        except BrokerUnavailable:
            _forget_broker_of(cluster, transactional_id)
            raise

    budget_ms = cluster.retry_budget_ms if budget_ms is None else budget_ms
    return await retrying(attempt, rng=cluster.rng, budget_ms=budget_ms, shorter_ms=shorter_ms)


def _forget_broker_of(cluster: ClusterClient, transactional_id: str) -> None:
    """A broker could not be reached: it may coordinate none of its ids any more."""
    node = cluster.coordinators.get(transactional_id)
    for one in [one for one, at in cluster.coordinators.items() if at == node]:
        del cluster.coordinators[one]


async def _coordinator(cluster: ClusterClient, transactional_id: str) -> KafkaConnection:
    kept = cluster.coordinators.get(transactional_id)
    if kept is not None and kept in cluster.view.brokers:
        return await cluster.broker(kept)
    node_id = await _coordinator_id(cluster, transactional_id)
    if node_id not in cluster.view.brokers:
        await cluster.refresh()
    connection = await cluster.broker(node_id)
    known = cluster.coordinators
    if len(known) >= COORDINATORS_MAX:
        del known[next(iter(known))]
    known[transactional_id] = node_id
    return connection


async def _coordinator_id(cluster: ClusterClient, transactional_id: str) -> BrokerId:
    broker = await cluster.any_broker()
    request = FindCoordinatorRequest(
        key=transactional_id, key_type=TRANSACTION_KEY, coordinator_keys=[transactional_id]
    )
    answer = await broker.request(ApiKey.FIND_COORDINATOR, request, timeout_ms=cluster.request_timeout_ms)
    found = answer.coordinators[0] if answer.coordinators else answer
    if found.error_code != ErrorCode.NONE:
        raise refusal(found.error_code, f"the coordinator of {transactional_id}")
    return BrokerId(found.node_id)


class ListedTransaction(NamedTuple):
    """A transaction that a broker coordinates."""

    transactional_id: str
    state: str


class DescribedTransaction(NamedTuple):
    """A transaction with its partitions."""

    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    """-1 if it has no records yet."""
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


class TransactionRow(NamedTuple):
    """A transaction of a list, which may be long: without its partitions, of which each may have thousands."""

    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    """-1 if it has no records yet."""
    producer_id: int
    producer_epoch: int
    partition_count: int


class ActiveProducer(NamedTuple):
    """A producer that a partition knows."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    open_from: int
    """The first offset of its open transaction; -1 if there is none."""


async def transactions_at(
    connection: KafkaConnection, *, states: Sequence[str] = OPEN_STATES, older_ms: int = -1
) -> list[ListedTransaction]:
    """The transactions in some states that one broker coordinates and the caller may see, of those the ones that have been open for
    longer than ``older_ms`` (KIP-664, KIP-994). Raises: RequestRejected, BrokerUnavailable."""
    request = ListTransactionsRequest(state_filters=[*states], duration_filter=older_ms)
    answer = await connection.request(ApiKey.LIST_TRANSACTIONS, request)
    check_code(answer.error_code, None, "transactions")
    found: list[ListedTransaction] = []
    await each(
        lambda one: found.append(ListedTransaction(one.transactional_id, one.transaction_state)),
        answer.transaction_states,
    )
    return found


async def described_transactions(connection: KafkaConnection, transactional_ids: Sequence[str]) -> list[TransactionRow]:
    """Transactions that one broker coordinates. Those that are gone by now, or that the caller may not see, are left out. Raises:
    BrokerUnavailable."""
    found = []
    portion = Portion()
    for some in slices(transactional_ids, DESCRIBED_AT_ONCE):
        request = DescribeTransactionsRequest(transactional_ids=[*some])
        answer = await connection.request(ApiKey.DESCRIBE_TRANSACTIONS, request)
        for one in answer.transaction_states:
            if one.error_code == ErrorCode.NONE:
                found.append(_row(one))
            await portion.rest_if_spent()
    return found


async def described_transaction(connection: KafkaConnection, transactional_id: str) -> DescribedTransaction:
    """One transaction that the broker coordinates. Raises: RequestRejected (TRANSACTIONAL_ID_NOT_FOUND,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED…), BrokerUnavailable."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer = await connection.request(ApiKey.DESCRIBE_TRANSACTIONS, request)
    (found,) = answer.transaction_states
    check_code(found.error_code, None, f"transaction {transactional_id}")
    return await _described(found)


def _row(one: TransactionState) -> TransactionRow:
    return TransactionRow(
        one.transactional_id,
        one.transaction_state,
        one.transaction_timeout_ms,
        one.transaction_start_time_ms,
        one.producer_id,
        one.producer_epoch,
        sum(len(topic.partitions) for topic in one.topics),
    )


async def _described(one: TransactionState) -> DescribedTransaction:
    partitions: list[TopicPartition] = []
    portion = Portion()
    for topic in one.topics:
        for partition in topic.partitions:
            partitions.append(TopicPartition(topic.topic, PartitionIndex(partition)))
            if portion.spent_by():
                await portion.rest()
    return DescribedTransaction(
        one.transactional_id,
        one.transaction_state,
        one.transaction_timeout_ms,
        one.transaction_start_time_ms,
        one.producer_id,
        one.producer_epoch,
        tuple(partitions),
    )


async def active_producers(
    connection: KafkaConnection, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, list[ActiveProducer]]:
    """The producers of some partitions that one broker leads. Partitions that it cannot tell of are left out. Raises:
    RequestRejected TOPIC_AUTHORIZATION_FAILED, BrokerUnavailable."""
    by_topic: dict[str, TopicRequest] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, TopicRequest(partition.topic)).partition_indexes.append(
            partition.partition
        )
    answer = await connection.request(ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest([*by_topic.values()]))
    found: dict[TopicPartition, list[ActiveProducer]] = {}
    for topic in answer.topics:
        for told in topic.partitions:
            if told.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise refusal(told.error_code, f"topic {topic.name}", told.error_message)
            if told.error_code:
                continue
            own = found[TopicPartition(topic.name, PartitionIndex(told.partition_index))] = []
            await each(own.append, map(_active, told.active_producers))
    return found


def _active(one: ProducerState) -> ActiveProducer:
    return ActiveProducer(
        one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp, one.current_txn_start_offset
    )


async def transaction_coordinator(cluster: ClusterClient, transactional_id: str) -> BrokerId:
    """The broker that coordinates a transactional id. Raises: RequestRejected, BrokerUnavailable."""
    return await retrying(
        lambda: _coordinator_id(cluster, transactional_id), rng=cluster.rng, budget_ms=cluster.retry_budget_ms
    )
