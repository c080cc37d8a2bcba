"""SaslAuthenticate, key 36, versions 0 to 2. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class SaslAuthenticateRequest:
    """The request."""

    auth_bytes: bytes = b""


@dataclass(slots=True)
class SaslAuthenticateResponse:
    """The response."""

    error_code: int = 0
    error_message: str | None = ""
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0


FIELDS: Final[Rows] = {
    "SaslAuthenticateRequest": (("auth_bytes", "bytes", False, 0, 2, False, None, ""),),
    "SaslAuthenticateResponse": (
        ("error_code", "int16", False, 0, 2, False, None, 0),
        ("error_message", "string", False, 0, 2, True, None, ""),
        ("auth_bytes", "bytes", False, 0, 2, False, None, ""),
        ("session_lifetime_ms", "int64", False, 1, 2, False, None, 0),
    ),
}
