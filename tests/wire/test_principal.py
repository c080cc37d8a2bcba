"""Who a request in an Envelope speaks for, as Kafka writes it; hostile bytes are refused."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.default_principal_data.v0.data import DefaultPrincipalData
from kio.serial import entity_reader

from app.core.errors import ErrorCode, ProtocolError
from app.wire.primitives import STRING_BYTES_MAX, uvarint
from app.wire.principal import Principal, decode_principal, encode_principal

ALICE = bytes.fromhex("0000 05 55736572 06 616c696365 00 00")
"""User:alice, without a token."""

texts = st.text(max_size=50)


def test_a_principal_has_the_bytes_that_kafka_writes() -> None:
    assert encode_principal("User", "alice") == ALICE
    assert decode_principal(ALICE) == ("User", "alice", False)
    assert encode_principal("User", "alice", token_authenticated=True) == ALICE[:-2] + b"\1\0"


@given(texts, texts, st.booleans())
def test_what_was_written_is_read(kind: str, name: str, token: bool) -> None:
    data = encode_principal(kind, name, token_authenticated=token)
    assert decode_principal(data) == decode_principal(memoryview(data)) == Principal(kind, name, token)
    oracle, size = entity_reader(DefaultPrincipalData)(data, 2)
    assert (oracle.type_, oracle.name, oracle.token_authenticated, 2 + size) == (kind, name, token, len(data))


def test_tagged_fields_of_later_times_are_skipped() -> None:
    assert decode_principal(ALICE[:-1] + b"\x02\x00\x01x\x05\x00") == ("User", "alice", False)


def test_a_principal_cut_or_lengthened_anywhere_is_refused() -> None:
    for cut in range(len(ALICE)):
        with pytest.raises(ProtocolError, match="principal"):
            decode_principal(ALICE[:cut])
    with pytest.raises(ProtocolError, match="1 bytes follow"):
        decode_principal(ALICE + b"\0")


@pytest.mark.parametrize("version", [-1, 1, 32_767])
def test_a_version_that_is_not_known_is_refused_by_its_code(version: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_principal(struct.pack(">h", version) + ALICE[2:])
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\0\0" + b"\0" + b"\2a\0\0", "type must not be null"),
        (b"\0\0" + b"\2a" + b"\0\0\0", "name must not be null"),
        (b"\0\0" + b"\xff\xff\xff\xff\x0f" + ALICE, "claims"),
        (b"\0\0" + b"\xff\xff\xff\xff\xff\x0f" + ALICE, "longer than 32 bits"),
        (b"\0\0" + b"\2\xff" + b"\2a\0\0", "not UTF-8"),
        (b"\0\0" + b"\2a\2a\0" + b"\xff\xff\x03", "tagged fields are claimed"),
        (b"\0\0" + b"\2a\2a\0" + b"\x02\x05\x00\x05\x00", "Tagged field 5 follows 5"),
        (
            b"\0\0" + uvarint(STRING_BYTES_MAX + 2) + b"x" * (STRING_BYTES_MAX + 1) + b"\2a\0\0",
            "claims 32768 bytes",
        ),
    ],
)
def test_hostile_bytes_are_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode_principal(data)


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda rest: b"\0\0" + rest))
def test_random_bytes_are_a_principal_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_principal(data)


def test_a_name_that_is_too_long_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="32768 bytes"):
        encode_principal("User", "x" * (STRING_BYTES_MAX + 1))
