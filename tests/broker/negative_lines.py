"""Lines of the negative matrix: one request of a user without the right."""

from __future__ import annotations

import base64
import hmac
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from app.handlers.base.authorising import TABLE
from app.security.acls import CLUSTER_NAME, WILDCARD, Operation, ResourceType
from app.security.sasl import plain_message
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.private import ForwardedRequest, pack
from app.wire.versions import BETWEEN_BROKERS, OPAQUE, SERVED
from tests.broker.guarded import OF_LOGINS, SAYS_LESS
from tests.handlers.conversation import Talk, batch, talk
from tests.interop.peers import request
from tests.support.rights import GROUP, SEEN, STEPS, TRANSACTION, Ids, Step

OF_TOKENS = {
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}
"""A plain listener refuses them to everybody."""


async def ask(client: Talk, step: Step, version: int, ids: Ids) -> Any:
    message = step.build(version, ids)
    if step.key is not ApiKey.PRODUCE:
        return await client.ask(step.key, version, message)
    name = "topic_id" if version >= 13 else "name"
    records = batch()
    if message.transactional_id is not None:
        records = batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    topics = [(getattr(one, name), [(0, records)]) for one in message.topic_data]
    return await client.produce(version, topics, transactional_id=message.transactional_id)


def check_line(line: dict[str, Any], step: Step, principal: str, host: str, correlation_id: int) -> None:
    """That a line says who was refused what, and nothing that was not asked for."""
    assert (line["event"], line["outcome"]) == ("access", "denied"), step.label
    assert (line["principal"], line["host"]) == (principal, host), step.label
    assert line["request"] == step.key.name
    assert (line["client_id"], line["correlation_id"]) == ("test", correlation_id), step.label
    asked = {(one.operation, one.kind) for one in TABLE[step.key] if hasattr(one, "operation")}
    for one in TABLE[step.key]:
        asked |= set(getattr(one, "asks", ()))
    told = {(one["operation"], one["type"]) for one in line["resources"]}
    if step.key in OF_TOKENS:
        assert told <= {("CREATE_TOKENS", "USER"), ("DESCRIBE_TOKENS", "USER")}
    else:
        assert told <= {(operation.name, kind.name) for operation, kind in asked}, (step.label, told)


EVERYTHING = [
    (Operation.ALL, ResourceType.TOPIC, WILDCARD),
    (Operation.ALL, ResourceType.GROUP, WILDCARD),
    (Operation.ALL, ResourceType.TRANSACTIONAL_ID, WILDCARD),
    (Operation.ALL, ResourceType.CLUSTER, CLUSTER_NAME),
]
OF_GROUPS = {"GROUP_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}
OTHERS = {
    ResourceType.GROUP: (GROUP, "another", "shared", "nobody"),
    ResourceType.TRANSACTIONAL_ID: (TRANSACTION, "another"),
}


def of_groups() -> Iterator[Step]:
    """The requests that name a group or a transactional id, and are refused for that alone."""
    for step in STEPS:
        entries = TABLE[step.key]
        kinds = {kind for entry in entries for _, kind in getattr(entry, "asks", ())}
        kinds |= {getattr(entry, "kind", None) for entry in entries}
        if not kinds & OTHERS.keys() or step.label in SAYS_LESS:
            continue
        if step.key in (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
            continue  # they ask for several things at once
        if step.label in ("produce", "producer id", "coordinator of shares"):
            continue
        # From version 4 on brokers ask it.
        yield step._replace(last=3) if step.key is ApiKey.ADD_PARTITIONS_TO_TXN else step


class Issuer:
    """Makes tokens, and a file with the key by which brokers know them."""

    def __init__(self, path: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._another = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        (path / "keys.json").write_text(json.dumps({"keys": [{**jwk, "kid": "one"}]}))
        self.settings = {
            "sasl_oauthbearer_jwks_endpoint_url": (path / "keys.json").as_uri(),
            "sasl_oauthbearer_expected_audience": "firn",
        }
        """Of a listener that takes them."""

    def token(self, kind: str) -> str:
        now_s = int(time.time())
        claims = {"sub": "admin", "aud": "firn", "exp": now_s - 3600 if kind == "expired token" else now_s + 3600}
        if kind == "alg none":
            return jwt.encode(claims, None, algorithm="none", headers={"kid": "one"})
        if kind == "public key as a secret":
            public = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            head, body = (segment(json.dumps(part)) for part in ({"alg": "HS256", "kid": "one"}, claims))
            return f"{head}.{body}.{segment(hmac.digest(public, f'{head}.{body}'.encode(), 'sha256'))}"
        if kind == "another audience":
            claims["aud"] = "other"
        key = self._another if kind == "another key" else self._key
        return jwt.encode(claims, key, algorithm="RS256", headers={"kid": "one"})


def segment(data: str | bytes) -> str:
    """A part of a token."""
    raw = data.encode() if isinstance(data, str) else data
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@asynccontextmanager
async def showing_certificate(port: int, folder: Path, name: str = "client") -> AsyncIterator[Talk]:
    tls = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    tls.load_cert_chain(str(folder / f"{name}.pem"))
    async with talk(port, host="localhost", ssl=tls) as client:
        yield client


async def no_login(issuer: Issuer, client: Talk) -> None:
    del issuer, client


async def wrong_password(issuer: Issuer, client: Talk) -> None:
    client.send(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    client.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(plain_message("alice", "what-was-tried")))


async def wrong_scram(issuer: Issuer, client: Talk) -> None:
    client.send(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("SCRAM-SHA-512"))
    client.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"n,,n=alice,r=abc"))
    proof = base64.b64encode(bytes(64)).decode()
    client.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(f"c=biws,r=abc,p={proof}".encode()))


async def forwarded(issuer: Issuer, client: Talk) -> None:
    client.send(ApiKey.FIRN_FORWARDED, 0, pack(ForwardedRequest("192.0.2.7")))


def token_of(kind: str) -> Callable[[Issuer, Talk], Any]:
    async def send(issuer: Issuer, client: Talk) -> None:
        message = f"n,,\x01auth=Bearer {issuer.token(kind)}\x01\x01".encode()
        client.send(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("OAUTHBEARER"))
        client.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(message))
        client.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"\x01"))

    return send


NO_LOGINS = {
    "no login": (no_login, "is not served before the client has logged in"),
    "wrong password": (wrong_password, "Invalid username or password"),
    "expired token": (token_of("expired token"), "the token is refused: it has expired"),
    "alg none": (token_of("alg none"), "the token is refused: its algorithm 'none' is not accepted"),
    "public key as a secret": (token_of("public key as a secret"), "its algorithm 'HS256' is not accepted"),
    "another key": (token_of("another key"), "the token is refused"),
    "another audience": (token_of("another audience"), "the token is refused"),
    "wrong SCRAM": (wrong_scram, "SCRAM-SHA-512"),
    "a forwarded address": (forwarded, "is not in firn.trusted.proxies of this broker"),
}
"""What is sent before the request, and why that is no login."""


def requests(ids: Ids) -> list[tuple[ApiKey, int, Any]]:
    """One of each API in each version, those between brokers too."""
    found: list[tuple[ApiKey, int, Any]] = []
    found += [(ApiKey(key), 0, b"\x90") for key in OPAQUE if key != ApiKey.FIRN_FORWARDED]
    for key, (oldest, newest) in BETWEEN_BROKERS.items():
        if key not in OPAQUE:
            found += [(key, version, request(key)) for version in range(oldest, newest + 1)]
    for step in STEPS:
        if step.key not in OF_LOGINS and step.key is not ApiKey.API_VERSIONS:
            known = {(key, version) for key, version, _ in found}
            found += [(step.key, one, step.build(one, ids)) for one in step.versions() if (step.key, one) not in known]
    every = {(key, version) for key, (oldest, newest) in SERVED.items() for version in range(oldest, newest + 1)}
    left = {key for key, _ in every - {(key, version) for key, version, _ in found}}
    assert left <= {*OF_LOGINS, ApiKey.API_VERSIONS}, left
    return found


async def tried(client: Talk, send: Callable[[Talk], Any], key: ApiKey, version: int, message: Any, ids: Ids) -> bytes:
    """Send what is no login, and a request. Returns: all that is answered until the connection is closed."""
    await send(client)
    if key is ApiKey.PRODUCE:
        client.send_produce(version, [(ids[SEEN] if version >= 13 else SEEN, [(0, batch())])])
    else:
        client.send(key, version, message)
    return await client.reader.read()


def check_login_line(line: dict[str, Any], why: str, host: str, listener: str) -> None:
    """That a line says who has not logged in and why, and no secret."""
    assert (line["event"], line["outcome"], line["host"]) == ("login", "failed", host)
    assert "principal" not in line, "nobody has shown who it is"
    assert why in line["reason"]
    assert line["listener"] == listener
    shown = json.dumps(line)
    assert "what-was-tried" not in shown, "no password"
    assert "eyJ" not in shown, "no token"
