"""From manifests and options to splits. Pure: what has to be read for it is asked for by ``snapshot.py``.

A split is a run of whole chunks of about ``split_bytes``, of one segment or of several small ones, never of two partitions. So
a topic of one partition keeps every core busy, and a segment that is read only in part costs only the chunks in question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.metadata.manifest_state import ManifestState, SegmentEntry
from app.tiering.segment_format import SegmentFooter
from app.units import Offset, TopicIdPartition
from pyspark_firn.splits import Piece, StoredSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """What is to be read of one partition: offsets [start, end)."""

    topic: str
    partition: TopicIdPartition
    start: int
    end: int
    tiered_end: int
    """Where the store ends: what lies above it comes from the brokers."""

    @property
    def stored_end(self) -> int:
        return max(self.start, min(self.end, self.tiered_end))


def segments_between(state: ManifestState, start: int, end: int) -> Sequence[SegmentEntry]:
    """The readable segments with offsets in [start, end), in order."""
    if start >= end:
        return ()
    first = state.index_at(start)
    last = first
    finished = state.finished
    if first < len(finished):
        last = state.index_at(end)
        if last < len(finished) and finished[last].base_offset < end:
            last += 1
    return finished[first:last]


def boundary_segments(state: ManifestState, start: int, end: int) -> list[SegmentEntry]:
    """The segments that [start, end) covers only in part, whose chunk tables say where the range starts and ends."""
    wanted = segments_between(state, start, end)
    ends = [wanted[0], wanted[-1]] if len(wanted) > 1 else list(wanted)
    return [entry for entry in ends if entry.base_offset < start or entry.end_offset > end]


def plan_splits(
    wanted: PartitionRange,
    state: ManifestState,
    footers: Mapping[bytes, SegmentFooter],
    split_bytes: int,
    *,
    timestamp_min: int | None = None,
) -> list[StoredSplit]:
    """The stored part of a range as splits.

    ``footers``, by segment id, are those of ``boundary_segments``. With ``timestamp_min``, segments and known chunks whose
    records are all older (milliseconds) are left out.
    """
    splits: list[StoredSplit] = []
    pieces: list[Piece] = []
    collected = 0

    def close() -> None:
        nonlocal pieces, collected
        if pieces:
            splits.append(
                StoredSplit(
                    topic=wanted.topic,
                    topic_id=wanted.partition.topic_id.bytes,
                    partition=wanted.partition.partition,
                    offset_start=wanted.start,
                    offset_end=wanted.stored_end,
                    pieces=tuple(pieces),
                    raw_bytes=collected,
                )
            )
        pieces, collected = [], 0

    for entry in segments_between(state, wanted.start, wanted.stored_end):
        if timestamp_min is not None and entry.max_timestamp < timestamp_min:
            continue
        key = entry.object_key(*wanted.partition)
        footer = footers.get(entry.segment_id.bytes)
        chunk_bytes = max(1, entry.raw_bytes // entry.chunk_count)
        for run_start, run_end in _chunk_runs(entry, footer, wanted, timestamp_min):
            at = run_start
            while at < run_end:
                room = max(1, (split_bytes - collected) // chunk_bytes)
                if collected and collected + chunk_bytes > split_bytes:
                    close()
                    continue
                taken = min(run_end - at, room)
                pieces.append(_piece(key, entry, footer, at, at + taken))
                collected += taken * chunk_bytes
                at += taken
    close()
    return splits


def _piece(key: str, entry: SegmentEntry, footer: SegmentFooter | None, chunk_start: int, chunk_end: int) -> Piece:
    base_offset, end_offset = entry.base_offset, entry.end_offset
    if footer is not None:
        base_offset, end_offset = footer.chunks[chunk_start].base_offset, footer.chunk_end_offset(chunk_end - 1)
    return Piece(
        object_key=key,
        object_bytes=entry.size_bytes,
        footer_position=entry.footer_position,
        base_offset=base_offset,
        end_offset=end_offset,
        chunk_count=entry.chunk_count,
        chunk_start=chunk_start,
        chunk_end=chunk_end,
        knows_offsets=footer is not None or chunk_end - chunk_start == entry.chunk_count,
    )


def _chunk_runs(
    entry: SegmentEntry, footer: SegmentFooter | None, wanted: PartitionRange, timestamp_min: int | None
) -> Iterator[tuple[int, int]]:
    """Runs [first, end) of the chunks of a segment that may hold what is wanted."""
    if footer is None:
        yield 0, entry.chunk_count
        return
    first = footer.chunk_index_of(Offset(max(wanted.start, entry.base_offset)))
    last = footer.chunk_index_of(Offset(min(wanted.stored_end, entry.end_offset) - 1))
    start = first
    for index in range(first, last + 1):
        if timestamp_min is not None and footer.chunks[index].max_timestamp < timestamp_min:
            if start < index:
                yield start, index
            start = index + 1
    if start <= last:
        yield start, last + 1
