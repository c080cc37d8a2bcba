"""UnregisterBroker, key 64, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class UnregisterBrokerRequest:
    """The request."""

    broker_id: int = 0


@dataclass(slots=True)
class UnregisterBrokerResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""


FIELDS: Final[Rows] = {
    "UnregisterBrokerRequest": (("broker_id", "int32", False, 0, 0, False, None, 0),),
    "UnregisterBrokerResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, ""),
    ),
}
