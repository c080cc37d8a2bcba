"""Mutated bytes through the core of connections that have to log in, before and after: refused, or served, and nothing else."""

from __future__ import annotations

import random
from base64 import b64encode
from typing import Any

import pytest

from app.handlers.serving.dispatch import Apis
from app.handlers.serving.doors import ListenerAuthentication, LoginSession
from app.security.delegation import DelegationToken, TokenSecrets
from app.security.login import Login, State
from app.security.sasl import PlainServer, plain_message
from app.security.scram import ScramClient, ScramMechanism, ScramServer, TokenCredential
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.metadata import MetadataRequest
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.codec import encode_request
from app.wire.header import encode_request_header
from tests.handlers.fakes import Bench
from tests.support.secured import listener

STREAMS = 300
TOKENS = {"id": DelegationToken("User:alice", "User:alice", (), 0, 10**15, 10**15)}


def frame(key: ApiKey, version: int, message: Any) -> bytes:
    body = encode_request_header(key, version, 1, "test") + encode_request(key, version, message)
    return len(body).to_bytes(4, "big") + body


HELLO = frame(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("a", "1"))
CHOICE = frame(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
LOGIN = frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(plain_message("alice", "alice-secret")))
WRONG = frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(plain_message("alice", "wrong")))
ASKED = frame(ApiKey.METADATA, 12, MetadataRequest(topics=[]))


def session(bench: Bench) -> LoginSession:
    config = listener("SASL_PLAINTEXT")
    door = ListenerAuthentication(config, certificates=None, rules=None, new_mechanism=None)
    made = LoginSession(bench.server, door, Login(["PLAIN"], lambda _: PlainServer({"alice": b"alice-secret"})))
    made.abort_early = made.abort
    made.opened("127.0.0.1", 1)
    return made


def feed(one: LoginSession, data: bytes, rng: random.Random) -> None:
    """As the shell does: whatever the buffer takes, and on while the core reads."""
    position = 0
    while position < len(data) and one.reads and one.ending is None and not one.closed:
        view = one.get_buffer(-1)
        count = min(len(view), len(data) - position, rng.randint(1, 200))
        view[:count] = data[position : position + count]
        position += count
        left = one.received(count, 0.0)
        while left and one.ending is None:
            one.out.clear()
            one._out_bytes = 0
            left = one.go_on()


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    # What follows a login is for the tests of handlers; here it is enough that it is passed on.
    made.server.apis = {18: Apis()[18]}
    return made


async def test_a_login_in_any_pieces_lets_in_and_what_follows_is_served(bench: Bench) -> None:
    bench.server.secure({})
    bench.server.attach()
    for seed in range(20):
        one = session(bench)
        feed(one, HELLO + CHOICE + LOGIN + HELLO, random.Random(seed))
        assert one._login.state is State.OPEN
        assert one.caller.principal == "User:alice"
        assert one.ending is None
        one.lost()
    assert len(bench.server.arrivals) == 0


async def test_no_mutated_stream_without_the_password_is_let_in(bench: Bench) -> None:
    bench.server.secure({})
    bench.server.attach()
    served: list[int] = []
    meter = bench.server.metrics.meter

    def counting(key: int) -> Any:
        served.append(key)
        return meter(key)

    bench.server.metrics.meter = counting  # type: ignore[method-assign]
    for seed in range(STREAMS):
        rng = random.Random(seed)
        data = bytearray(rng.choice([HELLO + CHOICE + WRONG + ASKED, ASKED, CHOICE + ASKED, WRONG, CHOICE + CHOICE]))
        for _ in range(rng.randint(0, 6)):
            position = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[position] = rng.randrange(256)
                case 1:
                    del data[position : position + rng.randint(1, 8)]
                case _:
                    data[position:position] = rng.randbytes(rng.randint(1, 8))
            if not data:
                break
        one = session(bench)
        feed(one, bytes(data), rng)
        assert one._login.state is not State.OPEN, seed
        assert one.caller.principal == "User:ANONYMOUS"
        assert set(served) <= {17, 18, 36}, seed
        one.lost()
    assert len(bench.server.arrivals) == 0


def session_of_tokens(bench: Bench, secrets: TokenSecrets) -> LoginSession:
    """A connection on a listener where tokens and users log in by SCRAM."""
    kind = ScramMechanism.SCRAM_SHA_256

    def find(token_id: str) -> TokenCredential | None:
        return secrets.credential(token_id, TOKENS.get(token_id), kind, 0)

    def made(_: str) -> ScramServer:
        return ScramServer(kind, lambda user: None, nonce="server", secret=b"s" * 32, tokens=find)

    door = ListenerAuthentication(listener("SASL_PLAINTEXT"), certificates=None, rules=None, new_mechanism=None)
    one = LoginSession(bench.server, door, Login([kind.sasl_name], made))
    one.abort_early = one.abort
    one.opened("127.0.0.1", 1)
    return one


async def test_mutated_logins_with_a_token_let_nobody_in_but_its_owner(bench: Bench) -> None:
    bench.server.secure({})
    bench.server.attach()
    secrets = TokenSecrets("key")
    password = b64encode(secrets.hmac_of("id")).decode()
    let_in = 0
    for seed in range(STREAMS):
        rng = random.Random(seed)
        one = session_of_tokens(bench, secrets)
        client = ScramClient(ScramMechanism.SCRAM_SHA_256, "id", password, nonce="client", token=True)
        first = bytearray(client.first)
        if seed % 10:
            for _ in range(rng.randint(1, 3)):
                position = rng.randrange(len(first))
                if rng.random() < 0.5:
                    first[position] = rng.randrange(256)
                else:
                    del first[position : position + rng.randint(1, 4)]
        server = ScramServer(
            ScramMechanism.SCRAM_SHA_256,
            lambda user: None,
            nonce="server",
            secret=b"s" * 32,
            tokens=lambda name: secrets.credential(name, TOKENS.get(name), ScramMechanism.SCRAM_SHA_256, 0),
        )
        answer = server.evaluate(client.first)
        assert isinstance(answer, bytes)
        last = client.answer(answer)
        stream = frame(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("SCRAM-SHA-256"))
        for message in (bytes(first), last):
            stream += frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(message))
        feed(one, stream, rng)
        if one._login.state is State.OPEN:
            let_in += 1
            assert (one.caller.principal, one.caller.by_token) == ("User:alice", True)
        else:
            assert one.caller.principal == "User:ANONYMOUS"
            assert seed % 10, seed
        one.lost()
    assert let_in >= STREAMS // 10
    assert len(bench.server.arrivals) == 0


async def test_mutated_streams_after_the_login_end_the_connection_or_are_served(bench: Bench) -> None:
    bench.server.secure({})
    bench.server.attach()
    for seed in range(STREAMS):
        rng = random.Random(seed)
        one = session(bench)
        feed(one, CHOICE + LOGIN, rng)
        assert one._login.state is State.OPEN
        data = bytearray(HELLO + CHOICE + HELLO)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        feed(one, bytes(data), rng)
        assert one.caller.principal == "User:alice"
        one.lost()


async def test_a_client_that_has_not_logged_in_cannot_make_the_broker_keep_much(bench: Bench) -> None:
    bench.server.secure({})
    bench.server.attach()
    one = session(bench)
    feed(one, (600_000).to_bytes(4, "big") + b"x" * 100, random.Random(1))
    assert one.ending is not None
    assert bench.server.frames.bytes == 0
