"""AddOffsetsToTxn, key 25, versions 0 to 4. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class AddOffsetsToTxnRequest:
    """The request."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    group_id: str = ""


@dataclass(slots=True)
class AddOffsetsToTxnResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0


FIELDS: Final[Rows] = {
    "AddOffsetsToTxnRequest": (
        ("transactional_id", "string", False, 0, 4, False, None, ""),
        ("producer_id", "int64", False, 0, 4, False, None, 0),
        ("producer_epoch", "int16", False, 0, 4, False, None, 0),
        ("group_id", "string", False, 0, 4, False, None, ""),
    ),
    "AddOffsetsToTxnResponse": (
        ("throttle_time_ms", "int32", False, 0, 4, False, None, 0),
        ("error_code", "int16", False, 0, 4, False, None, 0),
    ),
}
