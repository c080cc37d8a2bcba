"""The base of all SASL mechanisms, and PLAIN (RFC 4616). Pure.

Tests: ``tests/security/test_scram.py``, ``tests/security/test_login.py``, ``tests/security/test_tokens.py``.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

PLAIN_REFUSED: Final = "Authentication failed: Invalid username or password"
"""Kafka's text, for a wrong user and for a wrong password."""


class Refused(Exception):  # the name of the event
    """The login is refused. Its text may be sent to the client: it tells nothing that an unknown client may not know."""

    def __init__(self, text: str, *, user: str = "") -> None:
        """``user``: the name that the client gave, for the audit log. It is not proven."""
        super().__init__(text)
        self.user = user


class Invalid(NamedTuple):
    """The login has failed, and the client is sent a message before it is refused."""

    token: bytes
    why: str
    """For the operator."""


class LoggedIn(NamedTuple):
    """The login has succeeded."""

    user: str
    token: bytes = b""
    """The last message to the client."""
    expires_ms: float = math.inf
    """Wall-clock time at which the credential ends by itself."""
    by_token: bool = False
    """Whether the credential is a delegation token of the user."""


class Mechanism(Protocol):
    """One login, as the server sees it."""

    def evaluate(self, token: bytes) -> bytes | LoggedIn | Invalid:
        """Take a message of the client. Returns the message to the client. Raises: Refused; the login is over then."""
        ...


class PlainServer:
    """PLAIN: the client sends name and password."""

    __slots__ = ("_users",)

    def __init__(self, users: Mapping[str, bytes]) -> None:
        """Passwords by name."""
        self._users = {name: _digest(password) for name, password in users.items()}

    def evaluate(self, token: bytes) -> LoggedIn:
        parts = token.split(b"\0", 3)
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise Refused(PLAIN_REFUSED)
        try:
            authorization, user = parts[0].decode(), parts[1].decode()
        except UnicodeDecodeError:
            raise Refused(PLAIN_REFUSED) from None
        expected = self._users.get(user)
        # A user who does not exist costs the same work, and so does a long password.
        fits = hmac.compare_digest(_digest(parts[2]), NOBODY if expected is None else expected)
        if not fits or expected is None or authorization not in ("", user):
            raise Refused(PLAIN_REFUSED, user=user)
        return LoggedIn(user)


def _digest(password: bytes) -> bytes:
    """A digest: its length says nothing of the password's."""
    return hmac.digest(b"plain", password, "sha256")


NOBODY: Final = _digest(b"")
"""Compared in place of the digest of a user who does not exist. The empty password is always refused."""


def plain_message(user: str, password: str) -> bytes:
    """The message of a client."""
    return b"\0".join((b"", user.encode(), password.encode()))
