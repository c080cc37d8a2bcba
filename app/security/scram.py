"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), both sides. Pure: nonces come in, nothing is read or sent.

A server knows of each user a ``ScramCredential``, which cannot be used to log in. A user who does not exist goes the same way as
one with a wrong password: same messages, same computations, and a salt that stays the same for that name. Clients choose salts
and iterations, and each makes them in its own way. So the salt of a user who does not exist has the shape of some user's.
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from app.security.sasl import LoggedIn, Refused

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds."""
SALT_BYTES: Final = 24
NONCE_BYTES: Final = 24
SECRET_BYTES: Final = 32
"""The secret from which salts of users who do not exist are derived."""
MESSAGE_BYTES_MAX: Final = 16_384
DOUBLED_NONCE: Final = (
    "the client repeats its nonce in front of the server's, as librdkafka before 2.6.1 does, and kcat of Debian 12 with it. "
    "Update the client."
)
"""The refusal of such a message, before any credential is read. RFC 5802, 5.1 has the nonce as the server sent it."""
SHAPES_MAX: Final = 64
"""Shapes of salts that are imitated. Each costs a login some microsecond."""
SHAPE_BYTES_MAX: Final = 1024
"""Longer salts are imitated by shorter ones."""
_CLIENT_FIRST: Final = re.compile(
    rb"([^,]*),(a=([^,]*))?,(m=[^,]*,)?n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(,.+)?", re.DOTALL
)
_SERVER_FIRST: Final = re.compile(
    rb"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9/+]+={0,2}),i=([0-9]{1,9})(?:,.*)?", re.DOTALL
)
_CLIENT_FINAL: Final = re.compile(
    rb"c=([A-Za-z0-9/+]+={0,2}),r=([\x21-\x2b\x2d-\x7e]+)((?:,[a-zA-Z]=[^,]*)*),p=([A-Za-z0-9/+]+={0,2})", re.DOTALL
)


class ScramMechanism(IntEnum):
    """With the numbers of DescribeUserScramCredentials."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @classmethod
    def of(cls, name: str) -> ScramMechanism:
        """Raises: KeyError."""
        return cls[name.replace("-", "_")]

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """For ``hashlib``."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


class ScramCredential(NamedTuple):
    """The stored form of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class TokenCredential(NamedTuple):
    """The credential of a delegation token."""

    credential: ScramCredential
    user: str
    """Name of the token's owner."""
    expires_ms: int


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Costs ``iterations`` times two hashes: some milliseconds."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", mechanism.digest), iterations)


class Alphabet(IntEnum):
    """The bytes that a salt is made of."""

    JAVA = 0
    """The digits of a number of 130 bits in base 36, 23 to 26, as Kafka's ``ScramFormatter`` makes them."""
    HEXADECIMAL = 1
    SMALL = 2
    """Digits and small letters."""
    BASE64 = 3
    PRINTED = 4
    ALL = 5


class SaltShape(NamedTuple):
    """The facts of a user that a server shows before a password is proven, without the bytes of the salt."""

    alphabet: Alphabet
    length: int
    """In bytes; 0 with ``JAVA``."""
    iterations: int


_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_BYTES: Final[Mapping[Alphabet, bytes]] = {
    Alphabet.HEXADECIMAL: _DIGITS[:16],
    Alphabet.SMALL: _DIGITS,
    Alphabet.BASE64: b"+-/=_" + _DIGITS + _DIGITS[10:].upper(),
    Alphabet.PRINTED: bytes(range(0x20, 0x7F)),
    Alphabet.ALL: bytes(range(256)),
}
"""Each has those before."""
_JAVA: Final = re.compile(rb"[1-9a-z][0-9a-z]{22,25}")
_JAVA_BITS: Final = 130
DEFAULT_SHAPE: Final = SaltShape(Alphabet.ALL, SALT_BYTES, ITERATIONS_MIN)
"""While there is no user. Delegation tokens always have it."""
NO_SHAPES: Final[Mapping[SaltShape, int]] = MappingProxyType({})
NO_IMITATIONS: Final = (DEFAULT_SHAPE,)
"""Where no user exists."""


def shape_of(credential: ScramCredential) -> SaltShape:
    """The shape of a user's salt."""
    salt, iterations = credential.salt, credential.iterations
    alphabet = next(one for one, its_bytes in _BYTES.items() if not salt.translate(None, its_bytes))
    if alphabet is Alphabet.SMALL and _JAVA.fullmatch(salt) and int(salt, len(_DIGITS)) >> _JAVA_BITS == 0:
        return SaltShape(Alphabet.JAVA, 0, iterations)
    return SaltShape(alphabet, min(len(salt), SHAPE_BYTES_MAX), iterations)


def counted(
    shapes: Mapping[SaltShape, int], gone: ScramCredential | None, new: ScramCredential | None
) -> Mapping[SaltShape, int]:
    """How many users have each shape, after one has another credential."""
    counts = dict(shapes)
    if new is not None:
        shape = shape_of(new)
        counts[shape] = counts.get(shape, 0) + 1
    if gone is not None:
        shape = shape_of(gone)
        counts[shape] -= 1
        if not counts[shape]:
            del counts[shape]
    return counts


def imitated(shapes: Iterable[SaltShape]) -> tuple[SaltShape, ...]:
    """The shapes that names without a user have, beside users with these. With more than ``SHAPES_MAX`` some are left out, always
    the same ones, however many users have them."""
    return tuple(heapq.nsmallest(SHAPES_MAX, shapes)) or NO_IMITATIONS


def nobody(
    mechanism: ScramMechanism,
    secret: bytes,
    user: str,
    shapes: Collection[SaltShape] = NO_IMITATIONS,
) -> ScramCredential:
    """In place of the credential of a user who does not exist. No proof fits it.

    ``secret`` must stay the same, and be the same on all brokers, because the salt of a user who exists does. ``shapes``: those
    that are ``imitated``. A name keeps its shape when others come and go, but for few names.
    """
    known = hmac.digest(secret, mechanism.sasl_name.encode() + b"\0" + user.encode(), "sha512")
    stored_key = hmac.digest(secret, b"stored\0" + known, mechanism.digest)
    server_key = hmac.digest(secret, b"server\0" + known, mechanism.digest)
    shape = max(shapes, key=lambda one: hmac.digest(secret, b"shape\0%d,%d,%d\0" % one + known, "sha256"))
    # A salt may show all of ``known``: the bytes behind it must not follow from it.
    more = hashlib.shake_256(hmac.digest(secret, b"more\0" + known, "sha512"))
    return ScramCredential(
        _salt(shape, known + more.digest(2 * shape.length)), stored_key, server_key, shape.iterations
    )


def no_token(mechanism: ScramMechanism, secret: bytes, token_id: str) -> ScramCredential:
    """In place of the credential of a delegation token that does not exist or has ended. No proof fits it. Its salt is the one
    that a token with this id has, and another than a user of this name has."""
    return nobody(mechanism, secret, "\0" + token_id)


def _salt(shape: SaltShape, stream: bytes) -> bytes:
    """A salt of this shape, of random bytes."""
    if shape.alphabet is Alphabet.ALL:
        return stream[: shape.length]
    if shape.alphabet is Alphabet.JAVA:
        number, digits = int.from_bytes(stream) >> (8 * len(stream) - _JAVA_BITS), bytearray()
        while number:
            number, digit = divmod(number, len(_DIGITS))
            digits.append(_DIGITS[digit])
        return bytes(reversed(digits))
    its_bytes = _BYTES[shape.alphabet]
    # Two bytes for each, so that none of them comes more often.
    return bytes(
        [its_bytes[int.from_bytes(stream[at : at + 2]) % len(its_bytes)] for at in range(0, 2 * shape.length, 2)]
    )


class ScramServer:
    """One login, as the server sees it: ``evaluate`` each message of the client until it is logged in."""

    __slots__ = (
        "_auth_message",
        "_credential",
        "_exists",
        "_gs2",
        "_mechanism",
        "_nonce",
        "_nonce_full",
        "_secret",
        "_shapes",
        "_token",
        "_token_secret",
        "_tokens",
        "_user",
        "_users",
    )

    def __init__(
        self,
        mechanism: ScramMechanism,
        users: Callable[[str], ScramCredential | None],
        *,
        nonce: str,
        secret: bytes,
        shapes: Collection[SaltShape] = NO_IMITATIONS,
        tokens: Callable[[str], TokenCredential | None] = lambda _: None,
        token_secret: bytes = b"",
    ) -> None:
        """``users`` finds the credential of a name, ``tokens`` that of a delegation token's id. ``nonce`` must never have been used
        before, and not be guessed. ``secret`` and ``shapes``: see ``nobody``. ``token_secret``: derives the salts of
        tokens; empty if there are none."""
        self._mechanism = mechanism
        self._users = users
        self._tokens = tokens
        self._token: TokenCredential | None = None
        self._nonce = nonce.encode()
        self._secret = secret
        self._shapes = shapes
        self._token_secret = token_secret or secret
        self._credential: ScramCredential | None = None
        self._exists = False
        self._user = ""
        self._gs2 = b""
        self._auth_message = b""
        self._nonce_full = b""

    def evaluate(self, token: bytes) -> bytes | LoggedIn:
        """Returns: the message to the client. Raises: Refused."""
        if len(token) > MESSAGE_BYTES_MAX:
            raise Refused(self._why())
        return self._first(token) if self._credential is None else self._final(token)

    def _why(self) -> str:
        return (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism.sasl_name}"
        )

    def _first(self, token: bytes) -> bytes:
        found = _CLIENT_FIRST.fullmatch(token)
        if found is None or found[1] not in (b"n", b"y") or found[4] is not None:
            raise Refused(self._why())
        try:
            self._user = _unescaped(found[5].decode())
            authorization = _unescaped(found[3].decode()) if found[3] else ""
        except (UnicodeDecodeError, ValueError):
            raise Refused(self._why()) from None
        if authorization not in ("", self._user):
            raise Refused(self._why(), user=self._user)
        # The substitute is made for everybody: it takes some microseconds.
        if _asks_for_token(found[7] or b""):
            self._token = self._tokens(self._user)
            credential = None if self._token is None else self._token.credential
            substitute = no_token(self._mechanism, self._token_secret, self._user)
        else:
            credential = self._users(self._user)
            substitute = nobody(self._mechanism, self._secret, self._user, self._shapes)
        self._exists = credential is not None
        self._credential = credential if credential is not None else substitute
        self._nonce_full = found[6] + self._nonce
        self._gs2 = token[: token.index(b"n=", len(found[1]) + 1 + len(found[2] or b""))]
        answer = b"r=%s,s=%s,i=%d" % (
            self._nonce_full,
            b64encode(self._credential.salt),
            self._credential.iterations,
        )
        self._auth_message = token[len(self._gs2) :] + b"," + answer
        return answer

    def _final(self, token: bytes) -> LoggedIn:
        credential = self._credential
        assert credential is not None
        found = _CLIENT_FINAL.fullmatch(token)
        if found is None:
            raise Refused(self._why(), user=self._user)
        try:
            binding, proof = b64decode(found[1], validate=True), b64decode(found[4], validate=True)
        except NotBase64:
            raise Refused(self._why(), user=self._user) from None
        if found[2] == self._nonce_full[: -len(self._nonce)] + self._nonce_full:
            raise Refused(f"{self._why()}: {DOUBLED_NONCE}.", user=self._user)
        if binding != self._gs2 or found[2] != self._nonce_full or len(proof) != self._mechanism.key_bytes:
            raise Refused(self._why(), user=self._user)
        message = self._auth_message + b"," + token[: token.rindex(b",p=")]
        digest = self._mechanism.digest
        signature = hmac.digest(credential.stored_key, message, digest)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key)
        server = hmac.digest(credential.server_key, message, digest)
        if not (fits and self._exists):
            raise Refused(self._why(), user=self._user)
        last = b"v=" + b64encode(server)
        if self._token is not None:
            return LoggedIn(self._token.user, last, self._token.expires_ms, by_token=True)
        return LoggedIn(self._user, last)


class ScramClient:
    """One login, as the client sees it: send ``first``, then the result of ``answer``, and ``check`` the last message."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str, token: bool = False) -> None:
        """``token``: whether ``user`` is the id of a delegation token, and ``password`` its secret in base64."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce.encode()
        self._bare = b"n=%s,r=%s%s" % (_escaped(user).encode(), self._nonce, b",tokenauth=true" if token else b"")
        self._server_signature = b""

    @property
    def first(self) -> bytes:
        return b"n,," + self._bare

    def answer(self, token: bytes) -> bytes:
        """The message that proves the password. Raises: Refused, if the server does not speak SCRAM or asks for too little."""
        found = _SERVER_FIRST.fullmatch(token)
        if found is None or not found[1].startswith(self._nonce) or len(found[1]) <= len(self._nonce):
            raise Refused("The server's first SCRAM message cannot be read.")
        iterations = int(found[3])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise Refused(
                f"The server asks for {iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are done."
            )
        digest = self._mechanism.digest
        salt = b64decode(found[2])
        credential = credential_of(
            self._mechanism,
            salted := salted_password(self._mechanism, self._password, salt, iterations),
            salt,
            iterations,
        )
        without_proof = b"c=biws,r=" + found[1]
        message = self._bare + b"," + token + b"," + without_proof
        client_key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(credential.stored_key, message, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(credential.server_key, message, digest)
        return without_proof + b",p=" + b64encode(proof)

    def check(self, token: bytes) -> None:
        """Whether the server knows the password, too. Raises: Refused."""
        if not self._server_signature or not hmac.compare_digest(token, b"v=" + b64encode(self._server_signature)):
            raise Refused("The server does not prove that it knows the password.")


def _asks_for_token(extensions: bytes) -> bool:
    """Whether the client logs in with a delegation token: it sends ``tokenauth=true`` (KIP-48)."""
    return any(
        name == b"tokenauth" and value.lower() == b"true"
        for name, _, value in (one.partition(b"=") for one in extensions.split(b","))
    )


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    """Raises: ValueError."""
    plain = name.replace("=2C", ",").replace("=3D", "\0")
    if "=" in plain or "\0" in name:
        raise ValueError
    return plain.replace("\0", "=")
