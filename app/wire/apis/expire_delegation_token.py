"""ExpireDelegationToken, key 40, versions 1 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ExpireDelegationTokenRequest:
    """The request."""

    hmac: bytes = b""
    expiry_time_period_ms: int = 0


@dataclass(slots=True)
class ExpireDelegationTokenResponse:
    """The response."""

    error_code: int = 0
    expiry_timestamp_ms: int = 0
    throttle_time_ms: int = 0


FIELDS: Final[Rows] = {
    "ExpireDelegationTokenRequest": (
        ("hmac", "bytes", False, 1, 2, False, None, ""),
        ("expiry_time_period_ms", "int64", False, 1, 2, False, None, 0),
    ),
    "ExpireDelegationTokenResponse": (
        ("error_code", "int16", False, 1, 2, False, None, 0),
        ("expiry_timestamp_ms", "int64", False, 1, 2, False, None, 0),
        ("throttle_time_ms", "int32", False, 1, 2, False, None, 0),
    ),
}
