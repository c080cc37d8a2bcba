"""Which partition a name belongs to: Java's hash, as clients and Kafka's tools compute it."""

from __future__ import annotations

import pytest

from app.coordinator.topics import name_hash, partition_for


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("polygenelubricants", 0),  # its hash is -2³¹, which has no absolute value
        ("test-group", 627_841_412),
        ("grüße", 98_768_023),
        ("\U0001f9ca", 1_772_876),  # two UTF-16 code units
    ],
)
def test_the_hash_is_javas(name: str, expected: int) -> None:
    assert name_hash(name) == expected


def test_the_partition_is_the_hash_modulo_the_count() -> None:
    assert partition_for("hello", 50) == 99_162_322 % 50


def _plain_hash(name: str) -> int:
    """Java's ``String.hashCode``, character by character."""
    units = name.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    value -= (value >> 31) << 32
    return 0 if value == -(1 << 31) else abs(value)


@pytest.mark.parametrize("length", [0, 1, 7, 255, 256, 257, 511, 512, 513, 3_000, 32_767])
def test_a_name_of_any_length_has_the_hash_of_java(length: int) -> None:
    name = "".join(chr(0x20 + (7 * place) % 0xD7DF) for place in range(length))
    assert name_hash(name) == _plain_hash(name)
