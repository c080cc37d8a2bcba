"""Delegation tokens (KIP-48, KIP-373): the record of one, and the secret that follows from its id. Pure.

The secret of a token is not stored. It is HMAC-SHA-512 of the token's id under ``delegation.token.secret.key``, as in Kafka. Its
base64 is the password with which its holder logs in by SCRAM.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple

from app.security.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    TokenCredential,
    credential_of,
    no_token,
    salted_password,
)

USER_PREFIX: Final = "User:"
CREDENTIALS_MAX: Final = 20_000
"""Credentials that are kept: of all tokens, by both mechanisms. Some 10 MB."""


class DelegationToken(NamedTuple):
    """The fields of a token besides its id. Principals are ``Type:name``."""

    owner: str
    """The principal of a login with this token."""
    requester: str
    """Who made it."""
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    """The token ends then. No renewal moves this time."""
    expires_ms: int
    """It ends then, unless it is renewed."""

    def has_ended(self, now_ms: int) -> bool:
        return self.max_ms < now_ms or self.expires_ms < now_ms

    def belongs_to(self, principal: str) -> bool:
        """Whether a principal owns it, has made it, or may renew it."""
        return principal in (self.owner, self.requester) or principal in self.renewers

    def may_renew(self, principal: str) -> bool:
        return principal == self.owner or principal in self.renewers


class TokenSecrets:
    """Derives secrets of tokens, and finds tokens by their secrets. Belongs to one loop."""

    __slots__ = ("_by_hmac", "_credentials", "_key", "_known")

    def __init__(self, key: str) -> None:
        """``key``: ``delegation.token.secret.key``; not empty."""
        assert key
        self._key = key.encode()
        self._by_hmac: dict[bytes, str] = {}
        self._known: set[str] = set()
        self._credentials: dict[tuple[str, int], ScramCredential] = {}

    def __repr__(self) -> str:
        return "TokenSecrets()"

    @property
    def salt_secret(self) -> bytes:
        """The secret from which the salts of tokens are derived."""
        return hmac.digest(self._key, b"salt\0", "sha512")

    def hmac_of(self, token_id: str) -> bytes:
        """The secret of a token: 64 bytes."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def find(self, secret: bytes, tokens: Mapping[str, DelegationToken]) -> str | None:
        """The id of the token among ``tokens`` with this secret."""
        if len(self._known) > 2 * len(tokens) + 100:
            self._known, self._by_hmac = set(), {}
        for token_id in tokens.keys() - self._known:
            self._known.add(token_id)
            self._by_hmac[self.hmac_of(token_id)] = token_id
        found = self._by_hmac.get(secret)
        return found if found in tokens else None

    def credential(
        self, token_id: str, token: DelegationToken | None, mechanism: ScramMechanism, now_ms: int
    ) -> TokenCredential | None:
        """How a holder of ``token`` logs in; None if there is no such token, or it has ended. The first call for a token takes
        some milliseconds."""
        if token is None or token.has_ended(now_ms) or not token.owner.startswith(USER_PREFIX):
            return None
        found = self._credentials.get((token_id, mechanism))
        if found is None:
            if len(self._credentials) >= CREDENTIALS_MAX:
                self._credentials.clear()
            # The same salt on all brokers and in all runs, as of a user; and before there is a token, and after it has ended.
            salt = no_token(mechanism, self.salt_secret, token_id).salt
            password = b64encode(self.hmac_of(token_id)).decode()
            salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
            found = self._credentials[token_id, mechanism] = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
        return TokenCredential(found, token.owner.removeprefix(USER_PREFIX), min(token.expires_ms, token.max_ms))
