"""SCRAM by the examples of RFC 5802 and RFC 7677, against wrong passwords, strangers and mutated messages."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.security.sasl import LoggedIn, PlainServer, Refused, plain_message
from app.security.scram import (
    ITERATIONS_MIN,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
    salted_password,
)

SALT = b"0123456789abcdef"
KINDS = list(ScramMechanism)


def credential(kind: ScramMechanism, password: str = "pencil", salt: bytes = SALT) -> ScramCredential:
    return credential_of(kind, salted_password(kind, password, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN)


CREDENTIALS = {kind: {"user": credential(kind)} for kind in KINDS}


def server(kind: ScramMechanism, nonce: str = "server") -> ScramServer:
    return ScramServer(kind, CREDENTIALS[kind].get, nonce=nonce, secret=b"s" * 32)


def talk(kind: ScramMechanism, user: str, password: str) -> LoggedIn:
    client, other = ScramClient(kind, user, password, nonce="client"), server(kind)
    first = other.evaluate(client.first)
    assert isinstance(first, bytes)
    last = other.evaluate(client.answer(first))
    assert isinstance(last, LoggedIn)
    client.check(last.token)
    return last


def test_the_example_of_rfc_7677() -> None:
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = credential(ScramMechanism.SCRAM_SHA_256, "pencil", salt)
    other = ScramServer(
        ScramMechanism.SCRAM_SHA_256, {"user": known}.get, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", secret=b""
    )
    first = other.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    last = other.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == LoggedIn("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("kind", KINDS)
def test_who_knows_the_password_gets_in_and_knows_the_server(kind: ScramMechanism) -> None:
    assert talk(kind, "user", "pencil").user == "user"


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_password_and_a_user_who_does_not_exist_look_the_same(kind: ScramMechanism) -> None:
    seen = []
    for user in ("user", "nobody"):
        client, other = ScramClient(kind, user, "wrong", nonce="client"), server(kind)
        first = other.evaluate(client.first)
        assert isinstance(first, bytes)
        fields = dict(part.split(b"=", 1) for part in first.split(b","))
        with pytest.raises(Refused) as refused:
            other.evaluate(client.answer(first))
        seen.append((sorted(fields), fields[b"i"], str(refused.value)))
    assert seen[0] == seen[1]


def test_the_salt_of_a_user_who_does_not_exist_stays_the_same_and_is_anothers_for_another() -> None:
    salts = [server(kind).evaluate(b"n,,n=%s,r=c" % user) for kind in KINDS for user in (b"a", b"a", b"b")]
    assert salts[0] == salts[1] != salts[2] != salts[3] == salts[4]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"p=tls-unique,,n=user,r=c",
        b"n,a=other,n=user,r=c",
        b"n,,m=x,n=user,r=c",
        b"n,,n=us=XXer,r=c",
        b"n,,n=,r=c",
        b"n,,n=\xff,r=c",
        b"x" * 20_000,
    ],
)
def test_a_first_message_that_is_wrong_is_refused(message: bytes) -> None:
    with pytest.raises(Refused):
        server(ScramMechanism.SCRAM_SHA_256).evaluate(message)


@given(st.data())
def test_no_change_of_the_last_message_gets_in(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    client, other = ScramClient(kind, "user", "pencil", nonce="client"), server(kind)
    first = other.evaluate(client.first)
    assert isinstance(first, bytes)
    message = bytearray(client.answer(first))
    position = data.draw(st.integers(0, len(message) - 1))
    change = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    if change == "flip":
        # The last character of a base64 text has bits that mean nothing, so that one is left as it is.
        position -= position == len(bytes(message).rstrip(b"=")) - 1
        message[position] ^= data.draw(st.sampled_from([0x40, 0x80]))
    elif change == "cut":
        del message[position:]
    else:
        message[position:position] = data.draw(st.binary(min_size=1, max_size=4))
    with pytest.raises(Refused):
        other.evaluate(bytes(message))


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_any_name_and_password_survive_the_messages(user: str, password: str) -> None:
    kind = ScramMechanism.SCRAM_SHA_256
    if "\0" in user:
        return
    known = credential(kind, password)
    client = ScramClient(kind, user, password, nonce="client")
    other = ScramServer(kind, {user: known}.get, nonce="server", secret=b"")
    first = other.evaluate(client.first)
    assert isinstance(first, bytes)
    last = other.evaluate(client.answer(first))
    assert isinstance(last, LoggedIn)
    assert last.user == user


def test_a_client_refuses_a_server_that_asks_for_too_little_or_does_not_know_the_password() -> None:
    client = ScramClient(ScramMechanism.SCRAM_SHA_256, "user", "pencil", nonce="client")
    for message in (b"r=clientX,s=QQ==,i=1", b"r=other,s=QQ==,i=4096", b"r=client,s=QQ==,i=4096", b"e=no"):
        with pytest.raises(Refused):
            client.answer(message)
    client.answer(b"r=clientX,s=QQ==,i=4096")
    with pytest.raises(Refused):
        client.check(b"v=AAAA")


def test_plain_lets_in_who_knows_the_password_and_says_no_more() -> None:
    plain = PlainServer({"alice": b"secret"})
    assert plain.evaluate(plain_message("alice", "secret")) == LoggedIn("alice")
    assert plain.evaluate(b"alice\0alice\0secret") == LoggedIn("alice")
    seen = set()
    for message in (
        plain_message("alice", "wrong"),
        plain_message("nobody", "secret"),
        plain_message("nobody", ""),
        b"bob\0alice\0secret",
        b"\0alice\0secret\0",
        b"",
        b"\0\xff\0secret",
    ):
        with pytest.raises(Refused) as refused:
            plain.evaluate(message)
        seen.add(str(refused.value))
    assert seen == {"Authentication failed: Invalid username or password"}
