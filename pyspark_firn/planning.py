"""From manifests and options to splits. Pure: ``snapshot.py`` does the reads that it needs.

A split is a run of whole chunks of about ``split_bytes``, of one segment or of several, never of two partitions; the splits of a
partition are of one size. So a topic of one partition keeps every core busy until the end, and a segment that is read only in part
costs only the chunks in question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.core.limits import MIB
from app.core.units import Offset, TopicIdPartition
from app.metadata.manifest.manifest_state import ManifestState, SegmentEntry
from app.tiering.store.segment_format import SegmentFooter
from pyspark_firn.splits import Piece, StoredSplit

SPLIT_BYTES_FEWEST: Final = 32 * MIB
SPLIT_BYTES_MOST: Final = 256 * MIB
"""A task costs Spark some 25 ms of CPU, which is a tenth of the cost of 64 MiB of 1 KB records (docs/adr/0012)."""
SPLITS_MULTIPLE: Final = 8
"""Two, four and eight cores end together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """The offsets to read of one partition: [start, end)."""

    topic: str
    partition: TopicIdPartition
    start: int
    end: int
    tiered_end: int
    """The end of the store's records: later ones come from the brokers."""

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


def stored_bytes(wanted: PartitionRange, state: ManifestState) -> int:
    """About how many bytes of record batches the stored part of a range has."""
    start, end = wanted.start, wanted.stored_end
    total = 0
    for entry in segments_between(state, start, end):
        covered = min(entry.end_offset, end) - max(entry.base_offset, start)
        total += entry.raw_bytes * covered // max(1, entry.end_offset - entry.base_offset)
    return total


def split_bytes_for(total_bytes: int) -> int:
    """The default size of splits for a read of so many bytes."""
    splits = SPLITS_MULTIPLE * max(1, math.ceil(total_bytes / (SPLITS_MULTIPLE * SPLIT_BYTES_MOST)))
    return max(SPLIT_BYTES_FEWEST, math.ceil(total_bytes / splits))


def plan_splits(
    wanted: PartitionRange,
    state: ManifestState,
    footers: Mapping[bytes, SegmentFooter],
    split_bytes: int,
) -> list[StoredSplit]:
    """The stored part of a range as splits. ``footers``, by segment id, are those of ``boundary_segments``."""
    runs = _wanted_runs(wanted, state, footers)
    total = sum(run.chunk_bytes * (run.end - run.start) for run in runs)
    count = math.ceil(total / split_bytes)
    splits: list[StoredSplit] = []
    pieces: list[Piece] = []
    planned = collected = 0

    def close() -> None:
        nonlocal pieces, collected
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

    for run in runs:
        at = run.start
        while at < run.end:
            share_end = total * (len(splits) + 1) // count
            room = (share_end - planned) // run.chunk_bytes
            if room <= 0 and collected:
                close()
                continue
            taken = min(run.end - at, max(1, room))
            pieces.append(_piece(run, at, at + taken))
            collected += taken * run.chunk_bytes
            planned += taken * run.chunk_bytes
            at += taken
    if pieces:
        close()
    return splits


class _Run(NamedTuple):
    """Chunks [start, end) of a segment, which are of one size as far as its manifest tells."""

    key: str
    entry: SegmentEntry
    footer: SegmentFooter | None
    start: int
    end: int
    chunk_bytes: int


def _wanted_runs(
    wanted: PartitionRange,
    state: ManifestState,
    footers: Mapping[bytes, SegmentFooter],
) -> list[_Run]:
    runs: list[_Run] = []
    for entry in segments_between(state, wanted.start, wanted.stored_end):
        key = entry.object_key(*wanted.partition)
        footer = footers.get(entry.segment_id.bytes)
        chunk_bytes = max(1, entry.raw_bytes // entry.chunk_count)
        start, end = _chunk_run(entry, footer, wanted)
        runs.append(_Run(key, entry, footer, start, end, chunk_bytes))
    return runs


def _piece(run: _Run, chunk_start: int, chunk_end: int) -> Piece:
    entry, footer = run.entry, run.footer
    base_offset, end_offset = entry.base_offset, entry.end_offset
    if footer is not None:
        base_offset, end_offset = footer.chunks[chunk_start].base_offset, footer.chunk_end_offset(chunk_end - 1)
    return Piece(
        object_key=run.key,
        object_bytes=entry.size_bytes,
        footer_position=entry.footer_position,
        base_offset=base_offset,
        end_offset=end_offset,
        chunk_count=entry.chunk_count,
        chunk_start=chunk_start,
        chunk_end=chunk_end,
        knows_offsets=footer is not None or chunk_end - chunk_start == entry.chunk_count,
    )


def _chunk_run(entry: SegmentEntry, footer: SegmentFooter | None, wanted: PartitionRange) -> tuple[int, int]:
    """The chunks [first, end) of a segment that may hold wanted records."""
    if footer is None:
        return 0, entry.chunk_count
    first = footer.chunk_index_of(Offset(max(wanted.start, entry.base_offset)))
    last = footer.chunk_index_of(Offset(min(wanted.stored_end, entry.end_offset) - 1))
    return first, last + 1
