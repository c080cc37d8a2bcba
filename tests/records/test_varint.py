"""Varints against the encoding's own definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.records.varint import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    decode_varint,
    decode_varlong,
    encode_varint,
)

CASES = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (8192, "808001"),
    (INT32_MAX, "feffffff0f"),
    (INT32_MIN, "ffffffff0f"),
]
LONG_CASES = [(INT64_MAX, "feffffffffffffffff01"), (INT64_MIN, "ffffffffffffffffff01")]


@pytest.mark.parametrize(("value", "encoded"), CASES + LONG_CASES)
def test_known_values_have_their_known_bytes(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert decode_varlong(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(st.integers(INT64_MIN, INT64_MAX), st.binary(max_size=3), st.binary(max_size=3))
def test_every_int64_round_trips_between_other_bytes(value: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(value)
    assert decode_varlong(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


@given(st.integers(INT32_MIN, INT32_MAX))
def test_every_int32_round_trips(value: int) -> None:
    assert decode_varint(encode_varint(value), 0)[0] == value


@pytest.mark.parametrize("encoded", ["8080808010", "ffffffff1f", "808080808000"])
def test_a_varint_over_32_bits_is_refused(encoded: str) -> None:
    with pytest.raises(ValueError, match="varint"):
        decode_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["80808080808080808002", "8080808080808080808000"])
def test_a_varlong_over_64_bits_is_refused(encoded: str) -> None:
    with pytest.raises(ValueError, match="var"):
        decode_varlong(bytes.fromhex(encoded), 0)


def test_a_varint_that_does_not_end_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        decode_varint(b"\x80\x80", 0)


def test_more_than_64_bits_cannot_be_encoded() -> None:
    with pytest.raises(OverflowError):
        encode_varint(INT64_MAX + 1)
