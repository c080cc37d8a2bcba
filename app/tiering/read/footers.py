"""Footers of remote segments in memory, and the manifest's answer where an object or an entry is missing.

A missing object is first compared with the manifest. If the segment was deleted or replaced, the read continues in the
replacement, or returns OFFSET_OUT_OF_RANGE. Otherwise a missing object is a storage error, like corrupt bytes: retriable,
counted, and never served.

Tests: ``tests/tiering/test_reader.py``.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from contextvars import Context
from dataclasses import dataclass, field
from typing import Final

from app.core.errors import (
    CorruptionError,
    ErrorCode,
    FirnError,
    RequestRejected,
    StorageUnavailable,
    copy_of,
    without_frames,
)
from app.core.limits import MIB
from app.core.loop_time import loop_time_s
from app.core.metrics import Registry
from app.core.units import Offset, TopicIdPartition
from app.core.wake import Wake
from app.metadata.manifest.manifest import SegmentEntry, SegmentManifest
from app.objectstore.api import ObjectMissing
from app.tiering.read.chunk_cache import ChunkCache
from app.tiering.read.chunk_reads import corruption_counter
from app.tiering.read.waiting import ReadTasks, RemoteWait
from app.tiering.store.segment_format import SegmentFooter, decode_footer
from app.tiering.store.store_work import StoreWork

FOOTER_CACHE_BYTES_MAX: Final = 16 * MIB
"""Encoded bytes of the decoded footers in memory. Decoded they take about six times as much."""
RECHECK_S: Final = 5.0
"""How long the check of a missing object against the manifest stays valid."""
FOOTER_ERROR_S: Final = 1.0


@dataclass(slots=True, eq=False)
class FooterSlot:
    """A footer: loading, loaded, or failed."""

    key: str
    """Key of the segment's object."""
    waiters: Wake = field(default_factory=Wake)
    footer: SegmentFooter | None = None
    encoded_bytes: int = 0
    error: FirnError | None = None
    expires_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Recheck:
    """A check of the manifest because an object was missing. It has an empty context: it wakes requests that have other traces."""

    waiters: Wake = field(default_factory=Wake)
    done: bool = False
    expires_s: float = 0.0
    error: FirnError | None = None
    """Why the manifest could not be read."""


class Footers:
    """Footers by segment id, and rereads of manifests. Belongs to one event loop."""

    def __init__(self, work: StoreWork, cache: ChunkCache, tasks: ReadTasks, *, registry: Registry) -> None:
        self._work, self._cache, self._tasks = work, cache, tasks
        self._slots: OrderedDict[uuid.UUID, FooterSlot] = OrderedDict()
        """By segment id."""
        self.size_bytes = 0
        """Encoded bytes of the footers in memory."""
        self._rechecks: dict[str, _Recheck] = {}
        self._missing = registry.counter("firn_remote_missing_objects_total", "Reads that found an object missing")
        self._corruptions = corruption_counter(registry)

    def of(self, manifest: SegmentManifest, entry: SegmentEntry) -> FooterSlot:
        """The footer of a segment. Requests it if it is not ready. Raises: as ``RemoteReader.read``, ObjectMissing."""
        segment_id = entry.segment_id
        slot = self._slots.get(segment_id)
        if slot is not None and slot.error is not None:
            if slot.expires_s >= loop_time_s():
                raise copy_of(slot.error)
            self._forget(segment_id)
            slot = None
        if slot is None:
            slot = FooterSlot(manifest.object_key(entry))
            self._tasks.spawn(self._load(manifest, entry, slot))
            self._slots[segment_id] = slot
        self._slots.move_to_end(segment_id)
        return slot

    async def loaded(self, manifest: SegmentManifest, entry: SegmentEntry) -> tuple[str, SegmentFooter]:
        """Key of the object, and its footer, once it is ready. Raises: as ``of``."""
        while (footer := (slot := self.of(manifest, entry)).footer) is None:
            await RemoteWait(slot.waiters).woken()
        return slot.key, footer

    async def _load(self, manifest: SegmentManifest, entry: SegmentEntry, slot: FooterSlot) -> None:
        key = slot.key
        try:
            found = await self._work.read_footer(key, (entry.footer_position, entry.size_bytes))
            footer = decode_footer(found.tail, found.object_bytes, key)
            told = (footer.topic_id, footer.partition, footer.segment_id, footer.base_offset, footer.end_offset)
            known = (manifest.topic_id, manifest.partition, entry.segment_id, entry.base_offset, entry.end_offset)
            if told != known:
                raise CorruptionError(f"{key}: the footer is of {told}, the manifest says {known}.")
            slot.footer = footer
            slot.encoded_bytes = len(found.tail)
            self.size_bytes += slot.encoded_bytes
            self._trim()
        except FirnError as error:
            if isinstance(error, CorruptionError):
                self._corruptions.value += 1
            slot.error = without_frames(error)
            slot.expires_s = loop_time_s() + FOOTER_ERROR_S
        slot.waiters.wake()

    def _trim(self) -> None:
        for segment_id in list(self._slots):
            if self.size_bytes <= FOOTER_CACHE_BYTES_MAX:
                return
            if self._slots[segment_id].footer is not None and len(self._slots) > 1:
                self._forget(segment_id)

    def _forget(self, segment_id: uuid.UUID) -> None:
        self.size_bytes -= self._slots.pop(segment_id).encoded_bytes

    # --- missing objects ----------------------------------------------------------------------------------------------

    def recheck(self, manifest: SegmentManifest, entry: SegmentEntry, error: ObjectMissing) -> RemoteWait:
        """Read the manifest again because an object is missing. Raises: StorageUnavailable if it still names the object."""
        key = manifest.object_key(entry)
        now_s = loop_time_s()
        known = self._rechecks.get(key)
        if known is not None and known.done:
            if known.expires_s >= now_s:
                raise StorageUnavailable(f"{key} is missing, although the manifest names it.") from error
            known = None
        if known is None:
            self._forget_old_rechecks()
            self._missing.value += 1
            known = _Recheck()
            self._tasks.spawn(self._refresh(manifest, entry.segment_id, key, known), context=Context())
            self._rechecks[key] = known
        return RemoteWait(known.waiters)

    def look_again(self, manifest: SegmentManifest, at: TopicIdPartition, offset: Offset) -> RemoteWait:
        """Read the manifest again because no segment covers an offset that the local log has not either: it may lack entries (T4).

        Raises: RequestRejected OFFSET_OUT_OF_RANGE below the log start. If the manifest was just read also past the tiered end, and
        CorruptionError if records are missing; the error that has kept it from being read.
        """
        out_of_range = RequestRejected(ErrorCode.OFFSET_OUT_OF_RANGE, f"No remote segment of {at} covers {offset}.")
        if offset < manifest.log_start_offset:
            raise out_of_range  # it never goes back
        key = f"{at.topic_id}/{at.partition}"
        known = self._rechecks.get(key)
        if known is not None and known.done:
            if known.expires_s >= loop_time_s():
                if known.error is not None:
                    raise copy_of(known.error)
                if offset < manifest.tiered_end:
                    raise CorruptionError(f"No segment of {at} covers {offset}, and nothing has expired there.")
                raise out_of_range
            known = None
        if known is None:
            self._forget_old_rechecks()
            known = _Recheck()
            self._tasks.spawn(self._poll(manifest, known), context=Context())
            self._rechecks[key] = known
        return RemoteWait(known.waiters)

    async def _poll(self, manifest: SegmentManifest, check: _Recheck) -> None:
        try:
            await manifest.refresh()
        except FirnError as error:
            check.error = without_frames(error)
            check.expires_s = loop_time_s() + FOOTER_ERROR_S
        else:
            check.expires_s = loop_time_s() + RECHECK_S
        check.done = True
        check.waiters.wake()

    def _forget_old_rechecks(self) -> None:
        now_s = loop_time_s()
        for old in [old for old, check in self._rechecks.items() if check.done and check.expires_s < now_s]:
            del self._rechecks[old]

    async def _refresh(self, manifest: SegmentManifest, segment_id: uuid.UUID, key: str, check: _Recheck) -> None:
        try:
            await manifest.refresh()
        except FirnError:
            # Not known to be gone: the read that is woken meets the missing object again and says so.
            self._missing.value += 1
        self._cache.forget_object(key)
        slot = self._slots.get(segment_id)
        if slot is not None and slot.error is not None:
            self._forget(segment_id)
        check.done = True
        check.expires_s = loop_time_s() + RECHECK_S
        check.waiters.wake()
