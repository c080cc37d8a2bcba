"""Of which decision a marker of the first protocol is: a header of its record (ADR 0037, J46e).

A producer of that protocol keeps its epoch from one transaction to the next, so its markers look alike. The header says when the
transaction was decided, and its partitions. All markers of one decision have the same header, and its time as their timestamp.

Tests: ``tests/transactions/test_deciding.py``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

import msgspec

from app.core.units import PartitionIndex, TopicPartition

VERSION: Final = 1


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    version: int
    decided_ms: int
    partitions: dict[str, list[int]]


class _Timed(msgspec.Struct, array_like=True, frozen=True):
    """As ``_Stored``, with the partitions as they are."""

    version: int
    decided_ms: int
    partitions: msgspec.Raw


class Decision(NamedTuple):
    """The decision in a header."""

    decided_ms: int
    """By the coordinator's clock. Rises with each decision about a transactional id."""
    partitions: frozenset[TopicPartition]


def encode_decision(decision: Decision) -> bytes:
    """The value of the header: a msgpack array of version (1), time, and a map from topics to partitions."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(decision.partitions):
        by_topic[topic].append(partition)
    return msgspec.msgpack.encode(_Stored(VERSION, decision.decided_ms, dict(by_topic)))


def parse_decision(data: bytes) -> Decision | None:
    """The decision in the header; None if there is no header, or if this program does not know its version."""
    if not data:
        return None
    try:
        found = msgspec.msgpack.decode(data, type=_Stored)
    except msgspec.MsgspecError:
        return None
    if found.version != VERSION:
        return None
    partitions = frozenset(
        TopicPartition(topic, PartitionIndex(index)) for topic, indexes in found.partitions.items() for index in indexes
    )
    return Decision(found.decided_ms, partitions)


def decided_ms(data: bytes) -> int:
    """The time in a header; -1 if there is none. Its partitions are skipped: each of their markers has them."""
    if not data:
        return -1
    try:
        found = msgspec.msgpack.decode(data, type=_Timed)
    except msgspec.MsgspecError:
        return -1
    return found.decided_ms if found.version == VERSION else -1
