"""Read-ahead for sequential readers, who request the offset at which their last response ended.

For each of them a window of bytes is read ahead, across chunks and segments. A window begins with one chunk, and doubles
whenever its reader had to wait. So it grows to bandwidth × latency and no further. All windows together stay within
``read_ahead_bytes``. If they fill this budget, a waiting reader takes bytes from the largest windows until its own window has an
equal share. A reader near the tiered end returns the bytes that it does not need. Footers of the next segments are requested
before a window reaches them, so no window waits for a footer.

Tests: ``tests/tiering/test_reader.py``.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from app.core.errors import FirnError
from app.core.loop_time import loop_time_s
from app.core.metrics import Registry
from app.core.units import Offset, TopicIdPartition
from app.core.wake import Wake
from app.metadata.manifest.manifest import SegmentEntry, SegmentManifest
from app.tiering.read.chunk_cache import READ_BYTES_MAX, ChunkCache
from app.tiering.read.footers import Footers, FooterSlot

STREAMS_MAX: Final = 4096
STREAM_IDLE_S: Final = 30.0
WINDOW_IDLE_S: Final = 2.0
"""A stream that was not read for this time gives its window to a stream that needs it."""


@dataclass(slots=True, eq=False)
class ReadStream:
    """One sequential reader."""

    place: tuple[TopicIdPartition, Offset]
    """The offset of the reader's next request."""
    used_s: float
    asked_end: Offset
    reads: int = 0
    """Number of responses so far."""
    stalled: bool = False
    """Whether the reader waits now. Its window was doubled for this wait."""
    window_bytes: int = 0
    window_bytes_min: int = 0
    """The chunk being read and the next one. A smaller window would read nothing ahead."""
    ahead_bytes: int = 0
    ahead: deque[tuple[Offset, int]] = field(default_factory=deque)
    """(end offset, raw bytes) of the chunks that were requested ahead of the reader."""
    footers_asked: tuple[uuid.UUID, int] | None = None
    """Segment at the end of the window, and bytes of the window, for which footers were requested."""
    awaits_footer: bool = False
    is_full: bool = False
    """Whether the window is too full for the next chunk."""


class ReadAhead:
    """The sequential readers and their windows. Belongs to one event loop."""

    def __init__(
        self,
        cache: ChunkCache,
        footers: Footers,
        manifest_of: Callable[[TopicIdPartition], SegmentManifest | None],
        *,
        registry: Registry,
        read_ahead_bytes: int,
    ) -> None:
        self._cache, self._footers, self._manifest_of = cache, footers, manifest_of
        # A chunk that is read ahead is to be there still when its reader comes to it.
        self.budget_bytes = min(read_ahead_bytes, cache.capacity_bytes // 2)
        self.streams: OrderedDict[tuple[TopicIdPartition, Offset], ReadStream] = OrderedDict()
        """By partition and next offset, the one that was read longest ago first."""
        self.window_bytes = 0
        """Window bytes of all streams together."""
        self._windows = 0
        """Streams with a window."""
        self._nothing_above_bytes: int | None = None
        """The share for which no window could be shrunk the last time, if no window has changed since. Readers without a window try
        again with each read, and must not look at the windows of all others each time."""
        self._stalls = registry.counter("firn_remote_stalls_total", "Sequential reads that had to wait for the store")
        registry.gauge(
            "firn_read_ahead_window_bytes", "Sum of all read-ahead windows", lambda: [((), self.window_bytes)]
        )

    def stream_at(self, at: TopicIdPartition, offset: Offset) -> ReadStream:
        stream = self.streams.get((at, offset))
        now_s = loop_time_s()
        if stream is None:
            stream = ReadStream((at, offset), now_s, offset)
            self.streams[at, offset] = stream
            while len(self.streams) > STREAMS_MAX or next(iter(self.streams.values())).used_s < now_s - STREAM_IDLE_S:
                _, idle = self.streams.popitem(last=False)
                self._set_window(idle, 0)
        else:
            stream.used_s = now_s
            self.streams.move_to_end((at, offset))
        return stream

    def note_stall(self, stream: ReadStream) -> None:
        """A sequential reader waits. If its window was full, it was too small, and is doubled once for this wait."""
        if stream.reads and not stream.stalled:
            stream.stalled = True
            self._stalls.value += 1
            if stream.is_full:
                self.grow(stream, stream.window_bytes)

    def note_served(self, stream: ReadStream, at: TopicIdPartition, end: Offset) -> None:
        if stream.place != (at, end):
            del self.streams[stream.place]
            other = self.streams.pop((at, end), None)
            if other is not None:
                self._set_window(other, 0)
            self.streams[at, end] = stream
            stream.place = at, end
        stream.reads += 1
        stream.stalled = False
        while stream.ahead and stream.ahead[0][0] <= end:
            stream.ahead_bytes -= stream.ahead.popleft()[1]

    def grow(self, stream: ReadStream, by_bytes: int) -> None:
        while self.window_bytes + by_bytes > self.budget_bytes:
            oldest = next(iter(self.streams))
            idle = self.streams[oldest]
            if idle is stream or idle.used_s > loop_time_s() - WINDOW_IDLE_S:
                break
            # Readers leave without a word, and one that comes back begins again: it does not starve the others meanwhile.
            del self.streams[oldest]
            self._set_window(idle, 0)
        # A window of more than may be under way would not keep its reader from waiting either.
        wanted_bytes = max(0, min(by_bytes, READ_BYTES_MAX - stream.window_bytes))
        free_bytes = self.budget_bytes - self.window_bytes
        if wanted_bytes > free_bytes:
            free_bytes += self._take_from_larger(stream, wanted_bytes - free_bytes)
        self._set_window(stream, stream.window_bytes + min(wanted_bytes, free_bytes))

    def _take_from_larger(self, stream: ReadStream, wanted_bytes: int) -> int:
        """Shrink windows with more than an equal share, the largest first, for a window with less. Returns: freed bytes.

        Chunks that a shrunk window has read ahead stay. Its next chunk is requested when enough of them were served.
        """
        share_bytes = self.budget_bytes // (self._windows + (0 if stream.window_bytes else 1))
        wanted_bytes = left_bytes = max(0, min(wanted_bytes, share_bytes - stream.window_bytes))
        if not wanted_bytes or (self._nothing_above_bytes is not None and self._nothing_above_bytes <= share_bytes):
            return 0
        holders = [one for one in self.streams.values() if one.window_bytes and one is not stream]
        for holder in sorted(holders, key=lambda one: one.window_bytes, reverse=True):
            spared_bytes = holder.window_bytes - max(share_bytes, holder.window_bytes_min)
            if left_bytes <= 0:
                break
            if spared_bytes <= 0:
                continue  # its chunks are larger than those of others
            taken_bytes = min(left_bytes, spared_bytes)
            self._set_window(holder, holder.window_bytes - taken_bytes)
            left_bytes -= taken_bytes
        if left_bytes == wanted_bytes:
            self._nothing_above_bytes = share_bytes
        return wanted_bytes - left_bytes

    def _set_window(self, stream: ReadStream, window_bytes: int) -> None:
        if window_bytes == stream.window_bytes:
            return
        self.window_bytes += window_bytes - stream.window_bytes
        self._windows += (window_bytes > 0) - (stream.window_bytes > 0)
        self._nothing_above_bytes = None
        stream.window_bytes = window_bytes

    def extend(self, stream: ReadStream, manifest: SegmentManifest, offset: Offset) -> None:
        """Request chunks ahead until the window is full. ``offset`` is the reader's position."""
        if stream.reads < 2 and not stream.stalled:
            return  # it may be after a single record
        at = max(stream.asked_end, offset)
        for entry, slot in self._segments_from(manifest, at):
            self._ask_footers(stream, manifest, entry)
            footer = slot.footer
            if footer is None:
                self._extend_after(stream, slot.waiters)
                return
            for index in range(footer.chunk_index_of(max(at, entry.base_offset)), len(footer.chunks)):
                chunk = footer.chunks[index]
                if stream.window_bytes_min > 2 * chunk.raw_bytes:
                    self._nothing_above_bytes = None  # others may take more of this window now
                stream.window_bytes_min = 2 * chunk.raw_bytes
                if stream.window_bytes < stream.window_bytes_min:
                    self.grow(stream, stream.window_bytes_min - stream.window_bytes)
                stream.is_full = stream.ahead_bytes + chunk.raw_bytes > stream.window_bytes
                if stream.is_full:
                    return
                if not self._cache.ask_ahead(slot.key, chunk):
                    return
                end = footer.chunk_end_offset(index)
                stream.ahead.append((end, chunk.raw_bytes))
                stream.ahead_bytes += chunk.raw_bytes
                stream.asked_end = end
        # No chunk is left to ask for: other streams may need the part of the window beyond the chunks on their way.
        self._set_window(stream, min(stream.window_bytes, stream.ahead_bytes))

    def _ask_footers(self, stream: ReadStream, manifest: SegmentManifest, entry: SegmentEntry) -> None:
        """Load the footers of the segments after ``entry`` that the window will reach."""
        asked = entry.segment_id, stream.window_bytes
        if stream.footers_asked == asked:
            return
        stream.footers_asked = asked
        left = stream.window_bytes
        for following, _ in self._segments_from(manifest, entry.end_offset):
            left -= following.size_bytes
            if left <= 0:
                return

    def _extend_after(self, stream: ReadStream, footer: Wake) -> None:
        """Extend the window when the footer is loaded, even if the reader has not come back yet."""
        if stream.awaits_footer:
            return
        stream.awaits_footer = True

        def extend() -> None:
            stream.awaits_footer = False
            self.extend_from_place(stream)

        footer.add(extend)

    def extend_from_place(self, stream: ReadStream) -> None:
        """Call ``extend`` if the reader and its partition still exist."""
        at, offset = stream.place
        manifest = self._manifest_of(at)
        if manifest is not None and self.streams.get(stream.place) is stream:
            self.extend(stream, manifest, offset)

    def _segments_from(self, manifest: SegmentManifest, offset: Offset) -> Iterator[tuple[SegmentEntry, FooterSlot]]:
        entry = manifest.find(offset)
        while entry is not None:
            try:
                slot = self._footers.of(manifest, entry)
            except FirnError:
                return  # the reader will meet the error when it gets there
            yield entry, slot
            entry = manifest.find(entry.end_offset)
