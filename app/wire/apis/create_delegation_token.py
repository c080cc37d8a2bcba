"""CreateDelegationToken, key 38, versions 1 to 3. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class CreatableRenewers:
    """``renewers`` of CreateDelegationTokenRequest."""

    principal_type: str = ""
    principal_name: str = ""


@dataclass(slots=True)
class CreateDelegationTokenRequest:
    """The request."""

    owner_principal_type: str | None = ""
    owner_principal_name: str | None = ""
    renewers: list[CreatableRenewers] = field(default_factory=list)
    max_lifetime_ms: int = 0


@dataclass(slots=True)
class CreateDelegationTokenResponse:
    """The response."""

    error_code: int = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = ""
    token_requester_principal_name: str = ""
    issue_timestamp_ms: int = 0
    expiry_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: int = 0


FIELDS: Final[Rows] = {
    "CreatableRenewers": (
        ("principal_type", "string", False, 1, 3, False, None, ""),
        ("principal_name", "string", False, 1, 3, False, None, ""),
    ),
    "CreateDelegationTokenRequest": (
        ("owner_principal_type", "string", False, 3, 3, True, None, ""),
        ("owner_principal_name", "string", False, 3, 3, True, None, ""),
        ("renewers", "CreatableRenewers", True, 1, 3, False, None, ""),
        ("max_lifetime_ms", "int64", False, 1, 3, False, None, 0),
    ),
    "CreateDelegationTokenResponse": (
        ("error_code", "int16", False, 1, 3, False, None, 0),
        ("principal_type", "string", False, 1, 3, False, None, ""),
        ("principal_name", "string", False, 1, 3, False, None, ""),
        ("token_requester_principal_type", "string", False, 3, 3, False, None, ""),
        ("token_requester_principal_name", "string", False, 3, 3, False, None, ""),
        ("issue_timestamp_ms", "int64", False, 1, 3, False, None, 0),
        ("expiry_timestamp_ms", "int64", False, 1, 3, False, None, 0),
        ("max_timestamp_ms", "int64", False, 1, 3, False, None, 0),
        ("token_id", "string", False, 1, 3, False, None, ""),
        ("hmac", "bytes", False, 1, 3, False, None, ""),
        ("throttle_time_ms", "int32", False, 1, 3, False, None, 0),
    ),
}
