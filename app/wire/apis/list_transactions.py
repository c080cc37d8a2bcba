"""ListTransactions, key 66, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ListTransactionsRequest:
    """The request."""

    state_filters: list[str] = field(default_factory=list)
    producer_id_filters: list[int] = field(default_factory=list)
    duration_filter: int = -1
    transactional_id_pattern: str | None = None


@dataclass(slots=True)
class TransactionState:
    """``transaction_states`` of ListTransactionsResponse."""

    transactional_id: str = ""
    producer_id: int = 0
    transaction_state: str = ""


@dataclass(slots=True)
class ListTransactionsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: list[str] = field(default_factory=list)
    transaction_states: list[TransactionState] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ListTransactionsRequest": (
        ("state_filters", "string", True, 0, 2, False, None, ""),
        ("producer_id_filters", "int64", True, 0, 2, False, None, ""),
        ("duration_filter", "int64", False, 1, 2, False, None, -1),
        ("transactional_id_pattern", "string", False, 2, 2, True, None, None),
    ),
    "TransactionState": (
        ("transactional_id", "string", False, 0, 2, False, None, ""),
        ("producer_id", "int64", False, 0, 2, False, None, 0),
        ("transaction_state", "string", False, 0, 2, False, None, ""),
    ),
    "ListTransactionsResponse": (
        ("throttle_time_ms", "int32", False, 0, 2, False, None, 0),
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("unknown_state_filters", "string", True, 0, 2, False, None, ""),
        ("transaction_states", "TransactionState", True, 0, 2, False, None, ""),
    ),
}
