"""How what is to be read becomes splits: of one size, in the number that keeps cores busy to the end."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from app.core.limits import MIB
from app.core.units import (
    BrokerId,
    LeaderEpoch,
    LogSequence,
    Offset,
    PartitionIndex,
    SegmentId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from app.metadata.manifest.manifest_state import ManifestState, SegmentEntry, SegmentState, encode_change
from pyspark_firn.planning import PartitionRange, plan_splits, split_bytes_for, stored_bytes
from pyspark_firn.splits import StoredSplit

RECORD_BYTES = 1024


def manifest_of(chunk_counts: Sequence[int], chunk_bytes: int = 4 * MIB) -> ManifestState:
    """Segments of so many chunks."""
    entries = []
    base = 0
    for number, chunks in enumerate(chunk_counts):
        records = chunks * chunk_bytes // RECORD_BYTES
        segment_id = SegmentId(uuid.UUID(int=number + 1))
        started = SegmentEntry.started(segment_id, Offset(base), Offset(base + records), broker_id=BrokerId(1))
        entries.append(
            started.replace(
                state=SegmentState.COPY_FINISHED,
                leader_epochs=((LeaderEpoch(0), Offset(0)),),
                max_timestamp=TimestampMs(1),
                record_count=records,
                raw_bytes=chunks * chunk_bytes,
                size_bytes=chunks * chunk_bytes + 100,
                footer_position=chunks * chunk_bytes,
                footer_bytes=100,
                chunk_count=chunks,
            )
        )
        base += records
    state = ManifestState()
    state.load([(key, value) for key, value in map(encode_change, entries) if value is not None])
    state.loaded(LogSequence(1))
    return state


def everything(state: ManifestState) -> PartitionRange:
    partition = TopicIdPartition(TopicId(uuid.UUID(int=7)), PartitionIndex(0))
    end = int(state.tiered_end)
    return PartitionRange(topic="t", partition=partition, start=0, end=end, tiered_end=end)


def chunks_of(splits: Sequence[StoredSplit]) -> list[tuple[str, int]]:
    """(object, chunk) of all splits, in order."""
    return [
        (piece.object_key, chunk)
        for split in splits
        for piece in split.pieces
        for chunk in range(piece.chunk_start, piece.chunk_end)
    ]


@pytest.mark.parametrize("split_mib", [1, 3, 4, 5, 64, 100, 4096])
def test_every_chunk_is_in_one_split_and_splits_are_of_one_size(split_mib: int) -> None:
    state = manifest_of([32, 1, 7, 32, 32])

    splits = plan_splits(everything(state), state, {}, split_mib * MIB)

    wanted = [
        (entry.object_key(*everything(state).partition), chunk)
        for entry in state.finished
        for chunk in range(entry.chunk_count)
    ]
    assert chunks_of(splits) == wanted
    sizes = [sum(piece.chunk_end - piece.chunk_start for piece in split.pieces) for split in splits]
    assert max(sizes) - min(sizes) <= 1, sizes
    assert len(splits) == min(len(wanted), -(-len(wanted) * 4 // split_mib))


def test_a_chunk_larger_than_a_split_is_a_split() -> None:
    state = manifest_of([5], chunk_bytes=4 * MIB)

    assert len(plan_splits(everything(state), state, {}, 1 * MIB)) == 5


@pytest.mark.parametrize(
    ("total_mib", "splits"), [(1, 1), (32, 1), (64, 2), (256, 8), (1200, 8), (2048, 8), (2049, 16), (1 << 20, 4096)]
)
def test_two_four_and_eight_cores_end_together(total_mib: int, splits: int) -> None:
    split_bytes = split_bytes_for(total_mib * MIB)

    assert -(-total_mib * MIB // split_bytes) == splits
    assert split_bytes <= 256 * MIB


def test_the_bytes_of_a_range_are_its_share_of_the_segments_it_cuts() -> None:
    state = manifest_of([8, 8, 8])
    whole = everything(state)
    segment = whole.end // 3
    cut = PartitionRange(
        topic="t", partition=whole.partition, start=segment // 2, end=2 * segment + segment // 4, tiered_end=whole.end
    )

    assert stored_bytes(whole, state) == 24 * 4 * MIB
    assert stored_bytes(cut, state) == (4 + 8 + 2) * 4 * MIB
    assert stored_bytes(PartitionRange(topic="t", partition=whole.partition, start=5, end=5, tiered_end=9), state) == 0
