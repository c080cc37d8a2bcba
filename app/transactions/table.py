"""All transactional ids of one partition of ``__transaction_state``, and when something falls due. Pure."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import Final

from app.transactions.state import Transaction

STALE_DEADLINES_MAX: Final = 1_000
"""Deadlines of transactions that have ended which are kept for a while: sorting them out each time would cost more."""


class TransactionTable:
    """Transactions by id. ``put`` and ``drop`` follow what is in the log; nothing here decides anything."""

    __slots__ = ("_by_id", "_deadlines", "_open_count")

    def __init__(self) -> None:
        self._by_id: dict[str, Transaction] = {}
        self._deadlines: list[tuple[int, str]] = []
        """A heap. An entry counts if its transaction is open and has that deadline."""
        self._open_count = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, transactional_id: str) -> Transaction | None:
        return self._by_id.get(transactional_id)

    def all(self) -> Collection[Transaction]:
        return self._by_id.values()

    def put(self, transaction: Transaction) -> None:
        """Take it in place of the older one of its id."""
        transactional_id = transaction.transactional_id
        before = self._by_id.get(transactional_id)
        deadline_before = before.deadline_ms if before is not None else None
        self._by_id[transactional_id] = transaction
        deadline = transaction.deadline_ms
        self._open_count += (deadline is not None) - (deadline_before is not None)
        if deadline is not None and deadline != deadline_before:
            heappush(self._deadlines, (deadline, transactional_id))
            if len(self._deadlines) > 2 * self._open_count + STALE_DEADLINES_MAX:
                self._deadlines = [entry for entry in self._deadlines if self._counts(entry)]
                heapify(self._deadlines)

    def drop(self, transactional_id: str) -> None:
        """Forget the id, if it is known."""
        dropped = self._by_id.pop(transactional_id, None)
        if dropped is not None and dropped.deadline_ms is not None:
            self._open_count -= 1

    def _counts(self, entry: tuple[int, str]) -> bool:
        transaction = self._by_id.get(entry[1])
        return transaction is not None and transaction.deadline_ms == entry[0]

    def next_deadline_ms(self) -> int | None:
        """When the first open transaction has to be aborted; None if none is open."""
        while self._deadlines and not self._counts(self._deadlines[0]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def overdue(self, now_ms: int) -> list[Transaction]:
        """Open transactions whose time is up, the longest overdue first. They stay until something else is put."""
        found: dict[str, Transaction] = {}
        for entry in sorted(entry for entry in self._deadlines if entry[0] <= now_ms):
            if self._counts(entry):
                found[entry[1]] = self._by_id[entry[1]]
        return list(found.values())

    def expired(self, now_ms: int, expiration_ms: int) -> list[Transaction]:
        """Ids that may be forgotten: silent for ``expiration_ms``, and with nothing open. Looks at all of them."""
        return [each for each in self._by_id.values() if each.is_expired(now_ms, expiration_ms)]
