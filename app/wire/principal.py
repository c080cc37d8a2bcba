"""Kafka's ``DefaultPrincipalData``: the principal of a request in an Envelope (KIP-590).

The bytes of ``request_principal`` are the version as an int16, and then a message of that version, which is flexible: the type and
the name of the principal, and whether a delegation token authenticated it. Version 0 is the only one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from app.core.errors import ErrorCode, ProtocolError
from app.wire.primitives import (
    INT16,
    TROUBLES,
    Buffer,
    compact_string_end,
    explain,
    put_compact_string,
    read_uvarint,
    refuse_rest,
    skip_tagged_fields,
)

VERSION: Final = 0


class Principal(NamedTuple):
    """The principal that sent a request."""

    kind: str
    """``User``, as all of Kafka's own principals."""
    name: str
    token_authenticated: bool = False
    """Whether a delegation token authenticated it (ADR 0035)."""


def encode_principal(kind: str, name: str, *, token_authenticated: bool = False) -> bytes:
    """The bytes that stand for a principal. Raises: ValueError if a string is longer than it may be."""
    parts = [INT16.pack(VERSION)]
    put_compact_string(parts, kind)
    put_compact_string(parts, name)
    parts.append(b"\1\0" if token_authenticated else b"\0\0")
    return b"".join(parts)


def decode_principal(data: Buffer) -> Principal:
    """The principal that ``data`` stands for, to its last byte.

    Raises: ProtocolError, with UNSUPPORTED_VERSION for a later version.
    """
    try:
        (version,) = INT16.unpack_from(data)
        if version != VERSION:
            raise ProtocolError(f"Version {version} is not known.", ErrorCode.UNSUPPORTED_VERSION)
        kind, position = _read_string(data, INT16.size, "type")
        name, position = _read_string(data, position, "name")
        token_authenticated = data[position] != 0
        position = skip_tagged_fields(data, position + 1)
        if position != len(data):
            raise refuse_rest(len(data) - position)
    except TROUBLES as trouble:
        raise explain(trouble, "principal") from None
    return Principal(kind, name, token_authenticated)


def _read_string(data: Buffer, position: int, name: str) -> tuple[str, int]:
    size, position = read_uvarint(data, position)
    end = compact_string_end(data, position, size, name)
    return str(data[position:end], "utf-8"), end
