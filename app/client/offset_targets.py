"""Where a reset puts the offsets of a group. Pure.

Tests: ``tests/client/test_offset_targets.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.units import TopicPartition


def targets(
    aims: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The new offset of each partition of ``aims``, within the offsets of its log.

    A negative aim is the end: no record is as late as the time that was asked for.
    """
    return {
        partition: ends[partition] if aim < 0 else min(max(aim, starts[partition]), ends[partition])
        for partition, aim in aims.items()
    }
