"""The credential in a request: a name and a password (RFC 7617), or a token (RFC 6750). Pure.

Tests: ``tests/http/test_callers.py``.
"""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

DIGEST_BYTES: Final = 32

_AUTHORIZATION: Final = re.compile(rb"([A-Za-z]+) +(\S+) *")
_TOKEN: Final = re.compile(rb"[-_.~+/A-Za-z0-9]+=*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class NotACredential(Exception):  # named for the header's contents
    """The header holds no credential. The request is refused like one with a wrong password."""


@dataclass(frozen=True, slots=True)
class Basic:
    """A name and a password."""

    user: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bearer:
    """A token."""

    token: str = field(repr=False)


Credential = Basic | Bearer


def read_authorization(headers: Sequence[bytes]) -> Credential | None:
    """The credential of all ``Authorization`` headers of a request; None if it has none. Raises: NotACredential."""
    if not headers:
        return None
    found = _AUTHORIZATION.fullmatch(headers[0])
    if len(headers) > 1 or found is None:
        raise NotACredential
    match found[1].lower():
        case b"basic":
            return _read_basic(found[2])
        case b"bearer" if _TOKEN.fullmatch(found[2]):
            return Bearer(found[2].decode())
        case _:
            raise NotACredential


def _read_basic(text: bytes) -> Basic:
    try:
        user, colon, password = b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise NotACredential from None
    # A control character could end a field of the login that is made of them.
    if not colon or not user or not password or _CONTROL.search(user) or _CONTROL.search(password):
        raise NotACredential
    return Basic(user, password)


def digest_of(key: bytes, credential: Credential) -> bytes:
    """Stands for the credential: equal for equal ones under the same secret ``key``, and of no use without it.

    Returns: ``DIGEST_BYTES``.
    """
    if isinstance(credential, Basic):
        name = credential.user.encode()
        message = b"basic" + len(name).to_bytes(4, "big") + name + credential.password.encode()
    else:
        message = b"bearer" + credential.token.encode()
    return hmac.digest(key, message, "sha256")
