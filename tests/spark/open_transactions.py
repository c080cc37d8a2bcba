"""Open transactions that a killed stream left."""

from __future__ import annotations

import random

from app.client.cluster import ClusterClient
from app.client.transactions import ONGOING, begin_transaction
from app.wire.apikeys import ApiKey
from app.wire.apis.list_transactions import ListTransactionsRequest
from tests.support.broker import RunningBroker


async def abort_what_is_open(broker: RunningBroker) -> int:
    """As the coordinator does when its time is over; answers how many transactions there were."""
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        connection = await cluster.any_broker()
        asked = ListTransactionsRequest(state_filters=[ONGOING])
        answer = await connection.request(ApiKey.LIST_TRANSACTIONS, asked, timeout_ms=10_000)
        for left in answer.transaction_states:
            await begin_transaction(cluster, left.transactional_id, timeout_ms=10_000)
    return len(answer.transaction_states)
