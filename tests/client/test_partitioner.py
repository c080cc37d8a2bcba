"""Keys go where Kafka's Java client sends them."""

from __future__ import annotations

import random

import pytest

from app.client.partitioner import StickyChoice, murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        # Vectors of Kafka's own UtilsTest.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFF_FFFF


def test_a_key_goes_to_the_same_partition_remembered_or_not() -> None:
    for key in (b"", b"x", b"foobar", b"long" * 100):
        expected = (murmur2(key) & 0x7FFF_FFFF) % 7
        assert [partition_of_key(key, 7) for _ in range(3)] == [expected] * 3


def test_keyless_records_stick_until_a_batch_is_full() -> None:
    choice = StickyChoice(random.Random(0))
    first = choice.partition("t", 4)
    assert {choice.partition("t", 4) for _ in range(10)} == {first}
    choice.batch_full("t", (first + 1) % 4, 4)
    assert choice.partition("t", 4) == first
    choice.batch_full("t", first, 4)
    assert choice.partition("t", 4) != first
    assert choice.partition("t", 1) == 0
