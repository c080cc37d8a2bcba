"""Decides which batches of a compacted log belong to aborted transactions, and which markers are no longer needed. Pure.

Batches are passed in order of offset. A batch of an aborted transaction is removed at once. Its marker, and its entry in the
transaction index, stay until a later round finds no batch of the transaction. The marker then stays for another
``delete.retention.ms``, so that a reader in the middle of the transaction still finds its end (KAFKA-8522, KIP-534).

Tests: ``tests/hot/test_cleaner.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.hot.indexes import AbortedTransaction
from app.records.batch import BatchHeader
from app.records.control import ControlType, EndTransactionMarker


class CleanedTransactions:
    """Tracks the transactions of one round over a log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """``aborted``: all aborted transactions that overlap the part of the log that will be passed."""
        self._ahead = sorted(set(aborted), key=lambda entry: entry.first_offset, reverse=True)
        self._aborting: dict[int, tuple[AbortedTransaction, bool]] = {}
        """By producer: the aborted transaction that is open at the present offset, and whether a batch of it was seen."""
        self._committing: set[int] = set()
        self.retained: list[AbortedTransaction] = []
        """Entries that readers still need, and whose markers have passed. The caller that takes them clears the list."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._open_until(header.end_offset)
        if not header.is_transactional:
            return False
        found = self._aborting.get(header.producer_id)
        if found is None:
            self._committing.add(header.producer_id)
            return False
        self._aborting[header.producer_id] = found[0], True
        return True

    def outlived(self, header: BatchHeader, marker: EndTransactionMarker | None) -> bool:
        """Whether a control batch ended a transaction that has no batch left. ``marker`` is None if the batch has no record, or
        a record of an unknown kind."""
        self._open_until(header.end_offset)
        if marker is None:
            return header.record_count == 0
        if marker.control_type is ControlType.COMMIT:
            if header.producer_id in self._committing:
                self._committing.discard(header.producer_id)
                return False
            return True
        found = self._aborting.pop(header.producer_id, None)
        if found is None or not found[1]:
            return True
        self.retained.append(found[0])
        return False

    def _open_until(self, offset_end: int) -> None:
        while self._ahead and self._ahead[-1].first_offset < offset_end:
            entry = self._ahead.pop()
            self._aborting.setdefault(entry.producer_id, (entry, False))
