"""OAUTHBEARER (RFC 7628) with signed tokens (RFC 7519): the checks of a token. Pure: keys and time come in.

Signatures are PyJWT's business. This module decides which signatures count, and which claims are right. A token names its
algorithm by itself, so only algorithms of a list with public keys are accepted: never none, and never HS…, where the public key
would be the secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from app.security.sasl import Invalid, LoggedIn, Refused

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
TOKEN_CHARS_MAX: Final = 64 * 1024
MESSAGE_BYTES_MAX: Final = TOKEN_CHARS_MAX + 1024
"""A token, and other pairs beside it."""
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
"""RFC 7518, 3.3. Kafka refuses shorter keys, too."""
SECONDS_MAX: Final = 1 << 40
INVALID: Final = b'{"status":"invalid_token"}'
"""The first reply to a client, as Kafka's. The client answers, and then the login fails."""
FAILED: Final = '{"status":"invalid_token"}'
OTHER: Final = "Authentication failed: Client requested an authorization id that is different from the token's user"
_START: Final = re.compile(rb"n,(?:a=([^,]*))?,\x01", re.IGNORECASE)
_PAIRS: Final = re.compile(rb"(?:[A-Za-z]+=[\x20-\x7e\r\n\t]*\x01)*\x01")
_BEARER: Final = re.compile(rb"auth=Bearer +([-_.~+/A-Za-z0-9]+=*)", re.IGNORECASE)
"""One pair of ``_PAIRS``."""


def read_message(message: bytes) -> tuple[bytes, str] | None:
    """Parse a client's message (RFC 7628, section 3.1) in linear time.

    Of several pairs that can be the token, the first one counts. No pair contains the byte that ends it, so the message can be cut
    there, and each pair is looked at by itself.

    Returns: the authorization id, empty for none, and the token; None if the message does not follow the grammar or has no token.
    """
    start = _START.match(message)
    if start is None or _PAIRS.fullmatch(message, start.end()) is None:
        return None
    for pair in message[start.end() :].split(b"\x01"):
        found = _BEARER.fullmatch(pair)
        if found is not None:
            return start[1] or b"", found[1].decode("ascii")
    return None


class NotValid(Exception):  # the name of the finding
    """A token does not let its bearer in. The text is for the operator, never for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The rules for the claims of a token."""

    algorithms: Sequence[str] = ALGORITHMS
    audiences: Sequence[str] = ()
    """The token must name one of them; empty asks for none."""
    issuer: str = ""
    scopes: Sequence[str] = ()
    """The token must have all of them."""
    scope_claim: str = "scope"
    user_claim: str = "sub"
    skew_ms: int = 30_000


Keys = Mapping[str, Any]
"""Public keys by their ids; the one key without an id has the empty one."""


def read_keys(document: Any) -> Keys:
    """The keys of a JWKS document that can verify tokens; others are left out. Raises: ValueError if it is no such document."""
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ValueError(f"it is not a JWKS document of at most {KEYS_MAX} keys")
    found: dict[str, Any] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("kty") not in ("RSA", "EC") or entry.get("use", "sig") != "sig":
            continue
        try:
            key = PyJWK(entry)
        except (PyJWTError, ValueError, TypeError, KeyError, AttributeError):
            continue  # a field of the wrong type is met anywhere
        if entry["kty"] == "RSA" and key.key.key_size < RSA_BITS_MIN:
            continue
        found[str(entry.get("kid", ""))] = key
    if not found:
        raise ValueError(f"it has no RSA key of {RSA_BITS_MIN} bits and no EC key for signatures")
    return found


def user_of(token: str, keys: Keys, rules: TokenRules, now_ms: int) -> LoggedIn:
    """The user in a token, and the end of its validity. Raises: NotValid."""
    import jwt

    if len(token) > TOKEN_CHARS_MAX:
        raise NotValid("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, RecursionError):  # JSON may be nested as deeply as its sender likes
        raise NotValid("it is no signed token") from None
    algorithm = header.get("alg")
    if algorithm not in rules.algorithms or algorithm not in ALGORITHMS:
        raise NotValid(f"its algorithm {str(algorithm)[:20]!r} is not accepted")
    if "crit" in header:
        raise NotValid("its header has extensions")
    if not keys:
        raise UnknownKey("there are no keys yet to check it with")
    key = keys.get(str(header.get("kid", "")))
    if key is None and "kid" not in header and len(keys) == 1:
        key = next(iter(keys.values()))
    if key is None:
        raise UnknownKey("its key is not known")
    unchecked = {f"verify_{name}": False for name in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")}
    try:
        claims = jwt.decode(token, key.key, algorithms=[algorithm], options={**unchecked, "verify_signature": True})  # type: ignore[arg-type]
    except (jwt.PyJWTError, TypeError, ValueError, RecursionError):
        raise NotValid("its signature is wrong") from None
    return _checked(claims, rules, now_ms)


class UnknownKey(NotValid):
    """The key may be newer than the ones that are known."""


def _checked(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> LoggedIn:
    """Raises: NotValid."""
    expires, begins, issued = claims.get("exp"), claims.get("nbf"), claims.get("iat")
    if not _is_time(expires):
        raise NotValid("it does not say when it expires")
    if now_ms >= expires * 1000 + rules.skew_ms:
        raise NotValid("it has expired")
    for claim in (begins, issued):
        if claim is None:
            continue
        if not _is_time(claim):
            raise NotValid("a time in it is no number")
        if claim * 1000 > now_ms + rules.skew_ms:
            raise NotValid("it is not valid yet")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise NotValid("its issuer is another")
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    if rules.audiences and not any(one in rules.audiences for one in named):
        raise NotValid("it is for another audience")
    scope = claims.get(rules.scope_claim)
    given = scope.split() if isinstance(scope, str) else scope if isinstance(scope, list) else []
    if not all(one in given for one in rules.scopes):
        raise NotValid("it lacks a scope")
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise NotValid(f"it has no claim {rules.user_claim} that names a user")
    return LoggedIn(user, expires_ms=expires * 1000)


def _is_time(claim: Any) -> TypeGuard[int | float]:
    """Seconds. JSON as Python reads it has NaN and Infinity, too."""
    return isinstance(claim, int | float) and not isinstance(claim, bool) and 0 <= claim <= SECONDS_MAX


class TokenServer:
    """One login by OAUTHBEARER."""

    __slots__ = ("_failed", "_verify")

    def __init__(self, verify: Callable[[str], LoggedIn]) -> None:
        """``verify`` looks at a token. Raises: NotValid."""
        self._verify = verify
        self._failed = False

    def evaluate(self, token: bytes) -> LoggedIn | Invalid:
        if self._failed:
            raise Refused(FAILED)
        found = read_message(token) if len(token) <= MESSAGE_BYTES_MAX else None
        if found is None:
            raise Refused("Authentication failed: the OAUTHBEARER message cannot be read.")
        authorization, text = found
        try:
            entered = self._verify(text)
        except NotValid as error:
            self._failed = True
            return Invalid(INVALID, f"the token is refused: {error}")
        if authorization and authorization.decode(errors="replace") != entered.user:
            raise Refused(OTHER, user=entered.user)
        return entered
