"""What ``make.py`` has an old broker write, and ``test_versions.py`` reads again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

TIERED: Final = "tiered"
LOCAL: Final = "local"
COMPACTED: Final = "compacted"
TRANSACTIONAL: Final = "transactional"
GROUP: Final = "readers"
TOPICS: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    TIERED: (
        2,
        {
            "segment.bytes": "1048576",
            "local.retention.ms": "1000",
            "retention.ms": "-1",
            "firn.tier.max.lag.ms": "2000",
        },
    ),
    LOCAL: (1, {"remote.storage.enable": "false", "retention.ms": "-1", "segment.bytes": "1048576"}),
    COMPACTED: (1, {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}),
    TRANSACTIONAL: (1, {"remote.storage.enable": "false", "retention.ms": "-1"}),
}
"""Partitions and settings by topic."""
KEYS: Final = tuple(b"k%d" % one for one in range(10))
COUNTS: Final[Mapping[str, int]] = {TIERED: 600, LOCAL: 300, COMPACTED: 600, TRANSACTIONAL: 6}
ABORTED: Final = frozenset({1, 4})
"""Transactions, one record each, that were aborted."""
OFFSETS: Final[Mapping[int, int]] = {0: 123, 1: 456}
"""What ``GROUP`` committed of ``TIERED``."""


def records(topic: str, partition: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a partition, in order."""
    for number in range(COUNTS[topic]):
        yield KEYS[number % len(KEYS)], b"%s-%d %d " % (topic.encode(), partition, number) + b"x" * 8000
