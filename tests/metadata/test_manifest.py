"""The manifest of a partition over stores: who may write it, what a change costs, what a new leader finds."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from uuid import UUID

import pytest

from app.core.errors import ConflictError, CorruptionError, FencedError, StorageUnavailable
from app.core.faults import Faults
from app.core.units import (
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    SegmentId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from app.metadata.log import layout
from app.metadata.manifest import manifest as manifest_module
from app.metadata.manifest.manifest import SegmentEntry, SegmentManifest, SegmentState
from app.metadata.manifest.manifest_listing import list_manifests
from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from tests.metadata.support import FixedClock, on_virtual_time, requests_of, uuid_of
from tests.support.virtual_loop import VirtualLoop

TOPIC_ID = TopicId(uuid_of(77))


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return DirectoryStore(tmp_path / "store")
    return MemoryStore(FixedClock(), random.Random(1))


def make(
    store: ObjectStore, writer_id: str = "a", *, leader_epoch: int = 0, faults: Faults | None = None
) -> SegmentManifest:
    return SegmentManifest(
        store,
        TOPIC_ID,
        PartitionIndex(3),
        writer_id=writer_id,
        broker_id=BrokerId(1),
        leader_epoch=LeaderEpoch(leader_epoch),
        rng=random.Random(writer_id),
        clock=FixedClock(),
        faults=faults,
    )


async def loaded(store: ObjectStore, writer_id: str = "a", *, leader_epoch: int = 0) -> SegmentManifest:
    manifest = make(store, writer_id, leader_epoch=leader_epoch)
    await manifest.load()
    return manifest


def started(number: int, length: int = 10) -> SegmentEntry:
    base = Offset(number * length)
    entry = SegmentEntry.started(SegmentId(uuid_of(number)), base, Offset(base + length), broker_id=BrokerId(1))
    return entry.replace(max_timestamp=TimestampMs(number), record_count=length, raw_bytes=1000)


def uploaded(number: int) -> SegmentEntry:
    return started(number).replace(size_bytes=500, footer_position=400, footer_bytes=100, chunk_count=1)


async def tier(manifest: SegmentManifest, *numbers: int) -> None:
    for number in numbers:
        await manifest.copy_started(started(number))
        await manifest.copy_finished(uploaded(number))


def ids(*numbers: int) -> list[UUID]:
    return [uuid_of(number) for number in numbers]


async def test_the_life_of_segments(store: ObjectStore) -> None:
    manifest = await loaded(store)
    assert (manifest.tiered_end, manifest.log_start_offset, manifest.entries) == (0, 0, [])
    await manifest.copy_started(started(0))
    assert manifest.find(5) is None
    await manifest.copy_finished(uploaded(0), start_next=started(1))
    assert manifest.find(5) == uploaded(0).replace(state=SegmentState.COPY_FINISHED, changed_ms=1000)
    assert manifest.tiered_end == 10
    await manifest.copy_finished(uploaded(1))
    await manifest.set_log_start(12)
    assert manifest.find(11) is None
    assert manifest.find(12) is not None
    await manifest.delete_started(ids(0))
    assert [entry.state.name for entry in manifest.entries] == ["DELETE_STARTED", "COPY_FINISHED"]
    await manifest.delete_finished(ids(0))
    reader = await loaded(store, "reader")
    assert reader.entries == manifest.entries
    assert (reader.tiered_end, reader.log_start_offset) == (20, 12)
    assert reader.find_timestamp(1) == manifest.finished[0]


async def test_the_log_start_goes_up_in_the_entry_that_deletes(store: ObjectStore) -> None:
    manifest = await loaded(store)
    await tier(manifest, 0, 1, 2)
    version = manifest.version
    await manifest.delete_started(ids(0, 1), log_start_offset=20)
    assert manifest.version == version + 1
    assert manifest.log_start_offset == 20
    await manifest.delete_finished(ids(0, 1))
    await manifest.delete_started(ids(2), log_start_offset=30)
    await manifest.delete_finished(ids(2))
    reader = await loaded(store, "reader")
    assert (reader.entries, reader.tiered_end, reader.log_start_offset) == ([], 30, 30)


async def test_the_end_of_a_copy_that_the_log_start_overtook_is_not_forgotten(store: ObjectStore) -> None:
    manifest = await loaded(store)
    await manifest.copy_started(started(0))
    await manifest.set_log_start(15)
    await manifest.copy_finished(uploaded(0))
    await manifest.delete_started(ids(0))
    await manifest.delete_finished(ids(0))
    await manifest._log.snapshot()
    assert (await loaded(store, "reader")).tiered_end == manifest.tiered_end == 10


async def test_a_manifest_is_blank_until_its_first_record_and_never_again(store: ObjectStore) -> None:
    manifest = await loaded(store)
    await manifest.seal()
    assert manifest.state.is_blank
    assert (await loaded(store, "reader")).state.is_blank
    await manifest.copy_started(started(0))
    assert not manifest.state.is_blank
    await manifest.delete_started(ids(0))
    await manifest.delete_finished(ids(0))
    await manifest._log.snapshot()
    for state in (manifest.state, manifest.state.copy(), (await loaded(store, "reader")).state):
        assert (state.is_blank, state.entries, state.tiered_end, state.log_start_offset) == (False, [], 0, 0)


async def test_what_is_not_legal_is_refused_and_not_written(store: ObjectStore) -> None:
    manifest = await loaded(store)
    await tier(manifest, 0)
    version = manifest.version
    with pytest.raises(ConflictError, match="still readable"):
        await manifest.delete_started(ids(0))
    with pytest.raises(ConflictError, match="cannot go from nothing to COPY_FINISHED"):
        await manifest.copy_finished(uploaded(1))
    with pytest.raises(ConflictError, match="cannot go from COPY_FINISHED to DELETE_FINISHED"):
        await manifest.delete_finished(ids(0))
    await manifest.set_log_start(0)
    await manifest.delete_started([])
    await manifest.delete_started(ids(5))
    await manifest.delete_finished(ids(5))
    assert manifest.version == version
    assert not await manifest.refresh()


async def test_the_old_uploader_meets_the_seal(store: ObjectStore) -> None:
    old = await loaded(store, "old", leader_epoch=1)
    await old.copy_started(started(0))
    new = await loaded(store, "new", leader_epoch=2)
    foreign = new.state.pending_copies()
    assert [entry.segment_id for entry in foreign] == ids(0)
    await new.delete_started([entry.segment_id for entry in foreign])
    for _ in range(2):
        with pytest.raises(FencedError, match="new has taken over"):
            await old.copy_finished(uploaded(0))
    await tier(new, 1)
    assert new.state.pending_deletes()[0].segment_id == uuid_of(0)


async def test_a_new_leader_may_finish_a_foreign_copy(store: ObjectStore) -> None:
    old = await loaded(store, "old")
    await old.copy_started(started(0))
    new = await loaded(store, "new")
    await new.copy_finished(new.state.pending_copies()[0].replace(**changed(uploaded(0))))
    assert new.tiered_end == 10


def changed(entry: SegmentEntry) -> dict[str, object]:
    names = ("size_bytes", "footer_position", "footer_bytes", "chunk_count")
    return {name: getattr(entry, name) for name in names}


async def test_a_leader_of_a_past_epoch_never_seals(store: ObjectStore) -> None:
    new = await loaded(store, "new", leader_epoch=2)
    await new.seal()
    old = await loaded(store, "old", leader_epoch=1)
    with pytest.raises(FencedError, match="epoch 2, which is above 1"):
        await old.copy_started(started(0))


async def test_a_finish_that_got_in_before_the_take_over_counts(store: ObjectStore) -> None:
    old, new = await loaded(store, "old"), await loaded(store, "new")
    await old.copy_started(started(0))
    await old.copy_finished(uploaded(0))
    # The new leader read the manifest before that; its seal makes it look again, and it plans on what there is.
    with pytest.raises(ConflictError, match=r"overlap|both start"):
        await new.change(
            lambda state: [
                started(9).replace(base_offset=5, end_offset=15),
                uploaded(9).replace(base_offset=5, end_offset=15, state=SegmentState.COPY_FINISHED),
            ]
        )
    assert new.tiered_end == 10


async def test_sealing_is_done_once(store: ObjectStore) -> None:
    manifest = await loaded(store)
    await manifest.seal()
    version = manifest.version
    await manifest.seal()
    assert manifest.version == version == 1


async def test_many_changes_at_once_take_turns(store: ObjectStore) -> None:
    manifest = await loaded(store)
    await tier(manifest, 0)
    await asyncio.gather(
        *(manifest.set_log_start(offset) for offset in range(1, 10)), manifest.copy_started(started(1))
    )
    assert manifest.log_start_offset == 9
    assert len(manifest.state.pending_copies()) == 1


async def test_a_cached_copy_and_the_tail_are_the_manifest(store: ObjectStore) -> None:
    manifest = await loaded(store)
    await tier(manifest, 0, 1)
    cached = manifest.to_cache()
    await tier(manifest, 2)
    other = make(store, "b")
    assert await other.load(cached)
    assert other.entries == manifest.entries
    assert not await make(store, "c").load(cached[:-1])
    await tier(other, 3)


async def test_large_deletions_are_split(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "CHANGES_PER_ENTRY_MAX", 2)
    manifest = await loaded(store)
    await tier(manifest, 0, 1, 2, 3, 4)
    with pytest.raises(ValueError, match="5 deletions"):
        await manifest.delete_started(ids(0, 1, 2, 3, 4), log_start_offset=50)
    for page in (ids(0, 1), ids(2, 3), ids(4)):
        await manifest.delete_started(page, log_start_offset=50)
    await manifest.delete_finished(ids(0, 1, 2, 3, 4))
    assert (await loaded(store, "b")).entries == []
    assert manifest.tiered_end == 50


async def test_no_change_waits_for_the_snapshot_that_it_makes_due() -> None:
    store = MemoryStore(FixedClock(), random.Random(1))
    manifest = await loaded(store)
    store.faults = [Fault(FaultKind.HANG, "put_if_absent", manifest._log.prefix + "/snapshot/")]
    number = 0
    while not manifest._log.snapshot_due:
        async with asyncio.timeout(60):
            await manifest.copy_started(started(number))
        number += 1
    assert len(manifest.entries) == number


def test_a_snapshot_that_cannot_be_written_is_told_when_that_begins_and_changes_go_on() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        lines: list[str] = []
        manifest = make(store, faults=Faults(lines.append))
        await manifest.load()
        prefix = layout.manifest_prefix(TOPIC_ID, PartitionIndex(3))
        store.faults = [Fault(FaultKind.UNAVAILABLE, key_prefix=prefix + "/snapshot/")]
        await tier(manifest, *range(40))
        (line,) = [line for line in lines if "it goes on" not in line]
        assert line.startswith(f"no snapshot of {prefix} for now: ")

    on_virtual_time(main)


async def test_snapshots_come_by_themselves(store: ObjectStore) -> None:
    manifest = await loaded(store)
    await tier(manifest, *range(80))
    keys = [info.key for info in await store.list_objects("topics/")]
    assert sum("/snapshot/" in key for key in keys) == 2
    assert len(keys) < 120
    assert (await loaded(store, "b")).entries == manifest.entries


def test_an_undecided_change_can_be_repeated() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        manifest = await loaded(store)
        await manifest.copy_started(started(0))
        store.faults = [
            Fault(FaultKind.LOST_ANSWER, operation="put_if_absent", times=1),
            Fault(FaultKind.UNAVAILABLE, operation="*"),
        ]
        with pytest.raises(StorageUnavailable):
            await manifest.copy_finished(uploaded(0))
        assert manifest.tiered_end == 0, "not known to be durable"
        store.faults = []
        await manifest.copy_finished(uploaded(0))
        await tier(manifest, 1)
        reader = await loaded(store, "b")
        assert [entry.segment_id for entry in reader.finished] == ids(0, 1)

    on_virtual_time(main)


def test_requests_of_tiering_are_counted() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        manifest = await loaded(store)
        assert dict(requests_of(store)) == {"list_objects": 1}
        start = len(store.history)
        await manifest.copy_started(started(0))
        assert dict(requests_of(store, start)) == {"put_if_absent": 2, "list_objects": 1}, "the first one seals"
        start = len(store.history)
        for number in range(20):
            await manifest.copy_finished(uploaded(number), start_next=started(number + 1))
        assert dict(requests_of(store, start)) == {"put_if_absent": 20}, "one a segment"
        start = len(store.history)
        await manifest.delete_started(ids(*range(10)), log_start_offset=100)
        await manifest.delete_finished(ids(*range(10)))
        assert dict(requests_of(store, start)) == {"put_if_absent": 2}
        start = len(store.history)
        await make(store, "b").load(manifest.to_cache())
        assert dict(requests_of(store, start)) == {"list_objects": 1}

    on_virtual_time(main)


async def test_ten_thousand_segments_are_loaded_and_found() -> None:
    store = MemoryStore(FixedClock(), random.Random(1))
    manifest = await loaded(store)
    await manifest.change(lambda state: [started(number) for number in range(10_000)])
    await manifest.change(
        lambda state: [uploaded(number).replace(state=SegmentState.COPY_FINISHED) for number in range(10_000)]
    )
    await manifest._log.snapshot()
    reader = await loaded(store, "b")
    assert len(reader.finished) == 10_000
    assert reader.find(54_321) == reader.finished[5432]
    assert reader.find_timestamp(5432) == reader.finished[5432]


@pytest.mark.parametrize("behind", [0, 1, 5, 200])
@pytest.mark.parametrize("with_copy", [False, True])
async def test_a_manifest_is_read_from_a_listing_as_from_its_own(
    store: ObjectStore, with_copy: bool, behind: int
) -> None:
    writer = await loaded(store)
    await writer.copy_started(started(0))
    copy = writer.to_cache() if with_copy else None
    for number in range(behind):
        await writer.copy_finished(uploaded(number), start_next=started(number + 1))
    key = TopicIdPartition(TOPIC_ID, PartitionIndex(3))
    listed = (await list_manifests(store, [key], page_timeout_s=5.0))[key]
    reader = make(store, "b")
    assert await reader.load(copy, listed) == with_copy
    assert (reader.entries, reader.version) == (writer.entries, writer.version)
    # A listing that has become old is not believed over what is there.
    await writer.copy_finished(uploaded(behind), start_next=started(behind + 1))
    assert await reader.refresh()
    assert reader.entries == writer.entries


async def test_a_listing_without_what_the_copy_has_is_not_believed(store: ObjectStore) -> None:
    writer = await loaded(store)
    await writer.copy_started(started(0))
    reader = make(store, "b")
    await reader.load(writer.to_cache(), [])
    assert reader.entries == writer.entries


async def test_t8_entries_that_are_handed_on_are_applied_only_if_they_follow(store: ObjectStore) -> None:
    leader, view = await loaded(store), make(store, "view")
    bodies: list[bytes] = []
    leader.on_written(lambda sequence, body: bodies.append(body))
    await leader.copy_started(started(0))
    await leader.copy_finished(uploaded(0))
    for sequence, body in enumerate(bodies):
        assert await view.take(sequence, body)
    assert view.tiered_end == leader.tiered_end == 10
    assert view.version == leader.version == len(bodies)
    # Another writer's entry of the same number, which never became durable here, does not follow.
    other = make(MemoryStore(FixedClock(), random.Random(2)), "other")
    foreign: list[bytes] = []
    other.on_written(lambda sequence, body: foreign.append(body))
    for number in range(4):
        await other.copy_started(started(number))
    assert not await view.take(len(bodies), foreign[len(bodies)])
    with pytest.raises(CorruptionError):
        await view.take(len(bodies), bodies[0])
    damaged = bytearray(foreign[len(bodies)])
    damaged[-1] ^= 1
    with pytest.raises(CorruptionError):
        await view.take(len(bodies), bytes(damaged))
    assert view.tiered_end == 10
    assert not await view.refresh()


async def test_a_copy_is_taken_however_old_and_goes_on_with_what_is_handed_on(store: ObjectStore) -> None:
    leader = await loaded(store)
    bodies: list[bytes] = []
    leader.on_written(lambda sequence, body: bodies.append(body))
    await leader.copy_started(started(0))
    copy = leader.to_cache()
    await leader.copy_finished(uploaded(0))
    view = make(store, "view")
    assert not await view.adopt(copy[:-1])
    assert view.version == 0
    assert await view.adopt(copy)
    assert view.version == leader.version - 1
    assert await view.take(len(bodies) - 1, bodies[-1])
    assert view.tiered_end == 10


async def test_a_leader_of_a_higher_epoch_seals_anew_after_another(store: ObjectStore) -> None:
    first = await loaded(store, "a", leader_epoch=5)
    await first.copy_started(started(0))
    second = await loaded(store, "b", leader_epoch=6)
    await second.seal()
    with pytest.raises(FencedError):
        await first.copy_finished(uploaded(0))
    first.raise_epoch(LeaderEpoch(7))
    await first.copy_finished(uploaded(0))
    assert first.tiered_end == 10
    with pytest.raises(FencedError):
        await second.copy_started(started(1))
