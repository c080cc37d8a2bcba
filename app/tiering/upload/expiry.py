"""Expiry of a led partition: the log start by ``retention.*``, and the deletion of objects below it.

The new log start is durable in the same manifest entry as DELETE_STARTED, before anything is deleted. Objects are deleted
``firn.remote.delete.delay.ms`` later, and their entries after them.

Tests: ``tests/tiering/test_remote_log_manager.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.core.log_events import Event
from app.core.loop_time import loop_time_s
from app.core.metrics import Registry
from app.core.seams import Clock
from app.core.units import Offset
from app.metadata.manifest.manifest import CHANGES_PER_ENTRY_MAX
from app.metadata.manifest.manifest_state import SegmentEntry
from app.objectstore.api import ObjectStore
from app.tiering.upload.deadlines import DELETE_DEADLINE_S, within
from app.tiering.upload.deletion import delete_segments
from app.tiering.upload.led_partition import LedPartition
from app.tiering.upload.local_retention import span_of
from app.tiering.upload.retention import Span, expired_end
from app.tiering.upload.tiered_log import TieredLog

DELETES_PER_REQUEST: Final = 1000


class Expiry:
    """Raises log starts and deletes expired segments. Belongs to one event loop. The caller owns the task."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        registry: Registry,
        retention_interval_s: float,
        log_line: Callable[[str], None] | None = None,
    ) -> None:
        """``retention_interval_s``: interval of the check of ``retention.ms``. ``log_line`` gets a sentence when retention deletes
        every record of a partition."""
        self._store, self._clock = store, clock
        self._retention_interval_s = retention_interval_s
        self._log_line = log_line
        self._expired = registry.counter("firn_tier_expired_segments_total", "Remote segments expired")
        self._deleted = registry.counter("firn_tier_deleted_objects_total", "Segment objects deleted")

    async def expire(self, partition: LedPartition) -> None:
        """Retention over the whole log: raise the log start durably, with DELETE_STARTED for the segments below it.

        Raises: FencedError, StorageUnavailable.
        """
        log, manifest = partition.log, partition.manifest
        config = log.config
        partition.set_phase("expiring")
        new_start = max(log.log_start_offset, manifest.log_start_offset)
        if "delete" in config.cleanup_policy:
            new_start = max(new_start, self._retention_start(partition))
        if config.remote_log_delete_on_disable and not config.remote_storage_enable:
            new_start = max(new_start, log.local_log_start_offset)
        gone = [entry.segment_id for entry in manifest.finished if entry.end_offset <= new_start]
        gone += [entry.segment_id for entry in manifest.state.pending_copies() if entry.end_offset <= new_start]
        for first in range(0, max(1, len(gone)), CHANGES_PER_ENTRY_MAX):
            page = gone[first : first + CHANGES_PER_ENTRY_MAX]
            if page or new_start > manifest.log_start_offset:
                await manifest.delete_started(page, log_start_offset=new_start)
                partition.progress.expired_segments += len(page)
                self._expired.value += len(page)
            if new_start > log.log_start_offset:
                # With the first entry: from then on readers are refused offsets below.
                log.advance_log_start(new_start)

    def _retention_start(self, partition: LedPartition) -> Offset:
        """The log start according to ``retention.*``; 0 if there is no limit. Rolls an active segment that is too old.

        ``retention.ms`` is checked every ``log.retention.check.interval.ms``. It deletes only segments that had rolled by the
        previous check.
        """
        log, manifest = partition.log, partition.manifest
        config = log.config
        now_s = loop_time_s()
        retention_ms, rolled_end = -1, partition.rolled_end
        if now_s >= partition.due.retention_at_s:
            retention_ms = config.retention_ms
            partition.due.retention_at_s = now_s + self._retention_interval_s
            partition.rolled_end = active_base(log)
        start = max(log.log_start_offset, manifest.log_start_offset)
        spans = [_span_of_entry(entry) for entry in manifest.finished if entry.end_offset > start]
        remote_end = spans[-1].end_offset if spans else start
        active_bytes = 0
        now_ms = self._clock.now_ms()
        for segment in log.segments():
            if segment.active:
                active_bytes = segment.size_bytes
                active = span_of(segment)
                if (
                    active_bytes
                    and 0 <= retention_ms < now_ms - active.newest_ms
                    and active.newest_ms >= 0
                    and segment.end_offset <= log.last_stable_offset
                ):
                    log.roll()
                    partition.rolled_end = segment.end_offset  # it goes at the next look
                break
            if segment.end_offset > max(remote_end, start) and segment.end_offset <= log.last_stable_offset:
                spans.append(span_of(segment))
        end = expired_end(
            spans,
            sum(span.raw_bytes for span in spans) + active_bytes,
            retention_ms=retention_ms,
            retention_bytes=config.retention_bytes,
            now_ms=now_ms,
            aged_end=rolled_end,
        )
        if end is None:
            return Offset(0)
        if end == log.log_end_offset and self._log_line is not None:
            newest_ms = max(span.newest_ms for span in spans)
            self._log_line(
                Event.RETENTION_EVERYTHING.line(
                    f"retention deletes every record of {log.topic}-{log.partition}: offsets {start} to {end - 1}, the newest "
                    f"written {max(0, now_ms - newest_ms) // 1000} s ago; retention.ms is {config.retention_ms}, "
                    f"retention.bytes is {config.retention_bytes}",
                    topic=log.topic,
                    partition=int(log.partition),
                )
            )
        return end

    async def delete_objects(self, partition: LedPartition) -> None:
        """Delete the objects of DELETE_STARTED entries whose delay is over, then forget the entries.

        Raises: FencedError, StorageUnavailable.
        """
        manifest = partition.manifest
        delay_ms = partition.log.config.firn_remote_delete_delay_ms
        now_ms = self._clock.now_ms()
        due = [
            entry
            for entry in manifest.state.pending_deletes()
            # The others stay as they are: their objects are not theirs, and ``RECONCILE`` reports them.
            if entry.changed_ms + delay_ms <= now_ms and entry.has_own_key(*partition.key)
        ]
        if due:
            partition.set_phase("deleting")
        for start in range(0, len(due), DELETES_PER_REQUEST):
            page = due[start : start + DELETES_PER_REQUEST]
            await within(
                DELETE_DEADLINE_S,
                "deleting objects",
                delete_segments(self._store, partition.key, [manifest.object_key(entry) for entry in page]),
            )
            await manifest.delete_finished([entry.segment_id for entry in page])
            partition.progress.deleted_objects += len(page)
            self._deleted.value += len(page)


# --- pieces -----------------------------------------------------------------------------------------------------------


def active_base(log: TieredLog) -> Offset:
    """Base offset of the active segment. All records below it have rolled."""
    return log.segments()[-1].base_offset


def _span_of_entry(entry: SegmentEntry) -> Span:
    newest_ms = max(entry.max_timestamp, entry.newest_arrival_ms)
    return Span(entry.base_offset, entry.end_offset, entry.raw_bytes, newest_ms)
