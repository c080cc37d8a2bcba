"""DescribeUserScramCredentials, key 50, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class UserName:
    """``users`` of DescribeUserScramCredentialsRequest."""

    name: str = ""


@dataclass(slots=True)
class DescribeUserScramCredentialsRequest:
    """The request."""

    users: list[UserName] | None = field(default_factory=list)


@dataclass(slots=True)
class CredentialInfo:
    """``credential_infos`` of DescribeUserScramCredentialsResult."""

    mechanism: int = 0
    iterations: int = 0


@dataclass(slots=True)
class DescribeUserScramCredentialsResult:
    """``results`` of DescribeUserScramCredentialsResponse."""

    user: str = ""
    error_code: int = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = field(default_factory=list)


@dataclass(slots=True)
class DescribeUserScramCredentialsResponse:
    """The response."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "UserName": (("name", "string", False, 0, 0, False, None, ""),),
    "DescribeUserScramCredentialsRequest": (("users", "UserName", True, 0, 0, True, None, ""),),
    "CredentialInfo": (
        ("mechanism", "int8", False, 0, 0, False, None, 0),
        ("iterations", "int32", False, 0, 0, False, None, 0),
    ),
    "DescribeUserScramCredentialsResult": (
        ("user", "string", False, 0, 0, False, None, ""),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, ""),
        ("credential_infos", "CredentialInfo", True, 0, 0, False, None, ""),
    ),
    "DescribeUserScramCredentialsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, ""),
        ("results", "DescribeUserScramCredentialsResult", True, 0, 0, False, None, ""),
    ),
}
