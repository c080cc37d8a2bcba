"""Chooses the partition of a record whose sender names none, as Kafka's Java client does. So equal keys go to the same partition.

With a key: murmur2 of the key (seed 0x9747b28c, sign bit cleared), modulo the partition count. Without a key: the same partition
as the last record, until a batch of it is full (KIP-480). So batches grow.
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
"""Cached, because keys repeat. Hashing one in Python costs as much as all other work for a small record."""


class StickyChoice:
    """The partition that gets records without a key now, per topic."""

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
        """Choose another partition if ``partition`` is the one in use."""
        if self._current.get(topic) == partition and partition_count > 1:
            step = self._rng.randrange(1, partition_count)
            self._current[topic] = (partition + step) % partition_count
