"""RenewDelegationToken, key 39, versions 1 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class RenewDelegationTokenRequest:
    """The request."""

    hmac: bytes = b""
    renew_period_ms: int = 0


@dataclass(slots=True)
class RenewDelegationTokenResponse:
    """The response."""

    error_code: int = 0
    expiry_timestamp_ms: int = 0
    throttle_time_ms: int = 0


FIELDS: Final[Rows] = {
    "RenewDelegationTokenRequest": (
        ("hmac", "bytes", False, 1, 2, False, None, ""),
        ("renew_period_ms", "int64", False, 1, 2, False, None, 0),
    ),
    "RenewDelegationTokenResponse": (
        ("error_code", "int16", False, 1, 2, False, None, 0),
        ("expiry_timestamp_ms", "int64", False, 1, 2, False, None, 0),
        ("throttle_time_ms", "int32", False, 1, 2, False, None, 0),
    ),
}
