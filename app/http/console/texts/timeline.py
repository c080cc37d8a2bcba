"""The drawing of the tiers that hold a partition's history: three lanes of blocks over time or over offsets. Pure.

The lanes are the bucket, the write-ahead log and the local disk. Positions are parts of the width in percent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from app.core.turns import Steps
from app.http.console.texts.formats import instant, many, size
from app.wire.private import PartitionTierStatus, SegmentInfo

BLOCKS_MAX: Final = 240
"""Neighbours are drawn as one block while it is narrower than a block of so many. So a lane has twice as many at most."""
SEGMENTS_A_STEP: Final = 200
GAP: Final = 0.08
"""Percent between two blocks."""
LEAST: Final = 0.25
"""Percent of the width that each block has at least."""
TICKS: Final = 5
DATE: Final = len("2024-05-06")
_LENGTHS: Final = ((4 * 86_400_000, DATE), (600_000, 16), (8_000, 19), (-1, 23))
"""Spans in ms, and how much of a time the ticks of a longer one show: the day, the minute, the second, the millisecond."""

Tier = Literal["bucket", "wal", "local"]
Axis = Literal["time", "offset"]
LANES: Final[tuple[tuple[Tier, str], ...]] = (("bucket", "Bucket"), ("wal", "Write-ahead log"), ("local", "Local disk"))


@dataclass(slots=True)
class Block:
    """Neighbouring segments of one tier."""

    tier: Tier
    x: float
    width: float
    base_offset: int
    end_offset: int
    bytes: int
    segments: int
    begins_ms: int
    ends_ms: int
    growing: bool

    @property
    def title(self) -> str:
        """The words of a block."""
        parts = [f"offsets {self.base_offset:,} to {self.end_offset - 1:,}", size(self.bytes)]
        if self.segments > 1:
            parts.append(many(self.segments, "segment"))
        if self.ends_ms >= 0:
            parts.append(f"{instant(self.begins_ms)[:19]} to {instant(self.ends_ms)[:19]} UTC")
        if self.growing:
            parts.append("still growing")
        return " · ".join(parts)


class Mark(NamedTuple):
    """A line across the lanes, or a tick of the axis."""

    x: float
    text: str


class GroupMark(NamedTuple):
    """A group at its committed offset."""

    x: float
    group_id: str
    offset: int
    lag: int


@dataclass(slots=True)
class Timeline:
    """The drawing, and its words."""

    axis: Axis
    lanes: list[tuple[Tier, str, list[Block]]] = field(default_factory=list)
    ticks: list[Mark] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    groups: list[GroupMark] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)
    """The next steps of retention and compaction, in sentences."""


class Taking(NamedTuple):
    """Settings by which records are taken. Times and bytes are -1 for no limit."""

    retention_ms: int = -1
    local_retention_ms: int = -1
    retention_bytes: int = -1
    dirty_ratio: float = 0.5
    """Compaction begins above this part of dirty bytes."""
    compaction_lag_ms: int = 0
    """Records younger than this stay dirty."""


class _Span(NamedTuple):
    segment: SegmentInfo
    begins_ms: int
    ends_ms: int


def timeline_steps(
    segments: Sequence[SegmentInfo],
    status: PartitionTierStatus,
    *,
    axis: Axis,
    write_ahead: bool,
    now_ms: int,
    taking: Taking,
    committed: Sequence[tuple[str, int]] = (),
) -> Steps[Timeline]:
    """The drawing of a partition. ``write_ahead``: whether its records are durable in a write-ahead log. ``committed``: some groups
    with their offsets."""
    spans = yield from _spans(segments)
    has_times = bool(spans) and spans[-1].ends_ms > spans[0].begins_ms >= 0
    drawn = Timeline("time" if axis == "time" and has_times else "offset")
    if not spans:
        drawn.lanes = [(tier, name, []) for tier, name in LANES if tier != "wal" or write_ahead]
        return drawn
    if drawn.axis == "time":
        first, last = spans[0].begins_ms, max(span.ends_ms for span in spans)
    else:
        first, last = spans[0].segment.base_offset, spans[-1].segment.end_offset
    scale = 100 / (last - first)
    lanes: dict[Tier, list[Block]] = {"bucket": [], "wal": [], "local": []}
    for place, span in enumerate(spans):
        segment = span.segment
        begin, end = (
            (span.begins_ms, span.ends_ms) if drawn.axis == "time" else (segment.base_offset, segment.end_offset)
        )
        x, width = (begin - first) * scale, max(0.0, end - begin) * scale
        tiers: list[Tier] = []
        if segment.tier in ("remote", "both"):
            tiers.append("bucket")
        if segment.tier in ("local", "both"):
            tiers.append("local")
        if segment.tier == "local" and write_ahead:
            tiers.append("wal")
        for tier in tiers:
            stored = segment.stored_bytes if tier == "bucket" and segment.stored_bytes else segment.size_bytes
            drawn.bytes[tier] = drawn.bytes.get(tier, 0) + stored
            _add(lanes[tier], tier, x, width, span, stored)
        if not place % SEGMENTS_A_STEP:
            yield
    for tier, name in LANES:
        if tier != "wal" or write_ahead:
            for block in lanes[tier]:
                block.width = max(LEAST, block.width - GAP)
                block.x = min(block.x, 100 - block.width)
            drawn.lanes.append((tier, name, lanes[tier]))
            yield
    drawn.ticks = _ticks(drawn.axis, first, last)
    _mark(drawn, spans, status, first, scale, now_ms, taking)
    yield
    rolled = [span for span in spans if span.segment.state != "ACTIVE"]
    drawn.next += _retention_next(rolled, sum(span.segment.size_bytes for span in spans), taking, now_ms)
    yield
    if status.cleaned_end_offset >= 0:
        drawn.next.append((yield from _compaction_next(rolled, status, taking, now_ms)))
    for group_id, offset in committed:
        x = (_moment(spans, offset) if drawn.axis == "time" else offset) - first
        lag = max(0, status.high_watermark - offset)
        drawn.groups.append(GroupMark(min(100.0, max(0.0, x * scale)), group_id, offset, lag))
        yield
    return drawn


def _moment(spans: Sequence[_Span], offset: int) -> float:
    """The time of a record at an offset, as if the times of a segment's records were evenly spread."""
    place = bisect_right(spans, offset, key=lambda span: span.segment.base_offset) - 1
    if place < 0:
        return spans[0].begins_ms
    span = spans[place]
    count = span.segment.end_offset - span.segment.base_offset
    part = min(1.0, (offset - span.segment.base_offset) / count)
    return span.begins_ms + part * (span.ends_ms - span.begins_ms)


def _spans(segments: Sequence[SegmentInfo]) -> Steps[list[_Span]]:
    """Each segment that has an offset, with its times. The local log knows no least timestamp: such a segment begins where the one
    before ends."""
    found: list[_Span] = []
    at = -1
    for place, segment in enumerate(segments):
        if segment.end_offset <= segment.base_offset:
            continue
        ends = segment.max_timestamp if segment.max_timestamp >= 0 else at
        begins = segment.min_timestamp if segment.min_timestamp >= 0 else (at if at >= 0 else ends)
        found.append(_Span(segment, min(begins, ends), ends))
        at = max(at, ends)
        if not place % SEGMENTS_A_STEP:
            yield
    return found


def _add(lane: list[Block], tier: Tier, x: float, width: float, span: _Span, stored: int) -> None:
    segment = span.segment
    growing = segment.state == "ACTIVE"
    last = lane[-1] if lane else None
    joins = last is not None and last.end_offset == segment.base_offset and x + width - last.x < 100 / BLOCKS_MAX
    if joins and last is not None:
        last.width = max(last.width, x + width - last.x)
        last.end_offset, last.ends_ms = segment.end_offset, max(last.ends_ms, span.ends_ms)
        last.bytes, last.segments, last.growing = last.bytes + stored, last.segments + 1, growing
        return
    ends = segment.end_offset
    lane.append(Block(tier, x, width, segment.base_offset, ends, stored, 1, span.begins_ms, span.ends_ms, growing))


def _ticks(axis: Axis, first: int, last: int) -> list[Mark]:
    found, day = [], ""
    for place in range(TICKS):
        part = place / (TICKS - 1)
        value = int(first + (last - first) * part)
        if axis == "offset":
            text = f"{value:,}"
        else:
            text = instant(value)[: next(length for longer_ms, length in _LENGTHS if last - first > longer_ms)]
            if text[:DATE] == day and len(text) > DATE:
                text = text[DATE + 1 :]
            else:
                day = text[:DATE]
        found.append(Mark(100 * part, text))
    return found


def _mark(
    drawn: Timeline,
    spans: Sequence[_Span],
    status: PartitionTierStatus,
    first: int,
    scale: float,
    now_ms: int,
    taking: Taking,
) -> None:
    def put(value: float, text: str) -> None:
        x = (value - first) * scale
        if 0 <= x <= 100:
            drawn.marks.append(Mark(x, text))

    if drawn.axis == "offset":
        if status.log_start_offset > first:
            put(status.log_start_offset, "log start")
        if status.last_stable_offset < status.high_watermark:
            put(status.last_stable_offset, "stable offset")
    else:
        if taking.retention_ms > 0:
            put(now_ms - taking.retention_ms, "retention")
        if taking.local_retention_ms > 0:
            put(now_ms - taking.local_retention_ms, "local retention")
    if status.cleaned_end_offset > spans[0].segment.base_offset:
        cleaned = status.cleaned_end_offset
        put(_moment(spans, cleaned) if drawn.axis == "time" else cleaned, "the end of the compacted part")


def _retention_next(rolled: Sequence[_Span], whole_bytes: int, taking: Taking, now_ms: int) -> list[str]:
    """The next deletions by retention. ``whole_bytes``: of the log."""
    found = []
    kept = [span for span in rolled if span.segment.tier == "both"]
    if not rolled and (taking.retention_ms > 0 or taking.retention_bytes >= 0):
        found.append("Retention takes nothing yet: all records are in the segment that is written to.")
    if taking.retention_ms > 0 and rolled:
        found.append(_by_age(rolled[0], taking.retention_ms, now_ms, "Retention deletes"))
    if taking.retention_bytes >= 0 and rolled:
        more = taking.retention_bytes + rolled[0].segment.size_bytes - whole_bytes
        when = (
            f"once {size(more)} more are written" if more > 0 else "at its next look, since the partition is too large"
        )
        found.append(f"Retention by bytes deletes {_offsets(rolled[0], rolled[0])} {when}.")
    if taking.local_retention_ms > 0 and kept:
        found.append(_by_age(kept[0], taking.local_retention_ms, now_ms, "Local retention takes off the disk"))
    return found


def _by_age(span: _Span, after_ms: int, now_ms: int, what: str) -> str:
    """The age of a segment counts from its newest timestamp, or from a write to it if that is later."""
    due_ms = max(span.ends_ms, span.segment.changed_ms) + after_ms
    when = "at its next look" if due_ms <= now_ms else f"at {instant(due_ms)[:19]} UTC"
    return f"{what} {_offsets(span, span)} {when}."


def _compaction_next(rolled: Sequence[_Span], status: PartitionTierStatus, taking: Taking, now_ms: int) -> Steps[str]:
    """The next run of compaction, by the rules of the broker (``app/hot/cleaning/selection.py``)."""
    clean_bytes, dirty_bytes, dirty = 0, 0, list[_Span]()
    for place, span in enumerate(rolled):
        if span.segment.end_offset <= status.cleaned_end_offset:
            clean_bytes += span.segment.size_bytes
        elif span.segment.end_offset > status.last_stable_offset or (
            taking.compaction_lag_ms > 0 and span.ends_ms > now_ms - taking.compaction_lag_ms
        ):
            break
        else:
            dirty.append(span)
            dirty_bytes += span.segment.size_bytes
        if not place % SEGMENTS_A_STEP:
            yield
    if not dirty:
        return "Compaction has nothing to do: no segment that may be compacted has new records."
    ratio = dirty_bytes / max(1, clean_bytes + dirty_bytes)
    told = f"{size(dirty_bytes)} in {_offsets(dirty[0], dirty[-1])} are not compacted, {ratio:.0%} of the bytes"
    due = "It is due." if ratio > taking.dirty_ratio else f"It begins above {taking.dirty_ratio:.0%}."
    return f"Compaction: {told}. {due}"


def _offsets(first: _Span, last: _Span) -> str:
    return f"offsets {first.segment.base_offset:,} to {last.segment.end_offset - 1:,}"
