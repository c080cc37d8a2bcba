"""Subscriptions and assignments that consumers of the classic protocol exchange through the broker. Pure.

In the classic protocol only clients interpret these bytes. If a group uses both protocols, the broker reads them too, because
it makes the assignment that clients expect from one of their members (Kafka's ``ConsumerProtocolSubscription`` and
``ConsumerProtocolAssignment``, versions 0 to 3; a newer version begins with the fields of version 3).

Tests: ``tests/groups/test_migration.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, ProtocolError, clause

NEWEST: Final = 3
OWNED_FROM: Final = 1
GENERATION_FROM: Final = 2
RACK_FROM: Final = 3

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")

TopicPartitions = Sequence[tuple[str, tuple[int, ...]]]
"""Partitions by topic name."""


class ClassicSubscription(NamedTuple):
    """A member's subscription, and the partitions that it reports."""

    version: int
    topics: tuple[str, ...]
    owned: TopicPartitions
    rack_id: str | None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int16(self) -> int:
        (value,) = _INT16.unpack_from(self._data, self._at)
        self._at += _INT16.size
        return int(value)

    def int32(self) -> int:
        (value,) = _INT32.unpack_from(self._data, self._at)
        self._at += _INT32.size
        return int(value)

    def count(self, smallest: int) -> int:
        """Number of elements of the next array, checked against the remaining bytes."""
        count = self.int32()
        if not 0 <= count <= (len(self._data) - self._at) // smallest:
            raise ValueError(f"an array of {count} elements")
        return count

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length == -1 else self._take(length).decode()

    def string(self) -> str:
        return self._take(self.int16()).decode()

    def skip_bytes(self) -> None:
        length = self.int32()
        if length != -1:
            self._take(length)

    def topic_partitions(self) -> TopicPartitions:
        return [
            (self.string(), tuple([self.int32() for _ in range(self.count(_INT32.size))]))
            for _ in range(self.count(_INT16.size + _INT32.size))
        ]

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._at:
            raise ValueError(f"a field of {length} bytes")
        self._at += length
        return self._data[self._at - length : self._at]


def decode_subscription(data: bytes) -> ClassicSubscription:
    """Raises: ProtocolError UNKNOWN_SERVER_ERROR, as Kafka has no better code for it."""
    reader = _Reader(data)
    try:
        version = reader.int16()
        if version < 0:
            raise ValueError(f"version {version}")
        topics = tuple([reader.string() for _ in range(reader.count(_INT16.size))])
        reader.skip_bytes()
        owned = reader.topic_partitions() if version >= OWNED_FROM else ()
        if version >= GENERATION_FROM:
            reader.int32()
        rack_id = reader.nullable_string() if version >= RACK_FROM else None
    except (StructError, ValueError) as error:
        raise ProtocolError(
            f"The embedded subscription is malformed: {clause(error)}.", ErrorCode.UNKNOWN_SERVER_ERROR
        ) from None
    return ClassicSubscription(min(version, NEWEST), topics, owned, rack_id)


def subscription_version(data: bytes) -> int:
    """The version that a member writes: the oldest if there is none, and at most the newest known one. The rest is not read."""
    return min(max(int.from_bytes(data[: _INT16.size], signed=True), 0), NEWEST) if len(data) >= _INT16.size else 0


def decode_assignment(data: bytes) -> TopicPartitions:
    """Decode an assignment. It is empty for no bytes, as before the first assignment. Raises: as ``decode_subscription``."""
    if not data:
        return ()
    reader = _Reader(data)
    try:
        reader.int16()
        return reader.topic_partitions()
    except (StructError, ValueError) as error:
        raise ProtocolError(
            f"The embedded assignment is malformed: {clause(error)}.", ErrorCode.UNKNOWN_SERVER_ERROR
        ) from None


def encode_assignment(version: int, topics: TopicPartitions) -> bytes:
    """Encode an assignment without user data, in a version that its reader knows."""
    pieces = [_INT16.pack(version), _INT32.pack(len(topics))]
    for name, partitions in topics:
        encoded = name.encode()
        pieces += [_INT16.pack(len(encoded)), encoded, _INT32.pack(len(partitions))]
        pieces += [_INT32.pack(partition) for partition in partitions]
    pieces.append(_INT32.pack(-1))
    return b"".join(pieces)
