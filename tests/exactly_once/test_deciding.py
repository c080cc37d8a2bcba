"""Open results of a partition that may have lost its end: each case, and its decision."""

from __future__ import annotations

import pytest

from app.exactly_once.deciding import Fate, TransactionSeen, decide


@pytest.mark.parametrize(
    ("transaction", "records", "fate"),
    [
        (TransactionSeen(5, True, None), [None], Fate.WAITS),
        (TransactionSeen(6, True, True), [None], Fate.COMMITTED),
        (TransactionSeen(6, True, False), [None], Fate.ABORTED),
        (None, [None, True], Fate.COMMITTED),
        (None, [False, False], Fate.ABORTED),
        (None, [None, None], Fate.ABORTED),
        # The producer has gone on: its transaction of now is another one.
        (TransactionSeen(6, True, None), [True], Fate.COMMITTED),
        (TransactionSeen(7, True, False), [True], Fate.COMMITTED),
        (TransactionSeen(5, False, None), [False], Fate.ABORTED),
    ],
)
def test_an_open_result_is_decided_as_its_transaction_or_its_records_are(
    transaction: TransactionSeen | None, records: list[bool | None], fate: Fate
) -> None:
    assert decide(5, transaction, records) is fate
