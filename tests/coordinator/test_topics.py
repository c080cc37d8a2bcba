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
