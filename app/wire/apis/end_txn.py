"""EndTxn, key 26, versions 0 to 5. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class EndTxnRequest:
    """The request."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    committed: bool = False


@dataclass(slots=True)
class EndTxnResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = -1


FIELDS: Final[Rows] = {
    "EndTxnRequest": (
        ("transactional_id", "string", False, 0, 5, False, None, ""),
        ("producer_id", "int64", False, 0, 5, False, None, 0),
        ("producer_epoch", "int16", False, 0, 5, False, None, 0),
        ("committed", "bool", False, 0, 5, False, None, False),
    ),
    "EndTxnResponse": (
        ("throttle_time_ms", "int32", False, 0, 5, False, None, 0),
        ("error_code", "int16", False, 0, 5, False, None, 0),
        ("producer_id", "int64", False, 5, 5, False, None, -1),
        ("producer_epoch", "int16", False, 5, 5, False, None, -1),
    ),
}
