"""Decisions about open results of a partition that may have lost its newest records (ADR 0043, EO11). Pure.

The marker of a result may be lost while the transaction is complete. No coordinator sends it again, and the key would be open for
ever. The result names its own records, and their partitions have markers of the same transaction. Tests:
``tests/exactly_once/test_deciding.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, StrEnum
from typing import NamedTuple


class Fate(Enum):
    """The decision about an open result."""

    WAITS = "waits"
    """Its transaction goes on, and its coordinator ends it."""
    COMMITTED = "committed"
    ABORTED = "aborted"


class RecordFate(StrEnum):
    """The fate of a record that a result names, as the leader of its partition knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    LOST = "lost"
    """The log ends before the offset, or has another record there. No reader saw it."""
    GONE = "gone"
    """It was deleted or compacted away. Readers may have seen it."""


class TransactionSeen(NamedTuple):
    """An incomplete transaction of the producer, as its coordinator has it."""

    epoch: int
    has_result: bool
    """Whether the result's partition belongs to it."""
    decision: bool | None
    """Whether it is to be committed; None while it is ongoing."""


def decide(epoch: int, transaction: TransactionSeen | None, records: Iterable[bool | None]) -> Fate:
    """Decide about an open result.

    Args:
        epoch: the producer's epoch in the result's batch.
        transaction: the producer's incomplete transaction; None if its coordinator knows none.
        records: for the first record of each part, whether it is committed; None if it is open or gone.
    """
    if transaction is not None and transaction.has_result:
        if transaction.decision is None:
            if transaction.epoch == epoch:
                return Fate.WAITS
        elif transaction.epoch == epoch + 1:  # a decision raises the epoch
            return Fate.COMMITTED if transaction.decision else Fate.ABORTED
    # One decision holds for all partitions, so a single marker that commits is enough. Without one, readers saw no record.
    return Fate.COMMITTED if any(records) else Fate.ABORTED
