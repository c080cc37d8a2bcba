"""The same logins at Firn and at Apache Kafka: who gets which error, and whose connection is closed.

``DIFFERENT`` lists what differs on purpose; docs/adr/0031 has the reasons.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from app.configs.listeners import OAUTH_HANDLER
from app.core.errors import ErrorCode
from app.security.scram import ScramClient, ScramMechanism, salted_password
from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.metadata import MetadataRequest
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.header import encode_request_header, parse_response_header
from tests.interop.secured_sides import PLAIN, Sided, firn_with, kafka_with
from tests.interop.serving import Raw

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ANSWER_S = 15.0
JAAS = "org.apache.kafka.common.security.{}LoginModule required"
MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
ONCE, AGAIN, SHORT = "ONCE", "AGAIN", "SHORT"
"""Listeners: log in once; log in again at any time; within a second and a half."""
SESSION_MS = {AGAIN: 60_000, SHORT: 1500}
TOO_SOON_S = 1.1
"""Who logs in again sooner is refused."""
SIGNS = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SHA256, SHA512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


# --- the two brokers --------------------------------------------------------------------------------------------------


def settings(keys: Path) -> dict[str, str]:
    texts = {
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "brokers",
        "connection.failed.authentication.delay.ms": "0",
        "sasl.server.max.receive.size": "100000",
        "delegation.token.secret.key": "a secret of brokers",
    }
    for name in (ONCE, AGAIN, SHORT):
        prefix = f"listener.name.{name.lower()}"
        texts |= {
            f"{prefix}.sasl.enabled.mechanisms": MECHANISMS,
            f"{prefix}.plain.sasl.jaas.config": JAAS.format("plain.Plain")
            + ' user_alice="alice-secret" user_bob="bob-secret";',
            f"{prefix}.scram-sha-256.sasl.jaas.config": JAAS.format("scram.Scram") + ";",
            f"{prefix}.scram-sha-512.sasl.jaas.config": JAAS.format("scram.Scram") + ";",
            f"{prefix}.oauthbearer.sasl.jaas.config": JAAS.format("oauthbearer.OAuthBearer") + ";",
            f"{prefix}.oauthbearer.sasl.server.callback.handler.class": OAUTH_HANDLER,
        }
        for mechanism in MECHANISMS.lower().split(","):
            if name in SESSION_MS:
                texts[f"{prefix}.{mechanism}.connections.max.reauth.ms"] = str(SESSION_MS[name])
    return texts


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Sided]]:
    path = tmp_path_factory.mktemp("logins")
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(SIGNS.public_key()))
    keys = path / "keys.json"
    keys.write_text(json.dumps({"keys": [{**jwk, "kid": "one", "use": "sig", "alg": "RS256"}]}))
    protocols = dict.fromkeys((ONCE, AGAIN, SHORT), "SASL_PLAINTEXT")
    with (
        kafka_with(path / "kafka", settings(keys), protocols, allowed_urls=keys.as_uri()) as kafka,
        firn_with(path / "firn", settings(keys), protocols) as firn,
    ):
        for side in (kafka, firn):
            add_users(side)
        yield [kafka, firn]


def add_users(side: Sided) -> None:
    """Of SCRAM: carol, and one whose name has what SCRAM escapes."""
    for kind in (SHA256, SHA512):
        wanted = [
            ScramCredentialUpsertion(
                user, int(kind), 4096, b"s" * 24, salted_password(kind, f"{user}-secret", b"s" * 24, 4096)
            )
            for user in ("carol", "a,b=c")
        ]
        with Raw(side.ports[PLAIN]) as raw:
            answer = raw.ask(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, AlterUserScramCredentialsRequest(upsertions=wanted)
            )
        assert [one.error_code for one in answer.results] == [0, 0], answer
    for kind in (SHA256, SHA512):
        for _ in range(100):  # Kafka's broker learns of them later
            talk = Talk(side)
            talk.scram(kind)
            if "NONE" in talk.end()[-2]:
                break
            time.sleep(0.1)


# --- what is said -----------------------------------------------------------------------------------------------------


class Talk:
    """One connection, and what came of each step in words that are the same for both brokers."""

    def __init__(self, side: Sided, listener: str = ONCE) -> None:
        self.found: list[str] = []
        self._socket = socket.create_connection(("127.0.0.1", side.ports[listener]), timeout=ANSWER_S)
        self._correlation_id = 0
        self._silent = False
        self.token = b""
        """What the broker's mechanism has said last."""
        self.sentence: str | None = None
        """What the broker has said of the last login."""

    def end(self) -> list[str]:
        """What was found, and whether the connection is still there."""
        self.found.append("and is open" if self._ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()) else "and is closed")
        self.close()
        return self.found

    def close(self) -> None:
        self._socket.close()

    def frame(self, key: int, version: int, message: Any) -> bytes:
        self._correlation_id += 1
        body = encode_request_header(key, version, self._correlation_id, "talk")
        body += codec.encode_request(key, min(version, 4), message)
        return struct.pack(">i", len(body)) + body

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self._socket.sendall(data)

    def receive(self) -> bytes | None:
        """The next frame; None if there is none, because the connection ends."""
        size = self._exactly(4)
        return None if size is None else self._exactly(*struct.unpack(">i", size))

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                piece = self._socket.recv(count - len(data))
            except TimeoutError:
                self._silent = True
                return None
            except ConnectionError:
                return None
            if not piece:
                return None
            data += piece
        return data

    def _ask(self, key: int, version: int, message: Any) -> Any:
        self.send(self.frame(key, version, message))
        return self.answer(key, version)

    def answer(self, key: int, version: int) -> Any:
        answer = self.receive()
        if answer is None:
            return None
        header = parse_response_header(memoryview(answer), key, version)
        return codec.decode_response(key, version, memoryview(answer)[header.body_start :])

    def note(self, what: str, outcome: str | None) -> None:
        self.found.append(f"{what}: {('silent' if self._silent else 'closed') if outcome is None else outcome}")

    # --- steps --------------------------------------------------------------------------------------------------------

    def api_versions(self, version: int = 3, *, client: str = "talk") -> None:
        asked = ApiVersionsRequest(client_software_name=client, client_software_version="1")
        self.send(self.frame(ApiKey.API_VERSIONS, version, asked))
        answer = self.receive()
        self.note("ApiVersions", None if answer is None else ErrorCode(*struct.unpack_from(">h", answer, 4)).name)

    def metadata(self) -> None:
        answer = self._ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        self.note("Metadata", None if answer is None else "answered")

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> None:
        answer = self._ask(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism))
        said = None
        if answer is not None:
            said = f"{ErrorCode(answer.error_code).name} {','.join(sorted(answer.mechanisms))}"
        self.note(f"handshake {mechanism}", said)

    def authenticate(self, token: bytes, version: int = 2) -> None:
        self.note(
            "authenticate", self.told(self._ask(ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(token)))
        )

    def told(self, answer: Any) -> str | None:
        if answer is None:
            return None
        self.token = bytes(answer.auth_bytes)
        lives = "lives" if answer.session_lifetime_ms else "for ever"
        self.sentence = answer.error_message
        return f"{ErrorCode(answer.error_code).name} {shape(self.token)} {lives}"

    def opaque(self, token: bytes) -> None:
        """A message of the mechanism without a header."""
        self.send(struct.pack(">i", len(token)) + token)
        answer = self.receive()
        self.token = answer or b""
        self.note("message", None if answer is None else shape(answer))

    # --- whole logins -------------------------------------------------------------------------------------------------

    def plain(self, user: str = "alice", password: str = "", authorization: str = "", version: int = 2) -> None:
        self.handshake()
        self.authenticate(plain(user, password or f"{user}-secret", authorization), version)

    def scram(self, kind: ScramMechanism = SHA256, user: str = "carol", password: str = "", **changes: Any) -> None:
        self.handshake(kind.sasl_name)
        said = Scram(kind, user, password or f"{user}-secret", **changes)
        self.authenticate(said.first)
        if self.token:
            self.authenticate(said.final(self.token))

    def oauth(self, token: str | None = None, *, message: bytes | None = None, **claims: Any) -> None:
        self.handshake("OAUTHBEARER")
        self.authenticate(bearer(signed(**claims) if token is None else token) if message is None else message)


def shape(token: bytes) -> str:
    """What of a mechanism's message does not depend on chance."""
    if token.startswith(b"r="):
        nonce, salt, iterations = token.split(b",")[:3]
        return f"r=({len(nonce) > 20}) s=({len(base64.b64decode(salt[2:])) > 0}) {iterations.decode()}"
    if token.startswith(b"v="):
        return f"v=({len(token)})"
    return repr(bytes(token))


def plain(user: str, password: str, authorization: str = "") -> bytes:
    return b"\0".join(one.encode() for one in (authorization, user, password))


class Scram:
    """A client that may say something wrong."""

    def __init__(
        self,
        kind: ScramMechanism,
        user: str,
        password: str,
        *,
        header: bytes = b"n,,",
        binding: bytes | None = None,
        extensions: bytes = b"",
        nonce: Callable[[bytes], bytes] = lambda nonce: nonce,
        proof: Callable[[bytes], bytes] = lambda proof: proof,
        escaped: str | None = None,
        more: bytes = b"",
    ) -> None:
        name = user.replace("=", "=3D").replace(",", "=2C") if escaped is None else escaped
        self._bare = b"n=%s,r=fyko+d2lbbFgONRv9qkxdawL%s" % (name.encode(), extensions)
        self._header, self._binding = header, header if binding is None else binding
        self._kind, self._password, self._nonce, self._proof, self._more = kind, password, nonce, proof, more

    @property
    def first(self) -> bytes:
        return self._header + self._bare

    def final(self, server: bytes) -> bytes:
        nonce, salt, iterations = (part[2:] for part in server.split(b",")[:3])
        salted = salted_password(self._kind, self._password, base64.b64decode(salt), int(iterations))
        said = b"c=%s,r=%s%s" % (base64.b64encode(self._binding), self._nonce(nonce), self._more)
        digest = self._kind.digest
        client = hmac.digest(salted, b"Client Key", digest)
        stored = hashlib.new(digest, client).digest()
        signature = hmac.digest(stored, b",".join((self._bare, server, said)), digest)
        proof = bytes(a ^ b for a, b in zip(client, signature, strict=True))
        return said + b",p=" + self._proof(base64.b64encode(proof))


def signed(key: Any = SIGNS, algorithm: str = "RS256", kid: str | None = "one", **claims: Any) -> str:
    now = int(time.time())
    made = {"sub": "robot", "aud": "brokers", "iat": now, "exp": now + 300, "scope": "x", **claims}
    made = {name: value for name, value in made.items() if value is not None}
    return jwt.encode(made, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid})


def unsigned() -> str:
    parts = ({"alg": "none", "kid": "one"}, {"sub": "robot", "aud": "brokers", "exp": int(time.time()) + 300})
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in parts) + "."


def bearer(token: str, authorization: str = "", extensions: str = "") -> bytes:
    who = f"a={authorization}" if authorization else ""
    return f"n,{who},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


# --- conversations ----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    steps: Callable[[Talk], Any]
    listener: str = ONCE


def in_turn(*steps: Callable[[Talk], Any]) -> Callable[[Talk], None]:
    def play(talk: Talk) -> None:
        for step in steps:
            step(talk)

    return play


def wait(talk: Talk) -> None:
    del talk
    time.sleep(TOO_SOON_S)


def pipelined(talk: Talk) -> None:
    """A request that does not wait for the answer to the login."""
    talk.handshake()
    login = talk.frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(plain("alice", "wrong")))
    talk.send(login + talk.frame(ApiKey.METADATA, 12, MetadataRequest(topics=[])))
    talk.note("authenticate", talk.told(talk.answer(ApiKey.SASL_AUTHENTICATE, 2)))
    talk.note("Metadata", None if talk.receive() is None else "answered")


def raw(data: bytes) -> Callable[[Talk], None]:
    def step(talk: Talk) -> None:
        talk.send(data)
        talk.note("bytes", None if talk.receive() is None else "answered")

    return step


def frame_of(key: int, version: int) -> Callable[[Talk], None]:
    def step(talk: Talk) -> None:
        talk.send(struct.pack(">ihhih", 10 + 10, key, version, 1, -1) + bytes(10))
        talk.note(f"{key} {version}", None if talk.receive() is None else "answered")

    return step


hello = Talk.api_versions
LONG = "x" * 15_000
CASES: dict[str, Case | Callable[[Talk], Any]] = {
    # what comes before a login
    "nothing but a request": Talk.metadata,
    "a request after the versions": in_turn(hello, Talk.metadata),
    "the versions, old and new": in_turn(*[lambda t, v=v: t.api_versions(v) for v in (0, 2)]),
    "the versions, twice": in_turn(hello, hello),
    "versions of the future": in_turn(lambda t: t.api_versions(99), Talk.plain, Talk.metadata),
    "versions of a client without a name": lambda t: t.api_versions(3, client="a b!"),
    "versions after the handshake": in_turn(Talk.handshake, hello, lambda t: t.authenticate(plain("alice", "alice-secret"))),
    "a message before the handshake": lambda t: t.authenticate(plain("alice", "alice-secret")),
    "a message of version 0 before the handshake": lambda t: t.authenticate(plain("alice", "alice-secret"), 0),
    "a request after the handshake": in_turn(Talk.handshake, Talk.metadata),
    "two handshakes": in_turn(Talk.handshake, Talk.handshake),
    "two handshakes of old": in_turn(lambda t: t.handshake(version=0), lambda t: t.handshake(version=0)),
    "a handshake of the future": frame_of(ApiKey.SASL_HANDSHAKE, 9),
    "a message of the future": in_turn(Talk.handshake, frame_of(ApiKey.SASL_AUTHENTICATE, 9)),
    "an API that nobody knows": frame_of(999, 0),
    "GSSAPI without a handshake": raw(struct.pack(">i", 40) + b"\x60" + bytes(39)),
    "a request in the packet of a wrong password": pipelined,
    # mechanisms
    **{
        f"mechanism {name!r}, version {version}": lambda t, name=name, version=version: t.handshake(name, version)
        for name in ("GSSAPI", "plain", "", "SCRAM-SHA-1", "X" * 200)
        for version in (0, 1)
    },
    # sizes
    "more bytes than may be": raw(struct.pack(">i", 100_001) + bytes(20)),
    "fewer than none": raw(struct.pack(">i", -1) + bytes(20)),
    "none": raw(struct.pack(">i", 0) + bytes(20)),
    "a message that is too large": in_turn(Talk.handshake, lambda t: t.authenticate(bytes(100_000))),
    "a large message": in_turn(Talk.handshake, lambda t: t.authenticate(b"\0alice\0" + bytes(b"x" * 90_000))),
    # PLAIN
    "alice": in_turn(hello, Talk.plain, Talk.metadata),
    "alice, without the versions": in_turn(Talk.plain, Talk.metadata),
    "alice by version 0": in_turn(lambda t: t.plain(version=0), Talk.metadata),
    "alice by version 1": in_turn(lambda t: t.plain(version=1), Talk.metadata),
    "alice, a wrong password": lambda t: t.plain(password="wrong"),
    "alice, bob's password": lambda t: t.plain(password="bob-secret"),
    "nobody": lambda t: t.plain("nobody"),
    "alice as alice": in_turn(lambda t: t.plain(authorization="alice"), Talk.metadata),
    "alice as bob": lambda t: t.plain(authorization="bob"),
    **{
        f"PLAIN {token[:20]!r}": in_turn(Talk.handshake, lambda t, token=token: t.authenticate(token))
        for token in (b"", b"\0", b"\0\0", b"\0alice", b"\0alice\0", b"\0\0alice-secret", b"\0alice\0alice-secret\0",
                      b"alice\0alice-secret", b"\0\xff\xfe\0x", b"\0alice\0\xff", b"x" * 1000)
    },
    "alice, of old": in_turn(
        lambda t: t.handshake(version=0), lambda t: t.opaque(plain("alice", "alice-secret")), Talk.metadata
    ),
    "a wrong password, of old": in_turn(lambda t: t.handshake(version=0), lambda t: t.opaque(plain("alice", "wrong"))),
    "an empty message, of old": in_turn(lambda t: t.handshake(version=0), lambda t: t.opaque(b"")),
    "a message with a header, of old": in_turn(
        lambda t: t.handshake(version=0), lambda t: t.authenticate(plain("alice", "alice-secret"))
    ),
    # after the login
    "a second message": in_turn(Talk.plain, lambda t: t.authenticate(plain("alice", "alice-secret")), Talk.metadata),
    "a second handshake": in_turn(Talk.plain, Talk.handshake, Talk.metadata),
    "a second handshake by another mechanism": in_turn(Talk.plain, lambda t: t.handshake("SCRAM-SHA-256"), Talk.metadata),
    # SCRAM
    "carol by SHA-256": in_turn(hello, Talk.scram, Talk.metadata),
    "carol by SHA-512": in_turn(hello, lambda t: t.scram(SHA512), Talk.metadata),
    "carol, of old": in_turn(lambda t: scram_of_old(t), Talk.metadata),
    "carol, a wrong password, of old": lambda t: scram_of_old(t, "wrong"),
    "carol, a wrong password": lambda t: t.scram(password="wrong"),
    "carol by SHA-512, a wrong password": lambda t: t.scram(SHA512, password="wrong"),
    "nobody by SCRAM": lambda t: t.scram(user="nobody"),
    "alice of PLAIN by SCRAM": lambda t: t.scram(user="alice"),
    "carol by PLAIN": lambda t: t.plain("carol"),
    "a name that is escaped": in_turn(lambda t: t.scram(user="a,b=c"), Talk.metadata),
    "a name that should be escaped": lambda t: t.scram(user="a=b", escaped="a=b"),
    "carol as carol": in_turn(lambda t: t.scram(header=b"n,a=carol,"), Talk.metadata),
    "carol as alice": lambda t: t.scram(header=b"n,a=alice,"),
    "a client that could bind": in_turn(lambda t: t.scram(header=b"y,,"), Talk.metadata),
    "a client that binds": lambda t: t.scram(header=b"p=tls-unique,,"),
    "another binding": lambda t: t.scram(binding=b"y,,"),
    "a binding that is none": lambda t: t.scram(binding=b""),
    "an extension that must be known": lambda t: t.scram(header=b"n,,m=x,"),
    "an extension": in_turn(lambda t: t.scram(extensions=b",x=y"), Talk.metadata),
    "an extension of the last message": in_turn(lambda t: t.scram(more=b",x=y"), Talk.metadata),
    "another nonce": lambda t: t.scram(nonce=lambda nonce: nonce + b"x"),
    "the client's nonce alone": lambda t: t.scram(nonce=lambda nonce: nonce[:24]),
    "the nonce without its end": lambda t: t.scram(nonce=lambda nonce: nonce[:-1]),
    "a proof that is too short": lambda t: t.scram(proof=lambda proof: b"AAAA"),
    "no proof": lambda t: t.scram(proof=lambda proof: b""),
    "a proof that is no base64": lambda t: t.scram(proof=lambda proof: b"!!!!"),
    "a token of nobody": lambda t: t.scram(extensions=b",tokenauth=true"),
    "tokenauth is false": in_turn(lambda t: t.scram(extensions=b",tokenauth=false"), Talk.metadata),
    "a handshake in the middle of SCRAM": in_turn(
        lambda t: t.handshake("SCRAM-SHA-256"), lambda t: t.authenticate(b"n,,n=carol,r=abcdef"), Talk.handshake
    ),
    "versions in the middle of SCRAM": in_turn(
        lambda t: t.handshake("SCRAM-SHA-256"), lambda t: t.authenticate(b"n,,n=carol,r=abcdef"), hello
    ),
    "SHA-512 after a handshake for SHA-256": lambda t: mixed_scram(t),
    **{
        f"SCRAM {token[:24]!r}": in_turn(lambda t: t.handshake("SCRAM-SHA-256"), lambda t, token=token: t.authenticate(token))
        for token in (b"", b"n,,", b"n,,n=,r=abc", b"n,,n=carol,r=", b"n,,r=abc,n=carol", b"n,n=carol,r=abc", b"n=carol,r=abc",
                      b"n,,n=carol,r=a b", b"n,,n=\xff,r=abc", b"n,,n=carol,r=abc\0", b"c=biws,r=abc,p=AAAA", b"x" * 20_000,
                      f"n,,n=carol,r={LONG}".encode())
    },
    "a last message that is none": in_turn(
        lambda t: t.handshake("SCRAM-SHA-256"), lambda t: t.authenticate(b"n,,n=carol,r=abcdef"), lambda t: t.authenticate(b"")
    ),
    "the first message twice": in_turn(
        lambda t: t.handshake("SCRAM-SHA-256"), *[lambda t: t.authenticate(b"n,,n=carol,r=abcdef")] * 2
    ),
    # OAUTHBEARER
    "a token": in_turn(Talk.oauth, Talk.metadata),
    "a token of nobody in particular": lambda t: t.oauth(sub=None),
    "a token whose user is empty": lambda t: t.oauth(sub=""),
    "a token that has expired": lambda t: t.oauth(iat=int(time.time()) - 200, exp=int(time.time()) - 100),
    "a token that expired a moment ago": lambda t: t.oauth(iat=int(time.time()) - 200, exp=int(time.time()) - 10),
    "a token that never expires": lambda t: t.oauth(exp=None),
    "a token without a begin": in_turn(lambda t: t.oauth(iat=None), Talk.metadata),
    "a token of tomorrow": lambda t: t.oauth(nbf=int(time.time()) + 86_400),
    "a token that was issued tomorrow": lambda t: t.oauth(iat=int(time.time()) + 86_400, exp=int(time.time()) + 90_000),
    "a token for another audience": lambda t: t.oauth(aud="others"),
    "a token for several": in_turn(lambda t: t.oauth(aud=["others", "brokers"]), Talk.metadata),
    "a token for nobody": lambda t: t.oauth(aud=None),
    "a token without a scope": lambda t: t.oauth(scope=None),
    "a token of a stranger": lambda t: t.oauth(signed(STRANGER)),
    "a token of an unknown key": lambda t: t.oauth(signed(STRANGER, kid="two")),
    "a token without a key's id": in_turn(lambda t: t.oauth(signed(kid=None)), Talk.metadata),
    "a token by another algorithm of the key": in_turn(lambda t: t.oauth(signed(algorithm="PS256")), Talk.metadata),
    "a token by HS256": lambda t: t.oauth(signed("x" * 40, "HS256")),
    "a token without a signature": lambda t: t.oauth(unsigned()),
    "no token": lambda t: t.oauth("abc"),
    "a token as its user": in_turn(lambda t: t.oauth(message=bearer(signed(), "robot")), Talk.metadata),
    "a token as another": lambda t: t.oauth(message=bearer(signed(), "alice")),
    "a token with extensions": lambda t: t.oauth(message=bearer(signed(), "", "a=b\x01")),
    "a token, and the client gives in": in_turn(lambda t: t.oauth(aud="others"), lambda t: t.authenticate(b"\x01")),
    "a token, and the client goes on": in_turn(lambda t: t.oauth(aud="others"), lambda t: t.authenticate(bearer(signed()))),
    "a token, of old": in_turn(
        lambda t: t.handshake("OAUTHBEARER", 0), lambda t: t.opaque(bearer(signed())), Talk.metadata
    ),
    "a wrong token, of old": in_turn(
        lambda t: t.handshake("OAUTHBEARER", 0), lambda t: t.opaque(bearer(signed(aud="others"))), lambda t: t.opaque(b"\x01")
    ),
    **{
        f"OAUTHBEARER {token[:24]!r}": in_turn(lambda t: t.handshake("OAUTHBEARER"), lambda t, token=token: t.authenticate(token))
        for token in (b"", b"n,,", b"n,,\x01\x01", b"n,,\x01auth=Basic abc\x01\x01", b"n,,\x01auth=Bearer \x01\x01",
                      b"n,,auth=Bearer abc", b"y,,\x01auth=Bearer abc\x01\x01", b"\x01")
    },
    # logging in again (KIP-368)
    "again": Case(in_turn(Talk.plain, wait, Talk.plain, Talk.metadata), AGAIN),
    "again by SCRAM": Case(in_turn(Talk.scram, wait, Talk.scram, Talk.metadata), AGAIN),
    "again by a token": Case(in_turn(Talk.oauth, wait, Talk.oauth, Talk.metadata), AGAIN),
    "at once": Case(in_turn(Talk.plain, Talk.plain, Talk.metadata), AGAIN),
    "again and at once once more": Case(in_turn(Talk.plain, wait, Talk.plain, Talk.handshake, Talk.metadata), AGAIN),
    "again and later once more": Case(in_turn(Talk.plain, wait, Talk.plain, wait, Talk.plain, Talk.metadata), AGAIN),
    "as another user": Case(in_turn(Talk.plain, wait, lambda t: t.plain("bob"), Talk.metadata), AGAIN),
    "by another mechanism": Case(in_turn(Talk.plain, wait, Talk.scram), AGAIN),
    "by a mechanism that nobody knows": Case(in_turn(Talk.plain, wait, lambda t: t.handshake("X")), AGAIN),
    "with a wrong password": Case(in_turn(Talk.plain, wait, lambda t: t.plain(password="wrong")), AGAIN),
    "with another token of the same user": Case(in_turn(Talk.oauth, wait, lambda t: t.oauth(jti="x"), Talk.metadata), AGAIN),
    "with a token of another user": Case(in_turn(Talk.oauth, wait, lambda t: t.oauth(sub="other")), AGAIN),
    "a request in the middle of the second login": Case(in_turn(Talk.plain, wait, Talk.handshake, Talk.metadata), AGAIN),
    "versions in the middle of the second login": Case(in_turn(Talk.plain, wait, Talk.handshake, hello), AGAIN),
    "a message without a second handshake": Case(
        in_turn(Talk.plain, wait, lambda t: t.authenticate(plain("alice", "alice-secret")), Talk.metadata), AGAIN
    ),
    "again, of old": Case(in_turn(Talk.plain, wait, lambda t: t.handshake(version=0), Talk.metadata), AGAIN),
    "by version 0 nobody is told of an end": Case(in_turn(lambda t: t.plain(version=0), Talk.metadata), AGAIN),
    "after the end of the session": Case(in_turn(Talk.plain, wait, wait, Talk.metadata), SHORT),
    "the versions after the end of the session": Case(in_turn(Talk.plain, wait, wait, hello), SHORT),
    "again after the end of the session": Case(in_turn(Talk.plain, wait, wait, Talk.plain, Talk.metadata), SHORT),
    "version 0 after the end of the session": Case(in_turn(lambda t: t.plain(version=0), wait, wait, Talk.metadata), SHORT),
    "of old after the end of the session": Case(
        in_turn(lambda t: t.handshake(version=0), lambda t: t.opaque(plain("alice", "alice-secret")), wait, wait, Talk.metadata),
        SHORT,
    ),
}  # fmt: skip

CLOSED, FAILED = "authenticate: closed", "authenticate: SASL_AUTHENTICATION_FAILED b'' for ever"
GO_ON, IN = "authenticate: NONE r=(True) s=(True) i=4096 for ever", "authenticate: NONE v=(46) for ever"
TOKEN_IN, TOKEN_OUT = "authenticate: NONE b'' lives", 'authenticate: NONE b\'{"status":"invalid_token"}\' for ever'
NO_VERSIONS, VERSIONS = "ApiVersions: ILLEGAL_SASL_STATE", "ApiVersions: NONE"
ALL = "OAUTHBEARER,PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
DIFFERENT: dict[str, tuple[str, str]] = {
    # ApiVersions is answered at any time.
    "the versions, old and new": ("ApiVersions: closed", VERSIONS),
    "the versions, twice": ("ApiVersions: closed", VERSIONS),
    "versions after the handshake": (NO_VERSIONS, VERSIONS),
    "versions in the middle of SCRAM": (NO_VERSIONS, VERSIONS),
    "versions in the middle of the second login": (NO_VERSIONS, VERSIONS),
    # What comes before its time: Kafka tells who has sent an API of its own, and Firn who has sent a message.
    "a request after the handshake": ("Metadata: answered", "Metadata: closed"),
    "a request in the middle of the second login": ("Metadata: answered", "Metadata: closed"),
    "a message before the handshake": (CLOSED, "authenticate: ILLEGAL_SASL_STATE b'' for ever"),
    "a message of version 0 before the handshake": (CLOSED, "authenticate: ILLEGAL_SASL_STATE b'' for ever"),
    "by another mechanism": (f"handshake SCRAM-SHA-256: NONE {ALL}", f"handshake SCRAM-SHA-256: UNSUPPORTED_SASL_MECHANISM {ALL}"),
    "by a mechanism that nobody knows": ("handshake X: closed", f"handshake X: UNSUPPORTED_SASL_MECHANISM {ALL}"),
    # Nobody learns who exists.
    "nobody by SCRAM": (FAILED, GO_ON),
    "alice of PLAIN by SCRAM": (FAILED, GO_ON),
    "a token of nobody": (FAILED, GO_ON),
    # SCRAM by the letter of RFC 5802.
    "a client that could bind": (FAILED, GO_ON),
    "another binding": (IN, FAILED),
    "a binding that is none": (IN, FAILED),
    "an extension that must be known": (GO_ON, FAILED),
    "an extension of the last message": (FAILED, IN),
    # Kafka stumbles, and closes the connection without an answer.
    "a proof that is too short": (CLOSED, FAILED),
    "no proof": (CLOSED, FAILED),
    "SHA-512 after a handshake for SHA-256": (CLOSED, FAILED),
    "OAUTHBEARER b'n,,\\x01auth=Basic abc\\x01\\x01'": (CLOSED, FAILED),
    # Tokens.
    "a token that expired a moment ago": ("authenticate: NONE b'' for ever", TOKEN_IN),
    "a token without a begin": (TOKEN_OUT, TOKEN_IN),
    "a token that was issued tomorrow": (TOKEN_IN, TOKEN_OUT),
    "a token, and the client goes on": (TOKEN_IN, FAILED),
}  # fmt: skip
"""The first step that differs, at Kafka and at Firn."""

SAME_WORDS = (
    "alice, a wrong password", "nobody", "carol, a wrong password", "carol by SHA-512, a wrong password",
    "a token, and the client gives in", "a second message",
)  # fmt: skip
"""Cases after which clients show their users the same sentence."""


def scram_of_old(talk: Talk, password: str = "carol-secret") -> None:
    talk.handshake("SCRAM-SHA-256", 0)
    said = ScramClient(SHA256, "carol", password, nonce="abcdef")
    talk.opaque(said.first)
    talk.opaque(said.answer(talk.token))


def mixed_scram(talk: Talk) -> None:
    talk.handshake("SCRAM-SHA-256")
    said = Scram(SHA512, "carol", "carol-secret")
    talk.authenticate(said.first)
    talk.authenticate(said.final(talk.token))


def played(side: Sided, case: Case) -> tuple[list[str], str | None]:
    talk = Talk(side, case.listener)
    try:
        case.steps(talk)
        return talk.end(), talk.sentence
    finally:
        talk.close()


@pytest.mark.parametrize("name", CASES)
def test_a_login_ends_as_at_kafka(sides: list[Sided], name: str) -> None:
    case = CASES[name]
    (kafka, said), (firn, says) = [played(side, case if isinstance(case, Case) else Case(case)) for side in sides]
    if name in DIFFERENT:
        found = next((pair for pair in zip(kafka, firn, strict=False) if pair[0] != pair[1]), None)
        assert found == DIFFERENT[name]
    else:
        assert firn == kafka
    if name in SAME_WORDS:
        assert says == said


def test_what_differs_is_listed_by_its_name() -> None:
    assert not [name for name in (*DIFFERENT, *SAME_WORDS) if name not in CASES]
