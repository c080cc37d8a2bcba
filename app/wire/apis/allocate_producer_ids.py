"""AllocateProducerIds, key 67, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class AllocateProducerIdsRequest:
    """The request."""

    broker_id: int = 0
    broker_epoch: int = -1


@dataclass(slots=True)
class AllocateProducerIdsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id_start: int = 0
    producer_id_len: int = 0


FIELDS: Final[Rows] = {
    "AllocateProducerIdsRequest": (
        ("broker_id", "int32", False, 0, 0, False, None, 0),
        ("broker_epoch", "int64", False, 0, 0, False, None, -1),
    ),
    "AllocateProducerIdsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("producer_id_start", "int64", False, 0, 0, False, None, 0),
        ("producer_id_len", "int32", False, 0, 0, False, None, 0),
    ),
}
