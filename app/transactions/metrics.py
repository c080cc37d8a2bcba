"""Gauges of transactions. Their values are read from the shards. Tests: ``tests/transactions/test_coordinator.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from app.core.metrics import Labels, Registry
from app.transactions.state import PREPARED, TransactionState

if TYPE_CHECKING:
    from app.core.seams import Clock
    from app.transactions.shard import TransactionShard


def show_transactions(registry: Registry, shards: Callable[[], Iterable[TransactionShard]], clock: Clock) -> None:
    """Register the gauges of transactions."""

    def count_ids() -> Iterable[tuple[Labels, float]]:
        yield (), float(sum(shard.id_count for shard in shards()))

    def count_open() -> Iterable[tuple[Labels, float]]:
        states = (TransactionState.ONGOING, *sorted(PREPARED))
        found = Counter(transaction.state for shard in shards() for transaction in shard.busy())
        for state in states:
            yield (("state", state.title),), float(found[state])

    def oldest() -> Iterable[tuple[Labels, float]]:
        now_ms = clock.now_ms()
        started = (transaction.started_ms for shard in shards() for transaction in shard.busy())
        yield (), max((now_ms - started_ms for started_ms in started), default=0) / 1000

    registry.gauge("firn_transactional_ids", "Transactional ids that this broker coordinates.", count_ids)
    registry.gauge("firn_transactions_open", "Transactions that are not complete, by state.", count_open)
    registry.gauge("firn_transaction_oldest_seconds", "Age of the oldest transaction that is not complete.", oldest)
