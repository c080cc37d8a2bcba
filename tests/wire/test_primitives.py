"""Varints and tagged fields, byte by byte."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode, ProtocolError
from app.wire.primitives import (
    UUIDS_KEPT_MAX,
    UVARINTS,
    explain,
    next_tagged_field,
    put_compact_string,
    put_string,
    read_uvarint,
    skip_tagged_fields,
    uuid_of,
    uuids_kept,
    uvarint,
)
from tests.wire import reference

VARINTS = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "80 01"),
    (300, "ac 02"),
    (16_383, "ff 7f"),
    (16_384, "80 80 01"),
    ((1 << 21) - 1, "ff ff 7f"),
    (1 << 21, "80 80 80 01"),
    ((1 << 28) - 1, "ff ff ff 7f"),
    (1 << 28, "80 80 80 80 01"),
    ((1 << 32) - 1, "ff ff ff ff 0f"),
]


@pytest.mark.parametrize(("value", "hexed"), VARINTS)
def test_a_varint_is_seven_bits_a_byte_the_lowest_first(value: int, hexed: str) -> None:
    data = bytes.fromhex(hexed)
    assert uvarint(value) == data
    assert read_uvarint(b"x" + data + b"y", 1) == (value, 1 + len(data))
    assert read_uvarint(memoryview(data), 0) == (value, len(data))


@given(st.integers(0, (1 << 32) - 1))
def test_a_varint_comes_back(value: int) -> None:
    data = uvarint(value)
    assert data == reference.varint(value)
    assert read_uvarint(data, 0) == (value, len(data))


def test_the_ready_made_varints_are_those_of_their_places() -> None:
    assert all(data == reference.varint(value) for value, data in enumerate(UVARINTS))


@pytest.mark.parametrize(
    "hexed", ["ff ff ff ff 10", "ff ff ff ff 7f", "80 80 80 80 80 00", "ff ff ff ff ff ff ff ff 01"]
)
def test_a_varint_beyond_32_bits_or_five_bytes_is_refused(hexed: str) -> None:
    with pytest.raises(ProtocolError, match="longer than 32 bits"):
        read_uvarint(bytes.fromhex(hexed), 0)


def test_a_varint_written_longer_than_need_be_is_read_as_kafka_reads_it() -> None:
    assert read_uvarint(b"\x81\x80\x80\x80\x00", 0) == (1, 5)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff"])
def test_a_varint_cut_off_shows_as_the_end_of_the_message(data: bytes) -> None:
    with pytest.raises(IndexError) as caught:
        read_uvarint(data, 0)
    assert str(explain(caught.value, "Metadata v9 request")) == "Metadata v9 request: the message ends early."


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_a_number_that_no_varint_holds_is_our_own_mistake(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit in a varint"):
        uvarint(value)


def test_a_tagged_field_that_is_longer_than_what_is_left_is_refused() -> None:
    assert next_tagged_field(b"\x05\x02ab", 0, 4) == (5, 2, 4)
    with pytest.raises(ProtocolError, match="Tagged field 5 claims 3 bytes"):
        next_tagged_field(b"\x05\x03ab", 0, 4)


def test_sections_of_unknown_tagged_fields_are_stepped_over() -> None:
    assert skip_tagged_fields(b"..\x00rest", 2) == 3
    assert skip_tagged_fields(b"\x02\x00\x01a\x07\x00rest", 0) == 6
    with pytest.raises(ProtocolError, match="3 tagged fields are claimed"):
        skip_tagged_fields(b"\x03\x00\x01a\x07", 0)


def test_an_explanation_keeps_the_code_and_names_the_message() -> None:
    error = explain(ProtocolError("no", ErrorCode.UNSUPPORTED_VERSION), "Fetch v99 request")
    assert (str(error), error.code) == ("Fetch v99 request: no.", ErrorCode.UNSUPPORTED_VERSION)
    with pytest.raises(struct.error) as caught:
        struct.unpack_from(">i", b"")
    assert "ends early" in str(explain(caught.value, "x"))


def test_strings_are_written_in_both_forms() -> None:
    parts: list[bytes] = []
    for text in (None, "", "é"):
        put_string(parts, text)
        put_compact_string(parts, text)
    assert b"".join(parts) == b"\xff\xff\x00\x00\x00\x01\x00\x02\xc3\xa9\x03\xc3\xa9"
    with pytest.raises(ValueError, match="32768 bytes"):
        put_string(parts, "x" * 32_768)


def test_uuids_kept_for_reuse_are_bounded() -> None:
    for number in range(UUIDS_KEPT_MAX + 100):
        assert uuid_of(number.to_bytes(16, "big")).int == number
    assert len(uuids_kept) <= UUIDS_KEPT_MAX
