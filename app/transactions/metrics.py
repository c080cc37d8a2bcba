"""Counters and gauges of transactions. Pure: state machines count, ``app/metrics.py`` sums up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from app.metrics import Labels, Registry
from app.transactions.state import PREPARED, Transaction, TransactionState

if TYPE_CHECKING:
    from app.seams import Clock
    from app.transactions.shard import TransactionShard


class TransactionCounters:
    """What becomes of transactions."""

    __slots__ = ("aborted", "committed", "markers", "seconds", "timed_out")

    def __init__(self, registry: Registry) -> None:
        text = "Transactions that were decided, by outcome."
        self.committed = registry.counter("firn_transactions_ended_total", text, outcome="committed")
        self.aborted = registry.counter("firn_transactions_ended_total", text, outcome="aborted")
        self.timed_out = registry.counter("firn_transactions_ended_total", text, outcome="timed_out")
        self.markers = registry.counter(
            "firn_transaction_markers_total", "Markers written to partitions to end transactions there."
        )
        self.seconds = registry.histogram(
            "firn_transaction_seconds", "Time from the first partition of a transaction to its last marker."
        )

    def ended(self, prepared: Transaction, *, timed_out: bool) -> None:
        """A transaction was decided."""
        if timed_out:
            self.timed_out.value += 1
        elif prepared.commits:
            self.committed.value += 1
        else:
            self.aborted.value += 1


def show_transactions(registry: Registry, shards: Callable[[], Iterable[TransactionShard]], clock: Clock) -> None:
    """Have the registry show what transactions there are."""

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
