"""SaslHandshake, key 17, versions 0 to 1. Written by tools/generate_wire.py; do not edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.wire.schema import Rows


@dataclass(slots=True)
class SaslHandshakeRequest:
    """The request."""

    mechanism: str = ""


@dataclass(slots=True)
class SaslHandshakeResponse:
    """The response."""

    error_code: int = 0
    mechanisms: list[str] = field(default_factory=list)


FIELDS: Final[Rows] = {
    "SaslHandshakeRequest": (("mechanism", "string", False, 0, 1, False, None, ""),),
    "SaslHandshakeResponse": (
        ("error_code", "int16", False, 0, 1, False, None, 0),
        ("mechanisms", "string", True, 0, 1, False, None, ""),
    ),
}
