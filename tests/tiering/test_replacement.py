"""What the leader lets a compaction job do to its manifest, step by step (INV-4)."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from app.core.errors import ConflictError
from app.core.units import BrokerId, Offset, SegmentId, TimestampMs
from app.machine.files import PosixFileSystem
from app.metadata.log import layout
from app.metadata.manifest.manifest import SegmentEntry, SegmentManifest, SegmentState
from app.metadata.manifest.manifest_state import Change, ManifestState
from app.objectstore.directory import DirectPool
from app.records.builder import build_batch
from app.tiering.store.store_work import InlineStoreWork, UploadJob
from app.tiering.upload import replacement
from app.tiering.upload.replacement import Replacement
from tests.support.buckets import CREATED_MS, BucketBuilder


class Leader(NamedTuple):
    """A partition of three segments of ten records, and what its leader reads footers with."""

    bucket: BucketBuilder
    manifest: SegmentManifest
    work: InlineStoreWork
    scratch: Path

    def ids(self) -> list[uuid.UUID]:
        return [entry.segment_id for entry in self.manifest.finished]

    def key(self, wanted: Replacement) -> str:
        return layout.segment_key(
            self.manifest.topic_id, self.manifest.partition, wanted.base_offset, wanted.segment_id
        )

    async def begin(self, wanted: Replacement) -> None:
        await replacement.begin(self.manifest, wanted, local_start_offset=Offset(30))

    async def finish(self, wanted: Replacement) -> None:
        await replacement.finish(self.manifest, wanted, self.work)

    async def upload(
        self, wanted: Replacement, *, records: int | None = None, epoch: int = 0, **otherwise: int
    ) -> None:
        """Upload what a job would; ``otherwise`` are fields of the footer that are not what was announced."""
        told = wanted._asdict() | {"topic_id": self.manifest.topic_id.int, "partition": 0} | otherwise
        start, end = told["base_offset"], told["end_offset"]
        count = end - start if records is None else records
        data = build_batch(
            [(1, b"k", b"v", ())] * count, base_offset=Offset(start), last_offset_delta=end - start - 1, leader_epoch=0
        )
        (self.scratch / "output").write_bytes(data)
        await self.work.upload_segment(
            UploadJob(
                key=self.key(wanted),
                segment_id=wanted.segment_id.bytes,
                topic_id=uuid.UUID(int=told["topic_id"]).bytes,
                partition=told["partition"],
                path=str(self.scratch / "output"),
                log_bytes=len(data),
                base_offset=start,
                end_offset=end,
                leader_epochs=[(epoch, 0)],
                aborted=[],
                producer_snapshot=b"",
                compression="none",
                chunk_bytes=1 << 20,
                created_ms=CREATED_MS,
            )
        )


async def three_segments(path: Path) -> Leader:
    bucket = await BucketBuilder.open(path / "bucket")
    topic_id = await bucket.create_topic("t")
    for first in (0, 10, 20):
        records: list[tuple[int, bytes, bytes, Sequence[tuple[str, bytes]]]] = [(1, b"k", b"v", ())] * 10
        await bucket.add_segment(topic_id, 0, [build_batch(records, base_offset=Offset(first))])
    work = InlineStoreWork(bucket.store, PosixFileSystem(), DirectPool(), random.Random(1))
    return Leader(bucket, await bucket.manifest(topic_id, 0), work, path)


def output_of(number: int, start: int, end: int, inputs: Sequence[uuid.UUID]) -> Replacement:
    return Replacement(SegmentId(uuid.UUID(int=number)), Offset(start), Offset(end), tuple(inputs))


async def test_the_output_takes_the_place_of_its_inputs_once(tmp_path: Path) -> None:
    leader = await three_segments(tmp_path)
    first, second, third = leader.ids()
    output = output_of(1, 0, 20, [first, second])
    for _ in range(2):
        await leader.begin(output)
    await leader.upload(output)
    for _ in range(2):
        await leader.finish(output)
    assert leader.ids() == [output.segment_id, third]
    assert {entry.segment_id for entry in leader.manifest.state.pending_deletes()} == {first, second}


async def test_the_outputs_record_is_made_of_its_footer_and_of_the_leaders_own_knowledge(tmp_path: Path) -> None:
    leader = await three_segments(tmp_path)
    output = output_of(1, 0, 20, leader.ids()[:2])
    await leader.begin(output)
    await leader.upload(output, records=15)
    await leader.finish(output)
    entry = leader.manifest.finished[0]
    [info] = [one for one in await leader.bucket.store.list_objects("data/") if one.key == leader.key(output)]
    assert (entry.record_count, entry.size_bytes, entry.chunk_count) == (15, info.size_bytes, 1)
    assert entry.footer_position + entry.footer_bytes == info.size_bytes
    assert entry.leader_epochs == ((0, 0),)
    assert (entry.stored_key, entry.changed_ms) == ("", CREATED_MS)
    assert leader.manifest.object_key(entry) == leader.key(output)


async def test_nothing_is_replaced_by_what_is_not_in_the_store(tmp_path: Path) -> None:
    leader = await three_segments(tmp_path)
    before = leader.ids()
    output = output_of(1, 0, 20, before[:2])
    await leader.begin(output)
    with pytest.raises(ConflictError, match=r"is not in the store: upload the segment"):
        await leader.finish(output)
    assert leader.ids() == before
    await leader.upload(output)
    await leader.finish(output)
    assert leader.ids() == [output.segment_id, before[2]]


@pytest.mark.parametrize(
    ("otherwise", "sentence"),
    [
        ({"topic_id": 7}, "holds another segment"),
        ({"partition": 1}, "holds another segment"),
        ({"end_offset": 19}, "holds another segment"),
        ({"epoch": 7}, "ends in leader epoch 7"),
        ({"records": 21}, "has 21 records, more than the replaced segments"),
    ],
)
async def test_an_object_that_is_not_the_replacement_replaces_nothing(
    tmp_path: Path, otherwise: dict[str, int], sentence: str
) -> None:
    leader = await three_segments(tmp_path)
    before = leader.ids()
    output = output_of(1, 0, 20, before[:2])
    await leader.begin(output)
    await leader.upload(output, **otherwise)
    with pytest.raises(ConflictError, match=sentence):
        await leader.finish(output)
    assert leader.ids() == before


async def test_another_segment_or_a_damaged_one_under_the_key_replaces_nothing(tmp_path: Path) -> None:
    leader = await three_segments(tmp_path)
    before = leader.ids()
    output = output_of(1, 0, 20, before[:2])
    await leader.begin(output)
    await leader.upload(output)
    path = tmp_path / "bucket" / leader.key(output)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    with pytest.raises(ConflictError, match=r"cannot be used: .* wrong CRC of the footer"):
        await leader.finish(output)
    path.write_bytes((tmp_path / "bucket" / leader.manifest.object_key(leader.manifest.finished[0])).read_bytes())
    with pytest.raises(ConflictError, match="holds another segment"):
        await leader.finish(output)
    assert leader.ids() == before


async def test_a_copy_of_the_leaders_own_is_given_up_by_nobody_else(tmp_path: Path) -> None:
    leader = await three_segments(tmp_path)
    own = SegmentEntry.started(SegmentId(uuid.UUID(int=4)), Offset(30), Offset(40), broker_id=BrokerId(1))
    await leader.manifest.copy_started(own)
    with pytest.raises(ConflictError, match="a copy of the leader"):
        await replacement.give_up(leader.manifest, own.segment_id)
    assert [entry.segment_id for entry in leader.manifest.state.pending_copies()] == [own.segment_id]


async def test_the_output_is_as_old_as_the_newest_of_its_inputs(tmp_path: Path) -> None:
    leader = await three_segments(tmp_path)
    first, second, _ = leader.ids()
    newest_ms = TimestampMs(CREATED_MS - 1_000)

    def plan(state: ManifestState) -> list[Change]:
        found = [state.get(first), state.get(second)]
        assert all(entry is not None and entry.arrived_ms == -1 for entry in found)
        times = (newest_ms - 1, newest_ms)
        return [entry.replace(arrived_ms=at) for entry, at in zip(found, times, strict=True) if entry is not None]

    await leader.manifest.change(plan)
    output = output_of(1, 0, 20, [first, second])
    await leader.begin(output)
    await leader.upload(output)
    await leader.finish(output)
    merged, third = leader.manifest.finished
    assert merged.newest_arrival_ms == newest_ms < merged.changed_ms, "when it was made does not count"
    assert third.newest_arrival_ms == third.changed_ms, "an entry that does not say is as old as its last change"


async def test_an_input_that_expires_before_the_swap_keeps_the_output_out(tmp_path: Path) -> None:
    leader = await three_segments(tmp_path)
    first, second, third = leader.ids()
    output = output_of(1, 0, 20, [first, second])
    await leader.begin(output)
    await leader.upload(output)
    await leader.manifest.delete_started([first], log_start_offset=10)
    with pytest.raises(ConflictError, match="was deleted or replaced"):
        await leader.finish(output)
    assert leader.ids() == [second, third]
    await replacement.give_up(leader.manifest, output.segment_id)
    assert {entry.segment_id for entry in leader.manifest.state.pending_deletes()} == {first, output.segment_id}
    with pytest.raises(ConflictError, match="was given up"):
        await leader.finish(output)
    assert leader.ids() == [second, third]


async def test_what_a_killed_job_began_is_given_up_by_the_next(tmp_path: Path) -> None:
    leader = await three_segments(tmp_path)
    first, second, third = leader.ids()
    killed = output_of(1, 0, 20, [first, second])
    other, next_one = output_of(2, 20, 30, [third]), output_of(3, 10, 20, [second])
    await leader.begin(killed)
    await leader.upload(killed)
    await leader.begin(other)
    await leader.begin(next_one)
    states = {output: leader.manifest.state.get(output.segment_id) for output in (killed, other, next_one)}
    assert [entry.state for entry in states.values() if entry is not None] == [
        SegmentState.DELETE_STARTED, SegmentState.COPY_STARTED, SegmentState.COPY_STARTED,
    ]  # fmt: skip
    with pytest.raises(ConflictError, match="was given up"):
        await leader.finish(killed)


async def test_what_is_local_still_or_is_no_run_of_neighbours_is_not_replaced(tmp_path: Path) -> None:
    leader = await three_segments(tmp_path)
    first, second, third = leader.ids()
    with pytest.raises(ConflictError, match="is still local from 19 on"):
        await replacement.begin(leader.manifest, output_of(1, 0, 20, [first, second]), local_start_offset=Offset(19))
    for inputs, sentence in (
        ([first, third], "starts at 20"),
        ([first], "The inputs end at 10"),
        ([], "The inputs end"),
        ([first] * 10_000, "at most 9999 are replaced at a time"),
    ):
        with pytest.raises(ConflictError, match=sentence):
            await leader.begin(output_of(1, 0, 20, inputs))
    assert leader.ids() == [first, second, third]
    assert not leader.manifest.state.pending_copies()
