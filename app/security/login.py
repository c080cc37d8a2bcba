"""A login by SaslHandshake and SaslAuthenticate (KIP-43, KIP-152), and logging in again (KIP-368), as a table of states. Pure.

    SILENT      → a mechanism that is served → CHOSEN
    CHOSEN      → messages of the mechanism … → OPEN, or the login is refused and the connection ends
    OPEN        → a handshake → CHOSEN again: the same mechanism and the same user must come out of it

Before a connection is OPEN, nothing but ApiVersions, SaslHandshake, SaslAuthenticate and FirnForwarded is answered. A refusal
is final: the connection ends. While it is OPEN, a message at the wrong time gets ILLEGAL_SASL_STATE and changes
nothing: a handshake within a second of the last one, a handshake of a session without an end, and a message without a handshake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, ProtocolError
from app.security.sasl import Invalid, LoggedIn, Mechanism, Refused

OPAQUE_FROM: Final = 0
"""The version of SaslHandshake after which messages of the mechanism come without a header."""
AGAIN_AFTER_S: Final = 1.0
"""A client that begins to log in again sooner after the last time is refused, as in Kafka."""


class State(Enum):
    SILENT = "silent"
    CHOSEN = "chosen"
    OPEN = "open"


class Failure(NamedTuple):
    """A login that has failed, for the operator."""

    why: str
    user: str = ""
    """The name that the client gave, if any."""


class Reply(NamedTuple):
    """The reply to a message of a mechanism."""

    code: ErrorCode
    token: bytes = b""
    sentence: str | None = None
    logged_in: LoggedIn | None = None
    failure: Failure | None = None
    """Given once for each login that fails, before the client knows."""


class Login:
    """The login of one connection."""

    __slots__ = (
        "_again_s",
        "_mechanism",
        "_mechanisms",
        "_new",
        "_told",
        "_user",
        "chosen",
        "opaque",
        "session_ends",
        "state",
    )

    def __init__(self, mechanisms: Sequence[str], new: Callable[[str], Mechanism]) -> None:
        """``new`` makes the server's side of one of the ``mechanisms``."""
        self._mechanisms = tuple(mechanisms)
        self._new = new
        self._mechanism: Mechanism | None = None
        self._user = ""
        self._again_s = -math.inf
        """When the client began to log in again last."""
        self._told = False
        """A reply has told the failure."""
        self.chosen = ""
        """Name of the mechanism."""
        self.opaque = False
        """Messages of the mechanism come as frames without a header, until the login is done."""
        self.state = State.SILENT
        self.session_ends = False
        """Whether the client is to log in again at some time."""

    def handshake(self, version: int, mechanism: str, now_s: float) -> tuple[ErrorCode, Sequence[str]]:
        """Choose a mechanism. Returns: the code, and the mechanisms that there are. The connection ends unless it ``goes_on``."""
        again = self.state is State.OPEN
        if self.state is State.CHOSEN:
            return ErrorCode.ILLEGAL_SASL_STATE, ()
        if again:
            if not self.session_ends or now_s - self._again_s < AGAIN_AFTER_S:
                return ErrorCode.ILLEGAL_SASL_STATE, ()
            self._again_s = now_s
        if mechanism not in self._mechanisms or (again and mechanism != self.chosen):
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM, self._mechanisms
        self.chosen = mechanism
        self._mechanism = self._new(mechanism)
        self.opaque = version <= OPAQUE_FROM
        self.state = State.CHOSEN
        return ErrorCode.NONE, self._mechanisms

    def goes_on(self, code: ErrorCode) -> bool:
        """Whether the connection stays after an answer with this code."""
        return code is ErrorCode.NONE or (code is ErrorCode.ILLEGAL_SASL_STATE and self.state is State.OPEN)

    def authenticate(self, token: bytes) -> Reply:
        """Take a message of the mechanism. The connection ends unless it ``goes_on``."""
        if self.state is State.OPEN:
            why = "SaslAuthenticate request received after successful authentication"
            return Reply(ErrorCode.ILLEGAL_SASL_STATE, sentence=why)
        if self.state is not State.CHOSEN or self._mechanism is None:
            why = "SaslAuthenticate request received before SaslHandshake"
            return Reply(ErrorCode.ILLEGAL_SASL_STATE, sentence=why, failure=Failure(why))
        try:
            made = self._mechanism.evaluate(token)
        except Refused as refused:
            failure = None if self._told else Failure(str(refused), refused.user)
            return Reply(ErrorCode.SASL_AUTHENTICATION_FAILED, sentence=str(refused), failure=failure)
        if isinstance(made, Invalid):
            self._told = True
            return Reply(ErrorCode.NONE, made.token, failure=Failure(made.why))
        if not isinstance(made, LoggedIn):
            return Reply(ErrorCode.NONE, made)
        if self._user and made.user != self._user:
            why = "Cannot change principals during re-authentication"
            return Reply(ErrorCode.SASL_AUTHENTICATION_FAILED, sentence=why, failure=Failure(why, made.user))
        self._user = made.user
        self._mechanism = None
        self.opaque = False
        self.state = State.OPEN
        return Reply(ErrorCode.NONE, made.token, logged_in=made)

    def check_served(self, api_key: int, allowed: frozenset[int]) -> None:
        """Raises: ProtocolError for a request that must not be served before the login is done."""
        if self.state is not State.OPEN and api_key not in allowed:
            raise ProtocolError(f"API key {api_key} is not served before the client has logged in.")
