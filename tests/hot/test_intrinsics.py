"""Operations written for LLVM, each compiled alone. The cache of the compiled engine does not see changes of them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from numba import njit

from app.hot.cleaning.intrinsics import (
    copy_bytes,
    crc_word,
    fetch_early,
    has_crc_instruction,
    i32_at,
    i64_at,
    put_i16,
    put_i32,
    put_i64,
    u16_at,
    word_at,
)

AT = 3
"""No multiple of a word: the operations take any address."""
NEGATIVE = bytes(range(0xF1, 0xFC))
"""Its numbers have their highest bit set, and no two equal bytes."""


def array(data: bytes) -> Any:
    return np.frombuffer(bytearray(data), dtype=np.uint8)


@njit
def load(data, at):
    return word_at(data, at), i64_at(data, at), i32_at(data, at), u16_at(data, at)


@njit
def store(data, at, value):
    put_i64(data, at, value)
    put_i32(data, at + 8, value)
    put_i16(data, at + 12, value)


@njit
def copy(target, to, source, at, size):
    copy_bytes(target, to, source, at, size)


@njit
def crc_of_word(crc, data, at):
    return crc_word(crc, word_at(data, at))


@njit
def fetched(data, at):
    fetch_early(data, at)
    return data[at]


def test_numbers_are_loaded_from_any_address() -> None:
    data = NEGATIVE[:AT] + NEGATIVE[AT:]
    word, of_eight, of_four, of_two = load(array(data), AT)
    assert np.uint64(word) == struct.unpack_from("=Q", data, AT)[0]
    assert (of_eight,) == struct.unpack_from(">q", data, AT)
    assert (of_four,) == struct.unpack_from(">i", data, AT)
    assert (of_two,) == struct.unpack_from(">H", data, AT)


def test_the_lower_bytes_of_a_number_are_stored_and_none_beside_them() -> None:
    data = array(bytes(20))
    value = -0x0102030405060709
    store(data, AT, value)
    low = value & 0xFFFFFFFF
    assert bytes(data) == bytes(AT) + struct.pack(">qIH", value, low, low & 0xFFFF) + bytes(20 - AT - 14)


def test_bytes_are_copied_from_one_place_to_another() -> None:
    target = array(bytes(8))
    copy(target, 2, array(NEGATIVE), AT, 5)
    assert bytes(target) == bytes(2) + NEGATIVE[AT : AT + 5] + bytes(1)


@pytest.mark.skipif(not has_crc_instruction(), reason="The processor lacks the instruction.")
def test_a_word_extends_a_checksum() -> None:
    data = NEGATIVE[AT:] + bytes(8)
    crc = crc_of_word(np.uint64(0xFFFFFFFF), array(data), 0)
    assert int(crc) ^ 0xFFFFFFFF == crc32c(data[:8])


def test_memory_that_is_prefetched_stays_as_it_is() -> None:
    assert fetched(array(NEGATIVE), AT) == NEGATIVE[AT]
