"""Which partition a record goes to when its sender does not say: as Kafka's Java client decides, so that keys agree.

A record with a key goes where murmur2 of the key says (seed 0x9747b28c, sign bit cleared, modulo the partition count); one
without goes to the partition that sticks until a batch of it is full (KIP-480), so that batches grow.
"""

from __future__ import annotations

import random
from functools import lru_cache
from struct import Struct
from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFF_FFFF
_REMEMBERED_KEYS_MAX: Final = 16_384
_REMEMBERED_KEY_BYTES_MAX: Final = 64
_WORD: Final = Struct("<I")


def murmur2(data: bytes) -> int:
    """MurmurHash2 of ``data`` with Kafka's seed, as an unsigned 32-bit number."""
    length = len(data)
    hashed = (_SEED ^ length) & _MASK
    whole_end = length & ~3
    for (word,) in _WORD.iter_unpack(memoryview(data)[:whole_end]):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        hashed = hashed * _MULTIPLIER & _MASK ^ word
    if length > whole_end:
        hashed = (hashed ^ int.from_bytes(data[whole_end:], "little")) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _MASK
    return hashed ^ hashed >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key among ``partition_count``."""
    hashed = _remembered(key) if len(key) <= _REMEMBERED_KEY_BYTES_MAX else murmur2(key)
    return (hashed & 0x7FFF_FFFF) % partition_count


_remembered: Final = lru_cache(_REMEMBERED_KEYS_MAX)(murmur2)
"""Keys come again, and hashing one in Python costs as much as all else that is done for a small record."""


class StickyChoice:
    """The partition that records without a key go to just now, per topic."""

    __slots__ = ("_current", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._current: dict[str, int] = {}

    def partition(self, topic: str, partition_count: int) -> int:
        current = self._current.get(topic)
        if current is None or current >= partition_count:
            current = self._current[topic] = self._rng.randrange(partition_count)
        return current

    def batch_full(self, topic: str, partition: int, partition_count: int) -> None:
        """Move on to another partition if ``partition`` is the one that sticks."""
        if self._current.get(topic) == partition and partition_count > 1:
            step = self._rng.randrange(1, partition_count)
            self._current[topic] = (partition + step) % partition_count
