"""Secrets of delegation tokens, and logins with them."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode

import pytest

from app.security.delegation import DelegationToken, TokenSecrets
from app.security.sasl import LoggedIn, Refused
from app.security.scram import ScramClient, ScramMechanism, ScramServer

KEY = "key"
TOKEN = DelegationToken("User:alice", "User:bob", ("User:carol",), 1000, 9000, 5000)
IDS = ("tIcG3YHkQ1yhJb1mTzQzPA", "another")


def server(now_ms: int = 1000, token: DelegationToken = TOKEN, mechanism: int = 2) -> ScramServer:
    secrets, kind = TokenSecrets(KEY), ScramMechanism(mechanism)
    tokens = {IDS[0]: token}
    return ScramServer(
        kind,
        lambda _: None,
        nonce="server",
        secret=b"s" * 32,
        tokens=lambda one: secrets.credential(one, tokens.get(one), kind, now_ms),
    )


def converse(scram: ScramServer, user: str, secret: bytes, *, token: bool = True, mechanism: int = 2) -> LoggedIn:
    client = ScramClient(ScramMechanism(mechanism), user, b64encode(secret).decode(), nonce="client", token=token)
    first = scram.evaluate(client.first)
    assert isinstance(first, bytes)
    last = scram.evaluate(client.answer(first))
    assert isinstance(last, LoggedIn)
    client.check(last.token)
    return last


def test_the_secret_is_an_hmac_of_the_id_as_in_kafka() -> None:
    expected = hmac.new(KEY.encode(), IDS[0].encode(), hashlib.sha512).digest()
    assert TokenSecrets(KEY).hmac_of(IDS[0]) == expected
    assert KEY not in repr(TokenSecrets(KEY))


@pytest.mark.parametrize("mechanism", [1, 2])
def test_a_holder_logs_in_as_the_owner_until_the_token_ends(mechanism: int) -> None:
    secret = TokenSecrets(KEY).hmac_of(IDS[0])
    found = converse(server(mechanism=mechanism), IDS[0], secret, mechanism=mechanism)
    assert (found.user, found.expires_ms, found.by_token) == ("alice", 5000, True)


@pytest.mark.parametrize(
    ("now_ms", "user", "key", "token", "as_token"),
    [
        (5001, IDS[0], KEY, TOKEN, True),
        (9001, IDS[0], KEY, TOKEN._replace(expires_ms=20_000), True),
        (1000, IDS[1], KEY, TOKEN, True),
        (1000, IDS[0], "other", TOKEN, True),
        (1000, IDS[0], KEY, TOKEN, False),
        (1000, IDS[0], KEY, TOKEN._replace(owner="Group:alice"), True),
    ],
)
def test_what_does_not_let_in_goes_on_to_the_end_like_a_wrong_secret(
    now_ms: int, user: str, key: str, token: DelegationToken, as_token: bool
) -> None:
    with pytest.raises(Refused, match="invalid credentials"):
        converse(server(now_ms, token), user, TokenSecrets(key).hmac_of(user), token=as_token)


def test_the_salt_of_an_id_that_does_not_exist_stays_the_same() -> None:
    firsts = []
    for _ in range(2):
        client = ScramClient(ScramMechanism.SCRAM_SHA_512, "nothing", "x", nonce="client", token=True)
        firsts.append(server().evaluate(client.first))
    assert firsts[0] == firsts[1]


@pytest.mark.parametrize(("extension", "counts"), [("tokenauth=true", True), ("tokenauth=TRUE", True),
                                                  ("x=y,tokenauth=true", True), ("tokenauth=false", False),
                                                  ("tokenauthx=true", False), ("x=tokenauth=true", False)])  # fmt: skip
def test_only_the_extension_itself_asks_for_a_token(extension: str, counts: bool) -> None:
    asked: list[str] = []
    scram = ScramServer(
        ScramMechanism.SCRAM_SHA_256,
        lambda user: asked.append(f"user {user}"),  # type: ignore[func-returns-value]
        nonce="s",
        secret=b"s",
        tokens=lambda one: asked.append(f"token {one}"),  # type: ignore[func-returns-value]
    )
    scram.evaluate(f"n,,n=x,r=abc,{extension}".encode())
    assert asked == [f"{'token' if counts else 'user'} x"]


def test_tokens_are_found_by_their_secrets_among_those_that_there_are() -> None:
    secrets = TokenSecrets(KEY)
    tokens = dict.fromkeys(IDS, TOKEN)
    assert [secrets.find(secrets.hmac_of(one), tokens) for one in IDS] == list(IDS)
    assert secrets.find(b"x" * 64, tokens) is None
    del tokens[IDS[0]]
    assert secrets.find(secrets.hmac_of(IDS[0]), tokens) is None
    many = {str(number): TOKEN for number in range(500)}
    assert secrets.find(secrets.hmac_of("499"), many) == "499"
    assert secrets.find(secrets.hmac_of(IDS[1]), tokens) == IDS[1], "what it kept of tokens that are gone is bounded"
    assert len(secrets._by_hmac) < 500
