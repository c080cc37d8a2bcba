"""Deletes local segments that the tier has, by ``local.retention.*``: of a leader and of a follower alike.

INV-4 on every replica: a local segment goes only below the tiered end of a manifest entry that this broker has seen (ADR 0024, T3),
and below its own high watermark. Above that, a follower may have to truncate, and needs the segments that it cuts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.tiering.upload.retention import Span, expired_end

if TYPE_CHECKING:
    from app.core.units import Offset, TimestampMs
    from app.metadata.manifest.manifest import SegmentManifest
    from app.tiering.upload.tiered_log import LocalSegment, TieredLog


def drop_local(log: TieredLog, manifest: SegmentManifest, *, now_ms: TimestampMs) -> str | None:
    """Delete rolled segments with a durable COPY_FINISHED if they are too old or too large together.

    If the topic is no longer tiered, local segments will be the only copies. They are deleted only with the log start. So are
    those of a compacted topic: the cleaner and the coordinators read the log from its start.

    Returns: a violation of INV-4 in words, if there is one; then nothing is deleted from there on. Raises: StorageFull,
    StorageUnavailable.
    """
    if log.config.stays_local:
        return None
    _leave_to_store(log, manifest)
    uncovered: str | None = None
    spans = []
    end_max = min(manifest.tiered_end, log.high_watermark)
    for segment in log.segments():
        if segment.active or segment.end_offset > end_max:
            break
        base = max(segment.base_offset, log.log_start_offset)
        if base < segment.end_offset and not is_covered(manifest, base, segment.end_offset):
            uncovered = f"[{base}, {segment.end_offset}) is below the tiered end, but not in the store"
            break
        spans.append(span_of(segment))
    end = expired_end(
        spans,
        log.size_bytes,
        retention_ms=log.config.local_retention_ms_effective,
        retention_bytes=log.config.local_retention_bytes_effective,
        now_ms=now_ms,
    )
    if end is not None:
        log.delete_local_before(end)
    return uncovered


def _leave_to_store(log: TieredLog, manifest: SegmentManifest) -> None:
    """Let the log begin here above every range whose segment files are missing and whose records the store has, as it has all
    records before them. Then the range is read there. Raises: as ``drop_local``."""
    for lost in reversed(log.lost):
        if lost.end <= min(manifest.tiered_end, log.high_watermark):
            if is_covered(manifest, log.local_log_start_offset, lost.end):
                log.delete_local_before(lost.end)
            return


def span_of(segment: LocalSegment) -> Span:
    """A local segment as retention sees it."""
    newest_ms = max(segment.max_timestamp, segment.last_append_ms)
    return Span(segment.base_offset, segment.end_offset, segment.size_bytes, newest_ms)


def is_covered(manifest: SegmentManifest, base: Offset, end: Offset) -> bool:
    """Whether readable remote segments cover [base, end). The manifest guarantees that there are no gaps above its start."""
    state = manifest.state
    start = max(base, state.log_start_offset)
    return end <= start or (state.find(start) is not None and state.find(end - 1) is not None)
