"""The header `Idempotency-Key`, and the digest by which a repeated request is known (ADR 0043, EO6). Pure.

A key stands bare or as a quoted string, and both forms are the same key. The digest takes the body without its Content-Encoding,
because gzip writes the time into a body. It takes the body as it came, before anything is filled in: a record without a timestamp
would have another one at each try. Tests: ``tests/exactly_once/test_keys.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct
from typing import Final

from app.core.errors import ErrorCode, RequestRejected
from app.exactly_once.records import KEY_BYTES_MAX

HEADER: Final = "idempotency-key"
_QUOTE, _BACKSLASH = b'"'[0], b"\\"[0]
_BLANKS: Final = b" \t"
_LENGTH: Final = Struct(">q")


def key_of(values: Sequence[bytes]) -> bytes | None:
    """The key of a request. ``values``: of all headers of the name, as they came. None without a header.

    Raises: RequestRejected INVALID_REQUEST.
    """
    if not values:
        return None
    if len(values) > 1:
        raise _refused(f"The request has {len(values)} Idempotency-Key headers. Send one.")
    value = values[0].strip(_BLANKS)
    key = _unquoted(value) if value.startswith(b'"') else value
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise _refused(f"The Idempotency-Key has {len(key)} bytes. Send 1 to {KEY_BYTES_MAX}.")
    if min(key) < 0x20 or 0x7F in key:
        raise _refused("The Idempotency-Key has a control character. Send printable ones.")
    if key is value and _QUOTE in key:
        raise _refused("The Idempotency-Key has a quotation mark inside. Quote the whole key.")
    return key


def _unquoted(value: bytes) -> bytes:
    """Raises: RequestRejected unless ``value`` is one quoted string, in which only `"` and the backslash are escaped."""
    found = bytearray()
    at = 1
    while at < len(value):
        byte = value[at]
        if byte == _QUOTE:
            if at + 1 < len(value):
                raise _refused("The Idempotency-Key goes on after its quoted string. Send nothing behind it.")
            return bytes(found)
        if byte == _BACKSLASH:
            at += 1
            if at == len(value) or value[at] not in (_QUOTE, _BACKSLASH):
                raise _refused('The Idempotency-Key has an escape that is not allowed. Escape only \\ and ".')
            byte = value[at]
        found.append(byte)
        at += 1
    raise _refused("The Idempotency-Key has no quotation mark at its end. Send one.")


def _refused(sentence: str) -> RequestRejected:
    return RequestRejected(ErrorCode.INVALID_REQUEST, sentence)


class RequestDigest:
    """SHA-256 of a request, fed with its body."""

    __slots__ = ("_hash",)

    def __init__(self, method: str, path: str, content_type: str) -> None:
        """``path``: without the query. ``content_type``: the header; its parameters do not count."""
        self._hash = sha256()
        media_type = content_type.partition(";")[0].strip().lower()
        for part in (method.upper(), path, media_type):
            data = part.encode()
            self._hash.update(_LENGTH.pack(len(data)) + data)

    def feed(self, body: bytes) -> None:
        """Take in the next part of the body, without its Content-Encoding."""
        self._hash.update(body)

    def digest(self) -> bytes:
        """The digest of all that was fed."""
        return self._hash.digest()
