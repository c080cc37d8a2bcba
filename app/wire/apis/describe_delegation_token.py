"""DescribeDelegationToken, key 41, versions 1 to 3. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class DescribeDelegationTokenOwner:
    """``owners`` of DescribeDelegationTokenRequest."""

    principal_type: str = ""
    principal_name: str = ""


@dataclass(slots=True)
class DescribeDelegationTokenRequest:
    """The request."""

    owners: list[DescribeDelegationTokenOwner] | None = field(default_factory=list)


@dataclass(slots=True)
class DescribedDelegationTokenRenewer:
    """``renewers`` of DescribedDelegationToken."""

    principal_type: str = ""
    principal_name: str = ""


@dataclass(slots=True)
class DescribedDelegationToken:
    """``tokens`` of DescribeDelegationTokenResponse."""

    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = ""
    token_requester_principal_name: str = ""
    issue_timestamp: int = 0
    expiry_timestamp: int = 0
    max_timestamp: int = 0
    token_id: str = ""
    hmac: bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = field(default_factory=list)


@dataclass(slots=True)
class DescribeDelegationTokenResponse:
    """The response."""

    error_code: int = 0
    tokens: list[DescribedDelegationToken] = field(default_factory=list)
    throttle_time_ms: int = 0


FIELDS: Final[Rows] = {
    "DescribeDelegationTokenOwner": (
        ("principal_type", "string", False, 1, 3, False, None, ""),
        ("principal_name", "string", False, 1, 3, False, None, ""),
    ),
    "DescribeDelegationTokenRequest": (("owners", "DescribeDelegationTokenOwner", True, 1, 3, True, None, ""),),
    "DescribedDelegationTokenRenewer": (
        ("principal_type", "string", False, 1, 3, False, None, ""),
        ("principal_name", "string", False, 1, 3, False, None, ""),
    ),
    "DescribedDelegationToken": (
        ("principal_type", "string", False, 1, 3, False, None, ""),
        ("principal_name", "string", False, 1, 3, False, None, ""),
        ("token_requester_principal_type", "string", False, 3, 3, False, None, ""),
        ("token_requester_principal_name", "string", False, 3, 3, False, None, ""),
        ("issue_timestamp", "int64", False, 1, 3, False, None, 0),
        ("expiry_timestamp", "int64", False, 1, 3, False, None, 0),
        ("max_timestamp", "int64", False, 1, 3, False, None, 0),
        ("token_id", "string", False, 1, 3, False, None, ""),
        ("hmac", "bytes", False, 1, 3, False, None, ""),
        ("renewers", "DescribedDelegationTokenRenewer", True, 1, 3, False, None, ""),
    ),
    "DescribeDelegationTokenResponse": (
        ("error_code", "int16", False, 1, 3, False, None, 0),
        ("tokens", "DescribedDelegationToken", True, 1, 3, False, None, ""),
        ("throttle_time_ms", "int32", False, 1, 3, False, None, 0),
    ),
}
