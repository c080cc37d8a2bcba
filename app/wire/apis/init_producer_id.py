"""InitProducerId, key 22, versions 0 to 6. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class InitProducerIdRequest:
    """The request."""

    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    enable2_pc: bool = False
    keep_prepared_txn: bool = False


@dataclass(slots=True)
class InitProducerIdResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0
    ongoing_txn_producer_id: int = -1
    ongoing_txn_producer_epoch: int = -1


FIELDS: Final[Rows] = {
    "InitProducerIdRequest": (
        ("transactional_id", "string", False, 0, 6, True, None, ""),
        ("transaction_timeout_ms", "int32", False, 0, 6, False, None, 0),
        ("producer_id", "int64", False, 3, 6, False, None, -1),
        ("producer_epoch", "int16", False, 3, 6, False, None, -1),
        ("enable2_pc", "bool", False, 6, 6, False, None, False),
        ("keep_prepared_txn", "bool", False, 6, 6, False, None, False),
    ),
    "InitProducerIdResponse": (
        ("throttle_time_ms", "int32", False, 0, 6, False, None, 0),
        ("error_code", "int16", False, 0, 6, False, None, 0),
        ("producer_id", "int64", False, 0, 6, False, None, -1),
        ("producer_epoch", "int16", False, 0, 6, False, None, 0),
        ("ongoing_txn_producer_id", "int64", False, 6, 6, False, None, -1),
        ("ongoing_txn_producer_epoch", "int16", False, 6, 6, False, None, -1),
    ),
}
