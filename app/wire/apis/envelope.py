"""Envelope, key 58, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class EnvelopeRequest:
    """The request."""

    request_data: bytes = b""
    request_principal: bytes | None = b""
    client_host_address: bytes = b""


@dataclass(slots=True)
class EnvelopeResponse:
    """The response."""

    response_data: bytes | None = None
    error_code: int = 0


FIELDS: Final[Rows] = {
    "EnvelopeRequest": (
        ("request_data", "bytes", False, 0, 0, False, None, ""),
        ("request_principal", "bytes", False, 0, 0, True, None, ""),
        ("client_host_address", "bytes", False, 0, 0, False, None, ""),
    ),
    "EnvelopeResponse": (
        ("response_data", "bytes", False, 0, 0, True, None, None),
        ("error_code", "int16", False, 0, 0, False, None, 0),
    ),
}
