"""Zig-zag varints, as records use them (KIP-98; the encoding of Protocol Buffers' sint32 and sint64).

Seven bits a byte, least significant first, the high bit says "more follows"; the sign sits in the lowest bit so that small
negative numbers stay small.
"""

from __future__ import annotations

from typing import Final

VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10
INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1


def _encode(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


_TABLE: Final = tuple(_encode(value) for value in range(4096))


def encode_varint(value: int) -> bytes:
    """The bytes of ``value``, an int64. Lengths and offset deltas, nearly all numbers of a record, come from a table."""
    if 0 <= value < 4096:
        return _TABLE[value]
    if not INT64_MIN <= value <= INT64_MAX:
        raise OverflowError(f"{value} does not fit in 64 bits")
    return _encode(value)


def decode_varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it) of an int32.

    Raises: IndexError where the bytes end; ValueError where they are longer or greater than an int32 can be.
    """
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    second = data[position + 1]
    if second < 0x80:
        return (((byte & 0x7F) | (second << 7)) >> 1) ^ -(byte & 1), position + 2
    value, position = _decode(data, position, VARINT_BYTES_MAX)
    if not INT32_MIN <= value <= INT32_MAX:
        raise ValueError("a varint is greater than 32 bits")
    return value, position


def decode_varlong(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it) of an int64. Raises as ``decode_varint``."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    second = data[position + 1]
    if second < 0x80:
        return (((byte & 0x7F) | (second << 7)) >> 1) ^ -(byte & 1), position + 2
    value, position = _decode(data, position, VARLONG_BYTES_MAX)
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError("a varlong is greater than 64 bits")
    return value, position


def _decode(data: bytes | bytearray | memoryview, position: int, bytes_max: int) -> tuple[int, int]:
    raw = shift = 0
    for byte_position in range(position, position + bytes_max):
        byte = data[byte_position]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), byte_position + 1
        shift += 7
    raise ValueError(f"a varint is longer than {bytes_max} bytes")
