"""Counters of transactions. State machines count; ``app/core/metrics.py`` adds up.

Tests: ``tests/transactions/test_coordinator.py``.
"""

from __future__ import annotations

from app.core.metrics import Registry
from app.transactions.state import Transaction


class TransactionCounters:
    """Outcomes of transactions."""

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
