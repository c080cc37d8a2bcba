"""Chooses the next log to compact, the end of its part to compact, and the groups of segments. Pure; Kafka's rules (KIP-58,
KIP-354).

    log start ............ dirty start ................ dirty end ............ log end
    |  cleaned before      |  new, may be cleaned       |  not yet             |

The dirty end is the first of: the last stable offset, the active segment, the first segment with a record younger than
``min.compaction.lag.ms``. A log is due when the share of the middle part in both left parts is above ``min.cleanable.dirty.ratio``,
or a record in it is older than ``max.compaction.lag.ms``.

Tests: ``tests/hot/test_cleaner.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from app.configs import TopicConfig
from app.hot.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from app.hot.segments import RELATIVE_OFFSET_MAX, RolledSegment

GROUP_SEGMENTS_MAX: Final = 64
"""Maximum number of segments in a group. Their files are renamed in one turn of the event loop."""


class Dirt(NamedTuple):
    """The part of a log that may be cleaned."""

    start: int
    end: int
    ratio: float
    overdue_ms: int
    """How long the oldest record has been past ``max.compaction.lag.ms``."""

    @property
    def exists(self) -> bool:
        return self.start < self.end


def find_dirt(
    segments: Sequence[RolledSegment],
    config: TopicConfig,
    *,
    log_start_offset: int,
    cleaned_end_offset: int | None,
    stable_end_offset: int,
    now_ms: int,
) -> Dirt:
    """The part of a log that may be cleaned now. ``segments`` are the rolled ones. Records from ``stable_end_offset`` on stay."""
    start = log_start_offset
    if cleaned_end_offset is not None:
        start = max(start, cleaned_end_offset)
    end = start
    clean_bytes = dirty_bytes = 0
    oldest = -1
    for segment in segments:
        if segment.end_offset <= start:
            clean_bytes += segment.size_bytes
            continue
        if segment.end_offset > stable_end_offset:
            break
        if config.min_compaction_lag_ms > 0 and segment.max_timestamp > now_ms - config.min_compaction_lag_ms:
            break
        end = segment.end_offset
        dirty_bytes += segment.size_bytes
        timestamp = segment.first_timestamp if segment.first_timestamp >= 0 else segment.max_timestamp
        if timestamp >= 0:
            oldest = timestamp if oldest < 0 else min(oldest, timestamp)
    total = clean_bytes + dirty_bytes
    overdue_ms = max(0, now_ms - config.max_compaction_lag_ms - oldest) if oldest >= 0 else 0
    return Dirt(start, end, dirty_bytes / total if total else 0.0, overdue_ms)


def is_due(dirt: Dirt, config: TopicConfig) -> bool:
    """Whether a log with this dirty part is due."""
    return dirt.exists and (dirt.overdue_ms > 0 or dirt.ratio > config.min_cleanable_dirty_ratio)


def group_segments(segments: Iterable[RolledSegment], config: TopicConfig) -> list[list[RolledSegment]]:
    """Groups of neighbouring segments that fit into one segment even if no record is removed."""
    groups: list[list[RolledSegment]] = []
    size = 0
    entries_bytes_max = config.segment_index_bytes * max(1, config.index_interval_bytes)
    for segment in segments:
        size += segment.size_bytes
        if (
            groups
            and size <= config.segment_bytes
            and size * (OFFSET_ENTRY_BYTES + TIME_ENTRY_BYTES) <= entries_bytes_max * 2
            and len(groups[-1]) < GROUP_SEGMENTS_MAX
            and segment.end_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size = segment.size_bytes
    return groups
