"""The tier's status for people and machines: a line for each partition, a line for each segment.

Tests: ``tests/tiering/test_remote_log_manager.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.loop_time import loop_time_s
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicId
from app.metadata.manifest.manifest import SegmentEntry, SegmentState
from app.tiering.upload.led_partition import LedPartition
from app.tiering.upload.tiered_log import LocalSegment


@dataclass(frozen=True, slots=True)
class PartitionTierStatus:
    """One partition's line of ``firn tier status``."""

    topic: str
    topic_id: TopicId
    partition: PartitionIndex
    enabled: bool
    log_start_offset: Offset
    local_start_offset: Offset
    log_end_offset: Offset
    tiered_end: Offset
    lag_bytes: int
    """Bytes of local segments that are not in the store, including the active one. A loss of the disk would lose them. 0 if the
    topic is not tiered."""
    lag_ms: int
    """Time since the first write to the oldest of these segments; 0 if there is none."""
    remote_segments: int
    remote_raw_bytes: int
    remote_stored_bytes: int
    local_bytes: int
    phase: str
    phase_s: float
    copying: tuple[Offset, Offset] | None
    copied_segments: int
    copied_bytes: int
    expired_segments: int
    deleted_objects: int
    pending_deletes: int
    failures: int
    last_error: str
    faults: tuple[str, ...]
    """Violations of INV-4. Not empty only after a bug or damage to the bucket."""


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """One line of ``firn tier segments``."""

    tier: str
    """``local``, ``remote`` or ``both``."""
    state: str
    base_offset: Offset
    end_offset: Offset
    raw_bytes: int
    stored_bytes: int
    record_count: int
    """-1 if only the local log has the segment."""
    min_timestamp: TimestampMs
    """If only the local log has the segment: the timestamp of its first batch."""
    max_timestamp: TimestampMs
    changed_ms: TimestampMs
    lag_ms: int
    """Time from the last write until the segment was in the store, or until now if it waits for that. Otherwise, or if unknown,
    -1."""
    object_key: str


def partition_status(partition: LedPartition, now_ms: int) -> PartitionTierStatus:
    """The status of a partition's tier at ``now_ms``."""
    log, state = partition.log, partition.manifest.state
    lagging = [segment for segment in log.segments() if segment.end_offset > max(state.tiered_end, segment.base_offset)]
    lag_ms = 0
    if lagging and log.config.tiered:
        known = [segment.first_append_ms for segment in lagging if segment.first_append_ms >= 0]
        lag_ms = max(0, now_ms - min(known)) if known else 0
    return PartitionTierStatus(
        topic=log.topic,
        topic_id=log.topic_id,
        partition=log.partition,
        enabled=log.config.tiered,
        log_start_offset=log.log_start_offset,
        local_start_offset=log.local_log_start_offset,
        log_end_offset=log.log_end_offset,
        tiered_end=state.tiered_end,
        lag_bytes=sum(segment.size_bytes for segment in lagging) if log.config.tiered else 0,
        lag_ms=lag_ms,
        remote_segments=len(state.finished),
        remote_raw_bytes=state.raw_bytes,
        remote_stored_bytes=state.size_bytes,
        local_bytes=log.size_bytes,
        phase=partition.progress.phase,
        phase_s=loop_time_s() - partition.progress.phase_since_s if partition.progress.phase_since_s else 0.0,
        copying=partition.progress.copying,
        copied_segments=partition.progress.copied_segments,
        copied_bytes=partition.progress.copied_bytes,
        expired_segments=partition.progress.expired_segments,
        deleted_objects=partition.progress.deleted_objects,
        pending_deletes=len(state.pending_deletes()),
        failures=partition.progress.failures,
        last_error=partition.progress.last_error,
        faults=tuple(partition.progress.faults),
    )


def segment_statuses(partition: LedPartition, now_ms: int) -> list[SegmentStatus]:
    """Every segment of a partition at ``now_ms``, by offset. A segment in both tiers is one line."""
    lines = []
    log, tiered_end = partition.log, partition.manifest.tiered_end
    local = {segment.base_offset: segment for segment in log.segments()}
    for entry in partition.manifest.entries:
        here = local.get(entry.base_offset)
        both = here is not None and here.end_offset == entry.end_offset
        if both and entry.state is SegmentState.COPY_FINISHED:
            del local[entry.base_offset]
        lines.append(
            SegmentStatus(
                tier="both" if both else "remote",
                state=entry.state.name,
                base_offset=entry.base_offset,
                end_offset=entry.end_offset,
                raw_bytes=entry.raw_bytes,
                stored_bytes=entry.size_bytes,
                record_count=entry.record_count,
                min_timestamp=entry.min_timestamp,
                max_timestamp=entry.max_timestamp,
                changed_ms=entry.changed_ms,
                lag_ms=_entry_lag_ms(entry, here if both else None, now_ms),
                object_key=partition.manifest.object_key(entry),
            )
        )
    lines += [
        SegmentStatus(
            tier="local",
            state="ACTIVE" if segment.active else "ROLLED",
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            raw_bytes=segment.size_bytes,
            stored_bytes=0,
            record_count=-1,
            min_timestamp=TimestampMs(min(segment.rolling_timestamp, segment.max_timestamp)),
            max_timestamp=segment.max_timestamp,
            changed_ms=segment.first_append_ms,
            lag_ms=(
                _since_written_ms(segment.max_timestamp, segment, now_ms)
                if log.config.tiered and not segment.active and segment.end_offset > tiered_end
                else -1
            ),
            object_key="",
        )
        for segment in local.values()
    ]
    return sorted(lines, key=lambda line: (line.base_offset, line.tier))


def _entry_lag_ms(entry: SegmentEntry, local: LocalSegment | None, now_ms: int) -> int:
    """``SegmentStatus.lag_ms`` of a segment in the manifest. ``local`` is its local copy, if there is one."""
    match entry.state:
        case SegmentState.COPY_STARTED:
            return _since_written_ms(entry.max_timestamp, local, now_ms)
        case SegmentState.COPY_FINISHED if entry.broker_id >= 0:  # else a job made it of segments in the store
            return _since_written_ms(entry.max_timestamp, local, entry.changed_ms)
        case _:
            return -1


def _since_written_ms(newest_ms: int, local: LocalSegment | None, until_ms: int) -> int:
    """Time from a segment's last write until ``until_ms``; -1 if the last write is not known.

    The newest record's timestamp is taken as the time of the last write. If the broker's clock at the first write is known and
    later, it counts instead: a producer of old records is not late.
    """
    written_ms = max(newest_ms, local.first_append_ms if local is not None else -1)
    return max(0, until_ms - written_ms) if written_ms >= 0 else -1
