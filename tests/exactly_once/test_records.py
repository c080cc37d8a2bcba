"""Records of `__http_requests`: their bytes, and refusals of all others."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import CorruptionError
from app.exactly_once.records import (
    PARTITIONS,
    Head,
    Part,
    RequestKey,
    Result,
    Tick,
    decode,
    decode_head,
    encode_result,
    encode_tick,
)

KEY = RequestKey("User:ann", b"order-1")
PARTS = (Part("orders", 2, 40, 2, -1), Part("orders", 0, 7, 1, 123))
RESULT = Result(bytes(range(16)), b"d" * 32, 207, 1_000, 900, PARTS, (0, 1, 0))


def test_the_bytes_of_a_result_are_those_of_the_documented_format() -> None:
    key, value = encode_result(KEY, RESULT)
    assert key == bytes.fromhex("0000 0008") + b"User:ann" + b"order-1"
    assert value == b"".join(
        (
            bytes.fromhex("0000"),
            bytes(range(16)),
            b"d" * 32,
            bytes.fromhex("00cf 00000000000003e8 0000000000000384 00000002"),
            bytes.fromhex("0006") + b"orders" + bytes.fromhex("00000002 0000000000000028 00000002 ffffffffffffffff"),
            bytes.fromhex("0006") + b"orders" + bytes.fromhex("00000000 0000000000000007 00000001 000000000000007b"),
            bytes.fromhex("00000003 00000000 00000001 00000001 00000001 00000000 00000001"),
        )
    )
    assert decode(key, value) == (KEY, RESULT)
    assert decode_head(key, value) == (KEY, Head(RESULT.try_id, 1_000))


def test_a_result_with_fields_of_its_answer_is_of_version_1_and_ends_with_them() -> None:
    named = RESULT._replace(answer=b"types")
    key, value = encode_result(KEY, named)
    assert value == b"\0\1" + encode_result(KEY, RESULT)[1][2:] + b"types"
    assert decode(key, value) == (KEY, named)
    assert decode_head(key, value) == (KEY, Head(RESULT.try_id, 1_000))
    for wrong in (b"\0\0" + value[2:], value[: -len(b"types")], b"\0\2" + value[2:]):
        with pytest.raises(CorruptionError):
            decode(key, wrong)


def test_the_bytes_of_a_tick() -> None:
    assert encode_tick(5) == (b"\0\1", bytes(9) + b"\5")
    assert decode(*encode_tick(5)) == decode_head(*encode_tick(5)) == Tick(5)


def test_each_record_of_a_request_has_the_offset_of_its_part() -> None:
    assert [(part.partition, offset) for part, offset in RESULT.offsets()] == [(2, 40), (0, 7), (2, 41)]


def test_a_record_of_an_unknown_kind_is_skipped() -> None:
    assert decode(b"\0\7", b"") is None
    assert decode_head(b"\0\7", None) is None


def test_two_principals_never_share_a_key() -> None:
    one, other = RequestKey("a", b"bc"), RequestKey("ab", b"c")
    assert one.hash64 != other.hash64
    assert encode_result(one, RESULT)[0] != encode_result(other, RESULT)[0]
    assert one.partition == one.hash64 % PARTITIONS


@pytest.mark.parametrize(
    ("key", "parts", "places"),
    [
        (RequestKey("a", b""), PARTS, (0, 1, 0)),
        (RequestKey("a", bytes(256)), PARTS, (0, 1, 0)),
        (RequestKey("a" * 1_025, b"k"), PARTS, (0, 1, 0)),
        (KEY, (), ()),
        (KEY, PARTS, (0, 1)),
        (KEY, PARTS, (0, 1, 2)),
    ],
)
def test_a_result_that_no_record_can_hold_is_not_encoded(
    key: RequestKey, parts: tuple[Part, ...], places: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"at most|parts|part 2"):
        encode_result(key, RESULT._replace(parts=parts, places=places))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\0", b""),
        (b"\0\1", None),
        (b"\0\1", b"\0\1" + bytes(8)),
        (b"\0\0\0\3abc", encode_result(KEY, RESULT)[1]),
        (b"\0\0\0\1\xffk", encode_result(KEY, RESULT)[1]),
        (encode_result(KEY, RESULT)[0], b"\0\1" + encode_result(KEY, RESULT)[1][2:]),
        (encode_result(KEY, RESULT)[0], encode_result(KEY, RESULT)[1] + b"\0"),
    ],
)
def test_bytes_that_are_no_record_are_corrupt(key: bytes, value: bytes | None) -> None:
    with pytest.raises(CorruptionError):
        decode(key, value)


@given(data=st.data())
def test_damaged_bytes_raise_nothing_else(data: st.DataObject) -> None:
    key, value = map(bytearray, encode_result(KEY, RESULT))
    damaged = data.draw(st.sampled_from([key, value]))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(value)))
    for reads in (decode, decode_head):
        with contextlib.suppress(CorruptionError):
            reads(bytes(key), bytes(value[:end]))
