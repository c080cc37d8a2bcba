"""INV-15 for those who have not logged in: no message before the login holds the loop for more than 50 ms of CPU.

Each mechanism is sent each pattern that has hurt a parser somewhere: repeats of what a grammar repeats, what it escapes, what it
nests. The patterns are as long as a message before the login may be.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from app.machine.runtime import settle_memory
from app.metadata.image.records import SECURITY_LEVEL
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.codec import encode_opaque
from app.wire.framing import frame, request_frame
from app.wire.header import encode_request_header
from app.wire.primitives import uvarint
from app.wire.private import ForwardedRequest
from tests.support.broker import RunningBroker, running_broker
from tests.support.secured import certificates, listener, security
from tests.support.several import unfenced
from tests.support.turns import TURN_MS_MAX, CountedPool, Line, Measured, least_ms
from tests.support.waiting import until

LENGTH: Final = 500_000
"""Bytes of a pattern: ``sasl.server.max.receive.size`` is 524,288."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LENGTHS: Final = (LENGTH, 65_000, 16_000)
"""A parser may refuse what is too long at once, and work at what is a little shorter."""


def patterns(length: int) -> Iterator[tuple[str, bytes]]:
    """What is sent as a message of a mechanism."""
    repeated = (
        b"\0", b",", b"=", b"a=", b"=2C", b"n,,", b"n=a,", b"r=a,", b"auth=Bearer x\x01", b"auth=Bearer ", b"a=b\x01", b"\x01",
        b"\xc3\xa4", b"\xff", b"[", b'{"a":', b"e30.", b".", b"A",
    )  # fmt: skip
    starts = (b"", b"n,,", b"n,a=x,\x01", b"n,,\x01", b"n,,n=a,r=", b"n,,\x01auth=Bearer ", b"user\0")
    for piece in repeated:
        for start in starts:
            yield f"{start!r} + {piece!r} × {length}", (start + piece * (length // len(piece)))[:length]
    nested = base64.urlsafe_b64encode(b'{"alg":' + b"[" * (length // 4)).rstrip(b"=")
    yield f"a nested token of {length}", b"n,,\x01auth=Bearer " + nested[: length - 50] + b".e30.e30\x01\x01"
    claims = base64.urlsafe_b64encode(b'{"alg":"RS256",' + b'"a":1,' * (length // 10) + b'"kid":"x"}').rstrip(b"=")
    yield f"a token of many claims of {length}", b"n,,\x01auth=Bearer " + claims[: length - 50] + b".e30.e30\x01\x01"


@asynccontextmanager
async def guarded(path: Path) -> AsyncIterator[RunningBroker]:
    folder = certificates(path / "tls", "client")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    (path / "keys.json").write_text(json.dumps({"keys": [{**jwk, "kid": "x"}]}))
    tokens = {
        "sasl_oauthbearer_jwks_endpoint_url": (path / "keys.json").as_uri(),
        "sasl_oauthbearer_expected_audience": "firn",
    }
    doors = (
        listener("PLAINTEXT"),
        listener("SSL", folder),
        listener("SASL_PLAINTEXT", mechanisms=",".join(MECHANISMS), **tokens),
    )
    async with running_broker(
        path,
        new_level=SECURITY_LEVEL,
        security={"connection.failed.authentication.delay.ms": "0"},
        pool=CountedPool(4),
        **security(*doors),
    ) as broker:
        await until(lambda: unfenced(broker))
        settle_memory()
        yield broker


@pytest.fixture(name="measured", scope="module")
def _measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    path = tmp_path_factory.mktemp("guarded")
    measured = Measured(lambda: guarded(path))
    try:
        yield measured
    finally:
        measured.close()


def sent(measured: Measured, listener_name: str, *frames: bytes) -> float:
    """Send frames, one after the other as they are answered. Returns: the longest turn, in ms."""

    def talk() -> None:
        with Line(measured.made.node.ports[listener_name]) as line:
            for one in frames:
                if line.ask(one) is None:
                    return

    return least_ms(measured, talk)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_message_of_a_mechanism_holds_the_loop(measured: Measured, mechanism: str) -> None:
    hello = request_frame(ApiKey.SASL_HANDSHAKE, 1, 1, "c", SaslHandshakeRequest(mechanism))
    too_long = []
    for length in LENGTHS:
        for name, message in patterns(length):
            login = request_frame(ApiKey.SASL_AUTHENTICATE, 2, 2, "c", SaslAuthenticateRequest(message))
            took_ms = sent(measured, "SASL_PLAINTEXT", hello, login)
            if took_ms > TURN_MS_MAX:
                too_long.append(f"{name}: {took_ms:.0f} ms")
    assert too_long == []


def headers() -> Iterator[tuple[str, bytes]]:
    """Requests whose header alone is long."""
    fields = b"".join(uvarint(tag) + uvarint(1) + b"x" for tag in range(9_999))
    client_id = "c" * 32_767
    head = encode_request_header(ApiKey.API_VERSIONS, 3, 1, client_id)[:-1]
    yield "the longest client id", frame(head + b"\0", b"\x02c\x02v\0")
    yield "many tagged fields", frame(head + uvarint(9_999) + fields, b"\x02c\x02v\0")
    yield "many tagged fields of the body", frame(head + b"\0", b"\x02c\x02v" + uvarint(9_999) + fields)
    yield "too many tagged fields", frame(head + uvarint(1 << 20) + fields * 20, b"")
    yield "a name of software", request_frame(ApiKey.SASL_HANDSHAKE, 1, 1, "c", SaslHandshakeRequest("M" * 32_767))
    for count in (39, 100, 500_000):
        address = encode_opaque(msgspec.msgpack.encode(ForwardedRequest("1" * count)))
        yield f"an address of {count}", frame(encode_request_header(ApiKey.FIRN_FORWARDED, 0, 1, "c"), address)
    yield (
        "a nested address",
        frame(encode_request_header(ApiKey.FIRN_FORWARDED, 0, 1, "c"), encode_opaque(b"\x91" * 500_000)),
    )


@pytest.mark.parametrize("listener_name", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_no_header_holds_the_loop(measured: Measured, listener_name: str) -> None:
    took_ms = {name: sent(measured, listener_name, one) for name, one in headers()}
    assert {name: ms for name, ms in took_ms.items() if ms > TURN_MS_MAX} == {}


def test_no_bytes_instead_of_a_handshake_hold_the_loop(measured: Measured) -> None:
    """What a TLS listener reads of a client that has not shown anything yet."""
    hello = b"\x16\x03\x01\xff\xff\x01\x00\xff\xfb\x03\x03" + bytes(32)
    bad = [
        hello + b"\0" * 100_000, hello + b"\xff" * 100_000, b"\x16\x03\x01\0\x01\x01" * 50_000, b"\x16\x03\x01\0\0" * 50_000,
        b"GET / HTTP/1.1\r\n" * 20_000, b"\0\0\0\x10" * 100_000,
    ]  # fmt: skip

    def end_with(data: bytes) -> None:
        with Line(measured.made.node.ports["SSL"]) as line:
            line.end_with(data)

    took_ms = [least_ms(measured, partial(end_with, one)) for one in bad]
    assert [ms for ms in took_ms if ms > TURN_MS_MAX] == []
