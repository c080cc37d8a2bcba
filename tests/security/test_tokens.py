"""Tokens that let in, and all others."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from app.security.sasl import Invalid, LoggedIn, Refused
from app.security.tokens import INVALID, Keys, NotValid, TokenRules, TokenServer, UnknownKey, read_keys, user_of

NOW_MS = 1_800_000_000_000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RULES = TokenRules(audiences=("firn",), issuer="https://issuer", scopes=("read",))
GOOD = {
    "sub": "alice",
    "exp": NOW_MS // 1000 + 60,
    "iss": "https://issuer",
    "aud": ["x", "firn"],
    "scope": "read write",
}


def jwks() -> dict[str, Any]:
    first = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key()))
    second = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC.public_key()))
    return {"keys": [{**first, "kid": "r"}, {**second, "kid": "e"}, {"kty": "oct", "k": "c2VjcmV0", "kid": "o"}]}


KEYS: Keys = read_keys(jwks())


def token(claims: dict[str, Any] | None = None, key: Any = RSA, algorithm: str = "RS256", **header: str) -> str:
    return jwt.encode({**GOOD, **(claims or {})}, key, algorithm=algorithm, headers={"kid": "r", **header})


def test_a_token_lets_in_whom_it_names_until_it_expires() -> None:
    for made in (token(), token(key=EC, algorithm="ES256", kid="e"), token(algorithm="PS512"), token({"aud": "firn"})):
        assert user_of(made, KEYS, RULES, NOW_MS) == LoggedIn("alice", b"", GOOD["exp"] * 1000)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW_MS // 1000 - 31},
        {"exp": None},
        {"exp": "never"},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"exp": True},
        {"nbf": NOW_MS // 1000 + 31},
        {"iat": NOW_MS // 1000 + 31},
        {"iss": "https://other"},
        {"aud": "other"},
        {"aud": 7},
        {"scope": "write"},
        {"scope": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": None},
    ],
)
def test_claims_that_do_not_fit_let_nobody_in(claims: dict[str, Any]) -> None:
    header = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"r"}').rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps({**GOOD, **claims}).encode()).rstrip(b"=")
    signed = header + b"." + body
    signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(signed, RSA)
    made = (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()
    with pytest.raises(NotValid):
        user_of(made, KEYS, RULES, NOW_MS)


def test_a_difference_of_clocks_is_forgiven() -> None:
    assert user_of(token({"exp": NOW_MS // 1000 - 29}), KEYS, RULES, NOW_MS).user == "alice"
    assert user_of(token({"nbf": NOW_MS // 1000 + 29}), KEYS, RULES, NOW_MS).user == "alice"


def unsigned(algorithm: str) -> str:
    parts = [{"alg": algorithm, "kid": "r"}, GOOD]
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in parts) + "."


def test_a_signature_that_anybody_can_make_lets_nobody_in() -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = unsigned("HS256").rstrip(".")
    with_public = signed + "." + base64.urlsafe_b64encode(hmac.digest(public, signed.encode(), "sha256")).decode()
    for made in (unsigned("none"), unsigned("None"), unsigned("HS256"), with_public, unsigned("RS256")):
        with pytest.raises(NotValid):
            user_of(made, KEYS, RULES, NOW_MS)


def test_keys_of_others_and_of_another_kind_let_nobody_in() -> None:
    with pytest.raises(NotValid):
        user_of(token(key=STRANGER), KEYS, RULES, NOW_MS)
    with pytest.raises(UnknownKey):
        user_of(token(kid="new"), KEYS, RULES, NOW_MS)
    with pytest.raises(NotValid):
        user_of(token(kid="e"), KEYS, RULES, NOW_MS)
    with pytest.raises(NotValid):
        user_of(token(), KEYS, TokenRules(algorithms=("ES256",)), NOW_MS)
    assert "o" not in KEYS


@given(st.data())
def test_no_change_of_a_token_lets_anybody_else_in(data: st.DataObject) -> None:
    made = token()
    position = data.draw(st.integers(0, len(made) - 2))  # the last character has bits that mean nothing
    if made[position + 1] == ".":
        return
    other = data.draw(st.sampled_from("Ab0_-."))
    changed = made[:position] + other + made[position + 1 :]
    try:
        found = user_of(changed, KEYS, RULES, NOW_MS)
    except NotValid:
        return
    assert changed == made or found.user == "alice"


def test_json_that_is_nested_deeply_is_refused_and_nothing_else_happens() -> None:
    header = base64.urlsafe_b64encode(b"[" * 30_000).rstrip(b"=").decode()
    with pytest.raises(NotValid, match="no signed token"):
        user_of(f"{header}.e30.AA", KEYS, RULES, NOW_MS)
    nested = base64.urlsafe_b64encode(b'{"a":' + b"[" * 30_000).rstrip(b"=")
    signed = token().partition(".")[0].encode() + b"." + nested
    signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(signed, RSA)
    made = (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()
    with pytest.raises(NotValid):
        user_of(made, KEYS, RULES, NOW_MS)


def test_without_any_key_the_operator_is_told_so() -> None:
    with pytest.raises(UnknownKey, match="no keys yet"):
        user_of(token(), {}, RULES, NOW_MS)


def test_keys_that_cannot_be_used_are_left_out_and_the_others_stay() -> None:
    [good, *_] = jwks()["keys"]
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    short = {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key())), "kid": "short"}
    odd = [
        short, {**good, "n": 5}, {**good, "n": None}, {**good, "e": "AA"}, {**good, "n": "!"}, {"kty": "RSA"}, {"kty": "EC"}, 7,
        {"kty": "EC", "crv": "P-256", "x": 1, "y": []}, {"kty": "EC", "crv": [], "x": "AA", "y": "AA"}, {**good, "alg": [1]},
        {**good, "kty": []}, {**good, "use": "enc"},
    ]  # fmt: skip
    assert read_keys({"keys": [*odd, good]}).keys() == {"r"}
    for one in odd:
        with pytest.raises(ValueError, match="2048 bits"):
            read_keys({"keys": [one]})


@given(st.text(max_size=200))
def test_texts_that_are_no_tokens_are_refused(text: str) -> None:
    with pytest.raises(NotValid):
        user_of(text, KEYS, RULES, NOW_MS)


def test_a_login_says_what_kafka_says() -> None:
    server = TokenServer(lambda text: user_of(text, KEYS, RULES, NOW_MS))
    entered = server.evaluate(b"n,,\x01auth=Bearer %s\x01\x01" % token().encode())
    assert isinstance(entered, LoggedIn)
    with pytest.raises(Refused, match="authorization id that is different") as refused:
        server.evaluate(b"n,a=bob,\x01auth=Bearer %s\x01\x01" % token().encode())
    assert refused.value.user == "alice"
    told = server.evaluate(b"n,,\x01auth=Bearer %s\x01\x01" % token({"iss": "x"}).encode())
    assert isinstance(told, Invalid)
    assert told.token == INVALID
    assert "issuer is another" in told.why
    with pytest.raises(Refused, match="invalid_token"):
        server.evaluate(b"\x01")
    for message in (b"", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"\x01"):
        with pytest.raises(Refused, match="cannot be read"):
            TokenServer(lambda _: LoggedIn("x")).evaluate(message)


@pytest.mark.parametrize(
    "document", [None, [], {}, {"keys": 1}, {"keys": []}, {"keys": [{"kty": "oct"}]}, {"keys": [7]}]
)
def test_documents_without_keys_are_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="it"):
        read_keys(document)
