"""AlterUserScramCredentials, key 51, version 0. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class ScramCredentialDeletion:
    """``deletions`` of AlterUserScramCredentialsRequest."""

    name: str = ""
    mechanism: int = 0


@dataclass(slots=True)
class ScramCredentialUpsertion:
    """``upsertions`` of AlterUserScramCredentialsRequest."""

    name: str = ""
    mechanism: int = 0
    iterations: int = 0
    salt: bytes = b""
    salted_password: bytes = b""


@dataclass(slots=True)
class AlterUserScramCredentialsRequest:
    """The request."""

    deletions: list[ScramCredentialDeletion] = field(default_factory=list)
    upsertions: list[ScramCredentialUpsertion] = field(default_factory=list)


@dataclass(slots=True)
class AlterUserScramCredentialsResult:
    """``results`` of AlterUserScramCredentialsResponse."""

    user: str = ""
    error_code: int = 0
    error_message: str | None = ""


@dataclass(slots=True)
class AlterUserScramCredentialsResponse:
    """The response."""

    throttle_time_ms: int = 0
    results: list[AlterUserScramCredentialsResult] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "ScramCredentialDeletion": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("mechanism", "int8", False, 0, 0, False, None, 0),
    ),
    "ScramCredentialUpsertion": (
        ("name", "string", False, 0, 0, False, None, ""),
        ("mechanism", "int8", False, 0, 0, False, None, 0),
        ("iterations", "int32", False, 0, 0, False, None, 0),
        ("salt", "bytes", False, 0, 0, False, None, ""),
        ("salted_password", "bytes", False, 0, 0, False, None, ""),
    ),
    "AlterUserScramCredentialsRequest": (
        ("deletions", "ScramCredentialDeletion", True, 0, 0, False, None, ""),
        ("upsertions", "ScramCredentialUpsertion", True, 0, 0, False, None, ""),
    ),
    "AlterUserScramCredentialsResult": (
        ("user", "string", False, 0, 0, False, None, ""),
        ("error_code", "int16", False, 0, 0, False, None, 0),
        ("error_message", "string", False, 0, 0, True, None, ""),
    ),
    "AlterUserScramCredentialsResponse": (
        ("throttle_time_ms", "int32", False, 0, 0, False, None, 0),
        ("results", "AlterUserScramCredentialsResult", True, 0, 0, False, None, ""),
    ),
}
