"""Begins and ends transactions of a producer (KIP-98, KIP-890). A ``Producer`` writes their records. Another process may end them.

A transaction is known by its transactional id, producer id and epoch. Each process that has the three may end it. A partition
joins it at the first write to it (Produce 12 and later, KIP-890). So a transaction without records need not be ended.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from app.client.cluster import ClusterClient, check_code, refusal
from app.client.connection import KafkaConnection
from app.client.retry import retrying
from app.core.errors import ErrorCode
from app.core.units import BrokerId, ProducerEpoch, ProducerId
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_transactions import DescribeTransactionsRequest
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest

TRANSACTION_KEY: Final = 1
"""Kind of key of FindCoordinator."""
ONGOING: Final = "Ongoing"
"""The state that DescribeTransactions gives a transaction that has records and has not ended."""


class Transaction(NamedTuple):
    """An open transaction."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


async def begin_transaction(cluster: ClusterClient, transactional_id: str, *, timeout_ms: int) -> Transaction:
    """A new transaction; an earlier one of the same id is aborted, and its producer fenced.

    The broker aborts it ``timeout_ms`` after its first record if no process has ended it by then.
    Raises: RequestRejected, BrokerUnavailable.
    """

    async def ask() -> Transaction:
        connection = await _coordinator(cluster, transactional_id)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        answer = await connection.request(ApiKey.INIT_PRODUCER_ID, request, timeout_ms=cluster.request_timeout_ms)
        check_code(answer.error_code, None, f"transaction {transactional_id}")
        return Transaction(transactional_id, ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))

    return await retrying(ask, rng=cluster.rng, budget_ms=cluster.retry_budget_ms)


async def end_transaction(cluster: ClusterClient, transaction: Transaction, *, commit: bool) -> Transaction:
    """Commit or abort. Doing so again succeeds if it ended the same way. Returns: the identity for the next transaction of the id.

    Raises: RequestRejected (it ended the other way, or its time was over), BrokerUnavailable (try again).
    """

    async def ask() -> Transaction:
        connection = await _coordinator(cluster, transaction.transactional_id)
        request = EndTxnRequest(*transaction, committed=commit)
        answer = await connection.request(ApiKey.END_TXN, request, timeout_ms=cluster.request_timeout_ms)
        check_code(answer.error_code, None, f"transaction {transaction.transactional_id}")
        if answer.producer_id < 0:
            return transaction  # the first protocol, in which a producer keeps its epoch
        return Transaction(
            transaction.transactional_id, ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch)
        )

    return await retrying(ask, rng=cluster.rng, budget_ms=cluster.retry_budget_ms)


async def is_open(cluster: ClusterClient, transaction: Transaction) -> bool:
    """Whether a transaction has records and is neither ended nor aborted by its time-out (KIP-664).

    Raises: RequestRejected, BrokerUnavailable.
    """

    async def ask() -> bool:
        connection = await _coordinator(cluster, transaction.transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transaction.transactional_id])
        answer = await connection.request(ApiKey.DESCRIBE_TRANSACTIONS, request, timeout_ms=cluster.request_timeout_ms)
        (found,) = answer.transaction_states
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return False
        check_code(found.error_code, None, f"transaction {transaction.transactional_id}")
        owner = (found.producer_id, found.producer_epoch)
        return found.transaction_state == ONGOING and owner == (transaction.producer_id, transaction.producer_epoch)

    return await retrying(ask, rng=cluster.rng, budget_ms=cluster.retry_budget_ms)


async def _coordinator(cluster: ClusterClient, transactional_id: str) -> KafkaConnection:
    broker = await cluster.any_broker()
    request = FindCoordinatorRequest(
        key=transactional_id, key_type=TRANSACTION_KEY, coordinator_keys=[transactional_id]
    )
    answer = await broker.request(ApiKey.FIND_COORDINATOR, request, timeout_ms=cluster.request_timeout_ms)
    found = answer.coordinators[0] if answer.coordinators else answer
    if found.error_code != ErrorCode.NONE:
        raise refusal(found.error_code, f"the coordinator of {transactional_id}")
    if BrokerId(found.node_id) not in cluster.view.brokers:
        await cluster.refresh()
    return await cluster.broker(BrokerId(found.node_id))
