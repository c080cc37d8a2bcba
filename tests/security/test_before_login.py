"""No message that a client sends before its login takes more CPU than a turn may (INV-15): each parser gets the worst that fits."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.core.addresses import Networks, plain_address
from app.core.errors import ProtocolError
from app.core.limits import CLIENT_ID_BYTES_MAX
from app.handlers.apis.handshakes import SOFTWARE_NAME
from app.security.names import NAME_CHARS_MAX, Attribute, PrincipalRules, rfc2253, subject_of
from app.security.sasl import PlainServer, Refused, plain_message
from app.security.scram import (
    ITERATIONS_MAX,
    MESSAGE_BYTES_MAX,
    Alphabet,
    SaltShape,
    ScramClient,
    ScramMechanism,
    ScramServer,
    imitated,
)
from app.security.tokens import MESSAGE_BYTES_MAX as TOKEN_BYTES_MAX
from app.security.tokens import NotValid, TokenRules, read_message, user_of
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.codec import decode_request, encode_request
from app.wire.header import encode_request_header, parse_request_header
from app.wire.private import ForwardedRequest, unpack
from tests.support.cpu import TURN_MS_MAX, cpu_ms

FRAME_BYTES_MAX = 524_288
"""``sasl.server.max.receive.size`` by default."""


def filled(start: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    """``unit`` again and again between start and end, in at most ``size`` bytes."""
    return start + unit * ((size - len(start) - len(end)) // len(unit)) + end


# --- OAUTHBEARER ------------------------------------------------------------------------------------------------------

_PAIRS = rb"(?:[A-Za-z]+=[\x20-\x7e\r\n\t]*\x01)"
GRAMMAR = re.compile(
    rb"n,(?:a=([^,]*))?,\x01" + _PAIRS + rb"*?auth=Bearer +([-_.~+/A-Za-z0-9]+=*)\x01" + _PAIRS + rb"*\x01",
    re.IGNORECASE,
)
"""One expression for the whole message. It is right, and quadratic."""
PIECES = st.sampled_from(
    [b"n,", b"N,", b",", b"a=", b"A=b", b"\x01", b"auth=Bearer ", b"AUTH=bearer  ", b"auth=Basic ", b"t", b"t==", b"=", b" ",
     b"k=v", b"\n", b"\x00", b"\xff", b"-._~+/9"]
)  # fmt: skip
PAIR = st.sampled_from(
    [b"auth=Bearer t", b"auth=Bearer t=x", b"AUTH=BEARER   u==", b"auth=Bearer ", b"k=v", b"k=", b"=v", b""]
)


def by_grammar(message: bytes) -> tuple[bytes, str] | None:
    found = GRAMMAR.fullmatch(message)
    return None if found is None else (found[1] or b"", found[2].decode("ascii"))


@given(st.lists(PIECES, max_size=14).map(b"".join))
def test_any_bytes_are_read_as_the_grammar_reads_them(message: bytes) -> None:
    assert read_message(message) == by_grammar(message)


@given(st.sampled_from([b"n,,\x01", b"n,a=x,\x01", b"n,a=,\x01"]), st.lists(PAIR, max_size=6), st.integers(0, 2))
@example(b"n,,\x01", [b"auth=Bearer t=x", b"auth=Bearer u", b"auth=Bearer v"], 1)
def test_pairs_are_read_as_the_grammar_reads_them(start: bytes, pairs: list[bytes], ends: int) -> None:
    message = start + b"".join(pair + b"\x01" for pair in pairs) + b"\x01" * ends
    assert read_message(message) == by_grammar(message)


@pytest.mark.parametrize(
    "unit",
    [b"auth=Bearer x\x01", b"auth=Bearer x", b"a=\x01", b"a", b"=", b" ", b"\x01", b",", b"a=" + b"x" * 997 + b"\x01"],
)
@pytest.mark.parametrize("end", [b"", b"\x01", b"\x00\x01\x01", b"auth=Bearer x\x01\x01"])
@pytest.mark.parametrize("start", [b"n,,\x01", b"n,a=", b"n,,\x01auth=Bearer ", b"n,,\x01a="])
def test_a_message_with_a_token_costs_linear_time(start: bytes, unit: bytes, end: bytes) -> None:
    message = filled(start, unit, end, TOKEN_BYTES_MAX)
    assert cpu_ms(lambda: read_message(message)) < TURN_MS_MAX / 2


def json_web_token(header: bytes, payload: bytes = b"{}", signature: bytes = b"AA") -> str:
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, payload)]
    return b".".join([*parts, signature]).decode()


@pytest.mark.parametrize(
    "header",
    [b"[" * 40_000, b'{"a":' * 8_000, b"9" * 40_000, b"[" + b",".join([b"9" * 4300] * 9) + b"]", b"[" + b"1e9," * 9000 + b"1]",
     b"[" + b"{}," * 13_000 + b"1]", b"[" + b",".join([b"0." + b"9" * 4000 + b"e-300"] * 9) + b"]",
     b"{" + b",".join(b'"%d":{}' % index for index in range(4500)) + b"}", b'{"alg":"' + b"\\u0041" * 6000 + b'"}',
     b'{"alg":"RS256","kid":"' + b"k" * 40_000 + b'"}'],
    ids=["lists", "objects", "number", "numbers", "floats", "empty", "long floats", "keys", "escapes", "key id"],
)  # fmt: skip
def test_a_token_that_nobody_signed_costs_little(header: bytes) -> None:
    keys = {"": SimpleNamespace(key=None)}

    def look() -> None:
        user_of(json_web_token(header), keys, TokenRules(), 1)

    assert cpu_ms(look, NotValid) < TURN_MS_MAX / 2


def test_the_library_for_tokens_is_loaded_before_the_first_login() -> None:
    program = (
        "import sys\n"
        "from tests.support.secured import listener\n"
        "from app.broker.security.token_keys import TokenKeys\n"
        "assert 'jwt' not in sys.modules\n"
        "TokenKeys(listener('SASL_PLAINTEXT', **{'sasl.enabled.mechanisms': 'OAUTHBEARER',\n"
        "    'sasl.oauthbearer.jwks.endpoint.url': 'https://issuer/keys',\n"
        "    'firn.sasl.oauthbearer.allowed.urls': 'https://issuer/keys'}))\n"
        "assert 'jwt' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# --- SCRAM and PLAIN --------------------------------------------------------------------------------------------------


def scram() -> ScramServer:
    """With the shapes of salts that cost the most."""
    shapes = imitated([SaltShape(Alphabet.PRINTED, length, 4096) for length in range(960, 1025)])
    return ScramServer(
        ScramMechanism.SCRAM_SHA_512,
        lambda _: None,
        nonce="n" * 32,
        secret=b"s" * 32,
        shapes=shapes,
        tokens=lambda _: None,
    )


@pytest.mark.parametrize(
    ("start", "unit", "end"),
    [
        (b"n,,n=", b"a", b",r=x"), (b"n,,n=", b"=2C", b",r=x"), (b"n,,n=", b"=3D", b",r=x"), (b"n,,n=a,r=x", b",a=b", b""),
        (b"n,,n=a,r=x", b",tokenauth=true", b""), (b"n,,n=a,r=x", b",", b""), (b"n,a=", b"a", b""), (b"n,,", b"n=a,r=x,", b""),
        (b"", b",", b""), (b"n,,n=a,r=", b"r", b""), (b"n,,m=", b"x", b",n=a,r=x"), (b"n,,", b"m=x,", b"n=a,r=x"),
    ],
)  # fmt: skip
def test_any_first_message_of_scram_costs_little(start: bytes, unit: bytes, end: bytes) -> None:
    message = filled(start, unit, end, MESSAGE_BYTES_MAX)
    assert cpu_ms(lambda: scram().evaluate(message), Refused) < TURN_MS_MAX / 2


@pytest.mark.parametrize(
    ("start", "unit", "end"),
    [
        (b"c=biws,r=x", b",p=AA", b"!"), (b"c=", b"A", b""), (b"c=", b"=", b""), (b"c=biws,r=x", b",a=", b""),
        (b"c=biws,r=x", b",a=b", b",p=!"), (b"c=biws,r=x,p=", b"A", b"!"), (b"c=biws,r=", b"x", b",p=AAAA"),
    ],
)  # fmt: skip
def test_any_last_message_of_scram_costs_little(start: bytes, unit: bytes, end: bytes) -> None:
    message = filled(start, unit, end, MESSAGE_BYTES_MAX)

    def log_in() -> None:
        server = scram()
        server.evaluate(b"n,,n=a,r=x")
        server.evaluate(message)

    assert cpu_ms(log_in, Refused) < TURN_MS_MAX / 2


def test_a_server_cannot_make_a_client_hash_for_long() -> None:
    client = ScramClient(ScramMechanism.SCRAM_SHA_512, "a", "b", nonce="x")
    with pytest.raises(Refused, match="16385 iterations"):
        client.answer(b"r=xy,s=c2FsdA==,i=%d" % (ITERATIONS_MAX + 1))
    assert cpu_ms(lambda: client.answer(b"r=xy,s=c2FsdA==,i=%d" % ITERATIONS_MAX)) < TURN_MS_MAX


@pytest.mark.parametrize(
    ("start", "unit", "end"),
    [(b"", b"\0", b""), (b"\0a\0", b"x", b""), (b"\0", b"x", b"\0x"), (b"", b"\xc3\xa4", b"\0a\0b"), (b"", b"\xff", b"\0a\0b")],
)  # fmt: skip
def test_any_message_of_plain_costs_little(start: bytes, unit: bytes, end: bytes) -> None:
    message = filled(start, unit, end, FRAME_BYTES_MAX)
    server = PlainServer({"a": b"b"})
    assert cpu_ms(lambda: server.evaluate(message), Refused) < TURN_MS_MAX / 2


def test_a_message_of_plain_is_cut_at_its_first_parts_only() -> None:
    assert PlainServer({"a": b"b"}).evaluate(plain_message("a", "b")).user == "a"
    for message in (b"\0a\0b\0", b"\0a\0b\0\0\0", b"\0a\0b\0c"):
        with pytest.raises(Refused):
            PlainServer({"a": b"b"}).evaluate(message)


# --- certificates -----------------------------------------------------------------------------------------------------

RULES = [
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?)$/$1/L,DEFAULT",
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/",
    r"RULE:^(([a-z])+.)+[A-Z]([a-z])+$/$1/",
    r"RULE:(.*)(.*)(.*)(.*)(.*)x/$1$2/",
]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("unit", [",OU=a,O=b", "a", "CN=", "aA", ","])
@pytest.mark.parametrize("end", ["", ",ST=x", "!"])
def test_a_rule_costs_linear_time_whatever_the_name(rules: str, unit: str, end: str) -> None:
    name = "CN=" + unit * ((NAME_CHARS_MAX - 10) // len(unit)) + end
    made = PrincipalRules(rules)
    assert cpu_ms(lambda: made.apply(name)) < TURN_MS_MAX / 2


def test_a_name_that_is_too_long_has_no_user() -> None:
    assert PrincipalRules("DEFAULT").apply("CN=" + "x" * (NAME_CHARS_MAX - 3)) is not None
    assert PrincipalRules("DEFAULT").apply("CN=" + "x" * (NAME_CHARS_MAX - 2)) is None


@pytest.mark.parametrize("pattern", [r"(?=CN)CN=(.*)", r"CN=(?!x)(.*)", r"CN=(.*),O=\1", r"CN=(.*+)"])
def test_a_rule_that_would_need_backtracking_is_refused_with_a_sentence(pattern: str) -> None:
    with pytest.raises(ValueError, match="RE2, which has no look-ahead"):
        PrincipalRules(f"RULE:{pattern}/$1/")


def test_names_of_groups_and_characters_by_number_are_read_as_java_reads_them() -> None:
    assert PrincipalRules(r"RULE:^CN=(?<user>.*),O=\u00e4$/${user}-$user-$9/").apply("CN=a,O=ä") == "a-a-$9"
    assert PrincipalRules(r"RULE:^CN=(a)?(.*)$/$1$2/").apply("CN=x") == "x"


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else b"\x83" + size.to_bytes(3, "big")
    return bytes([tag]) + length + content


def certificate(number: bytes, value: bytes, count: int = 1) -> bytes:
    """The fields up to the subject, which has ``count`` attributes."""
    attribute = der(0x31, der(0x30, der(0x06, number) + der(0x0C, value)))
    return der(0x30, der(0x30, der(0x02, b"\1") + der(0x30, b"") * 3 + der(0x30, attribute * count)))


@pytest.mark.parametrize(
    "made",
    [certificate(b"\x2a" + b"\xff" * size + b"\x01", b"x") for size in (16_000, 90_000)]
    + [certificate(b"\x2a" + b"\x01" * size, b"x") for size in (16_000, 90_000)]
    + [certificate(b"\x55\x04\x03", unit * size) for unit in (b" ", b",") for size in (16_000, 90_000)]
    + [certificate(b"\x2a", b"x" * 16_000), certificate(b"\x55\x04\x03", b"", 1_400), certificate(b"\x55\x04\x03", b"", 7_000)],
)  # fmt: skip
def test_a_certificate_costs_little_up_to_what_openssl_takes(made: bytes) -> None:
    """OpenSSL takes chains of certificates up to 100 kB."""
    rules = PrincipalRules(RULES[0])
    assert cpu_ms(lambda: rules.apply(rfc2253(subject_of(made))), ValueError) < TURN_MS_MAX / 2


def test_a_part_of_a_number_may_be_a_uuid_and_not_longer() -> None:
    longest = b"\x69" + b"\x83" + b"\xff" * 17 + b"\x7f"
    [[found]] = subject_of(certificate(longest, b"x"))
    assert found.number == f"2.25.{(1 << 128) - 1}"
    with pytest.raises(ValueError, match="too long"):
        subject_of(certificate(b"\x69" + b"\x84" + b"\x80" * 17 + b"\x00", b"x"))
    assert rfc2253([[Attribute("2.5.4.3", "x", b"")]]) == "CN=x"


# --- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"\x91" * FRAME_BYTES_MAX, b"\x92\xa1a" + b"\x91" * FRAME_BYTES_MAX, b"\x81" * FRAME_BYTES_MAX,
     b"\xdd\x00\x03\x0d\x40" + b"\xa1a" * 200_000, b"\x91\xdb\x00\x07\xff\x00" + b"1" * 0x7FF00],
    ids=["lists", "lists behind", "maps", "many", "text"],
)  # fmt: skip
def test_a_forwarded_address_costs_little_and_is_read_or_refused(body: bytes) -> None:
    assert cpu_ms(lambda: unpack(ForwardedRequest, body), ProtocolError) < TURN_MS_MAX / 2


@pytest.mark.parametrize("text", ["1" * 60_000, ":" * 60_000, "1." * 30_000, "0:" * 30_000, "%" * 60_000])
def test_an_address_of_any_length_costs_little(text: str) -> None:
    networks = Networks(["10.0.0.0/8"])
    assert cpu_ms(lambda: (plain_address(text), text in networks)) < TURN_MS_MAX / 2


def tagged(count: int, size: int) -> bytes:
    """A section of tagged fields."""

    def uvarint(value: int) -> bytes:
        found = bytearray()
        while value > 127:
            found.append(value & 127 | 128)
            value >>= 7
        return bytes([*found, value])

    return uvarint(count) + b"".join(uvarint(tag) + uvarint(size) + bytes(size) for tag in range(count))


def test_the_header_of_a_request_costs_little() -> None:
    plain = encode_request_header(ApiKey.API_VERSIONS, 3, 1, "x" * CLIENT_ID_BYTES_MAX)[:-1]
    for fields in (tagged(10_000, 40), tagged(10_000, 0), tagged(1, 400_000), tagged(100_000, 0), b"\xff" * 400_000):
        frame = memoryview(plain + fields)
        assert cpu_ms(lambda frame=frame: parse_request_header(frame), ProtocolError) < TURN_MS_MAX / 2  # type: ignore[misc]


@pytest.mark.parametrize("unit", ["a", "-", ".", "a-", "!"])
def test_the_name_of_a_clients_software_costs_little(unit: str) -> None:
    text = unit * (32_700 // len(unit)) + "!"
    message = encode_request(ApiKey.API_VERSIONS, 3, ApiVersionsRequest(text, text))
    read: list[Callable[[], Any]] = [
        lambda: decode_request(ApiKey.API_VERSIONS, 3, memoryview(message)),
        lambda: SOFTWARE_NAME.fullmatch(text),
    ]
    for one in read:
        assert cpu_ms(one, ProtocolError) < TURN_MS_MAX / 2
