"""What the leader lets a compaction job do to its manifest, step by step (INV-4)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.errors import ConflictError
from app.metadata.manifest import SegmentEntry, SegmentManifest, SegmentState
from app.records.builder import build_batch
from app.tiering import replacement
from app.units import BrokerId, Offset, SegmentId, TimestampMs
from tests.support.buckets import BucketBuilder


async def three_segments(path: Path) -> SegmentManifest:
    bucket = await BucketBuilder.open(path)
    topic_id = await bucket.create_topic("t")
    for first in (0, 10, 20):
        records: list[tuple[int, bytes, bytes, Sequence[tuple[str, bytes]]]] = [(1, b"k", b"v", ())] * 10
        await bucket.add_segment(topic_id, 0, [build_batch(records, base_offset=Offset(first))])
    return await bucket.manifest(topic_id, 0)


def output_of(number: int, start: int, end: int) -> SegmentEntry:
    segment_id = SegmentId(uuid.UUID(int=number))
    started = SegmentEntry.started(segment_id, Offset(start), Offset(end), broker_id=BrokerId(-1))
    return started.replace(changed_ms=TimestampMs(5), size_bytes=50, footer_position=20, footer_bytes=30, chunk_count=1)


def ids_of(manifest: SegmentManifest) -> list[uuid.UUID]:
    return [entry.segment_id for entry in manifest.finished]


async def begin(manifest: SegmentManifest, output: SegmentEntry, inputs: Sequence[uuid.UUID]) -> None:
    await replacement.begin(manifest, output, inputs, local_start_offset=Offset(30))


async def test_the_output_takes_the_place_of_its_inputs_once(tmp_path: Path) -> None:
    manifest = await three_segments(tmp_path)
    first, second, third = ids_of(manifest)
    output = output_of(1, 0, 20)
    for _ in range(2):
        await begin(manifest, output, [first, second])
    for _ in range(2):
        await replacement.finish(manifest, output, [first, second])
    assert ids_of(manifest) == [output.segment_id, third]
    assert {entry.segment_id for entry in manifest.state.pending_deletes()} == {first, second}


async def test_an_input_that_expires_before_the_swap_keeps_the_output_out(tmp_path: Path) -> None:
    manifest = await three_segments(tmp_path)
    first, second, third = ids_of(manifest)
    output = output_of(1, 0, 20)
    await begin(manifest, output, [first, second])
    await manifest.delete_started([first], log_start_offset=10)
    with pytest.raises(ConflictError, match="was deleted or replaced"):
        await replacement.finish(manifest, output, [first, second])
    assert ids_of(manifest) == [second, third]
    await replacement.give_up(manifest, output)
    assert {entry.segment_id for entry in manifest.state.pending_deletes()} == {first, output.segment_id}
    with pytest.raises(ConflictError, match="was given up"):
        await replacement.finish(manifest, output, [first, second])
    assert ids_of(manifest) == [second, third]


async def test_what_a_killed_job_began_is_given_up_by_the_next(tmp_path: Path) -> None:
    manifest = await three_segments(tmp_path)
    first, second, third = ids_of(manifest)
    killed, other, next_one = output_of(1, 0, 20), output_of(2, 20, 30), output_of(3, 10, 20)
    await begin(manifest, killed, [first, second])
    await begin(manifest, other, [third])
    await begin(manifest, next_one, [second])
    states = {output.segment_id: manifest.state.get(output.segment_id) for output in (killed, other, next_one)}
    assert [entry.state for entry in states.values() if entry is not None] == [
        SegmentState.DELETE_STARTED, SegmentState.COPY_STARTED, SegmentState.COPY_STARTED,
    ]  # fmt: skip
    with pytest.raises(ConflictError, match="was given up"):
        await replacement.finish(manifest, killed, [first, second])


async def test_what_is_local_still_or_is_no_run_of_neighbours_is_not_replaced(tmp_path: Path) -> None:
    manifest = await three_segments(tmp_path)
    first, second, third = ids_of(manifest)
    with pytest.raises(ConflictError, match="is local from 19 on"):
        await replacement.begin(manifest, output_of(1, 0, 20), [first, second], local_start_offset=Offset(19))
    for inputs, sentence in (
        ([first, third], "starts at 20"),
        ([first], "the inputs end at 10"),
        ([], "the inputs end"),
    ):
        with pytest.raises(ConflictError, match=sentence):
            await begin(manifest, output_of(1, 0, 20), inputs)
    assert ids_of(manifest) == [first, second, third]
    assert not manifest.state.pending_copies()
