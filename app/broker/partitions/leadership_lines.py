"""Log lines about leaderships that a broker gives up, or cannot take. Pure.

Tests: ``tests/broker/test_leadership.py``, ``tests/broker/test_offline.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.core.errors import CorruptionError, clause
from app.core.units import TopicIdPartition
from app.metadata.image.image import PartitionImage
from app.replication.partition import Partition
from app.tiering.repair.soundness import RESTORE, how_to_mend

NAMED_MAX: Final = 10
"""Partitions that one log line names."""


def why_offline(key: TopicIdPartition, error: CorruptionError) -> str:
    """A sentence or two: why a partition cannot be led, and how the operator can mend it."""
    said = str(error)
    mended = clause(said) if RESTORE in said else f"{clause(said)}; {how_to_mend(key)}"
    return f"{mended}. The broker tries again every few minutes, and when it starts"


def resigned_line(resigned: Sequence[tuple[Partition, PartitionImage]]) -> str:
    """Which partitions other brokers lead now: one line, since it may be thousands. ``resigned``: at least one."""
    if len(resigned) == 1:
        ((partition, image),) = resigned
        leader = "nobody leads it" if image.leader < 0 else f"broker {image.leader} leads it"
        return f"{partition.topic}-{partition.index}: {leader} from leader epoch {image.leader_epoch} on"
    named = ", ".join(
        f"{partition.topic}-{partition.index} ({'nobody' if image.leader < 0 else f'broker {image.leader}'}, leader epoch"
        f" {image.leader_epoch})"
        for partition, image in resigned[:NAMED_MAX]
    )
    more = f" and {len(resigned) - NAMED_MAX} more" if len(resigned) > NAMED_MAX else ""
    leaders = "others lead" if any(image.leader >= 0 for _, image in resigned) else "nobody leads"
    return f"{leaders} {len(resigned)} partitions that this broker has led: {named}{more}"
